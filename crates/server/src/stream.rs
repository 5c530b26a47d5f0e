//! One inference whose answer comes in parts: a part for each step of the walk, and a last one.
//!
//! Steps come from the thread that schedules for everybody, so they go into a bounded channel without waiting. A client
//! that does not read them falls behind until it is full, and then loses its request: [`MAX_UNREAD`] steps are far more
//! than any network delays, and to join steps into larger parts would only put off the same end. What a client reads too
//! slowly is its own loss: nobody else waits, and nothing grows.

use crate::bounds::budget::Budget;
use crate::delivery::deliver;
use crate::infer::{Accepted, Asked, MAX_UNREAD, accept, delivered};
use crate::problem::{Kind, Problem};
use crate::state::State;
use ripieno_executor::Tensor;
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{OnStep, Step};
use ripieno_wire::{InferResponse, Parameter, ResponseTensor};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc::{self, Receiver};

/// What marks the last part, as Triton has it.
const FINAL: &str = "triton_final_response";

/// An inference under way. Dropping it withdraws the request.
pub(crate) struct Parts {
    accepted: Accepted,
    steps: Receiver<Step>,
    /// Set once a step found no room.
    overflown: Arc<AtomicBool>,
    /// Outputs that have come in steps.
    streamed: BTreeSet<String>,
    /// The last step, which is sent with what else the answer holds.
    held: Vec<Tensor>,
    over: bool,
    /// Once the engine has answered: whether late.
    late: Option<bool>,
}

/// A part of an answer.
pub(crate) struct Part {
    pub(crate) response: InferResponse,
    pub(crate) last: bool,
}

impl Parts {
    /// Submits a request; as for [`infer`](crate::infer::infer).
    pub(crate) async fn begin(state: &State, budget: &Arc<Budget>, asked: Asked) -> Result<Parts, Problem> {
        let (send, steps) = mpsc::channel(MAX_UNREAD);
        let overflown = Arc::new(AtomicBool::new(false));
        let (full, mut send) = (overflown.clone(), Some(send));
        let on_step: OnStep = Box::new(move |step| {
            // A client that is gone needs nothing; one that does not read is told so once it does.
            if let Some(Err(mpsc::error::TrySendError::Full(_))) = send.as_ref().map(|send| send.try_send(step)) {
                full.store(true, Ordering::Release);
                send = None;
            }
        });
        let accepted = accept(state, budget, asked, Some(on_step)).await?;
        Ok(Parts { accepted, steps, overflown, streamed: BTreeSet::new(), held: Vec::new(), over: false, late: None })
    }

    /// The model that answers.
    pub(crate) fn entry(&self) -> &ServedEntry {
        &self.accepted.entry
    }

    /// Passes on what became of a part after the engine gave it. Before the last one a failure withdraws the request, which
    /// counts it.
    pub(crate) fn delivered<T>(&self, result: Result<T, Problem>) -> Result<T, Problem> {
        match self.late {
            Some(late) => delivered(self.entry(), late, result),
            None => result,
        }
    }

    /// The next part; none after the last one or after a failure.
    pub(crate) async fn next(&mut self, state: &State) -> Option<Result<Part, Problem>> {
        while !self.over {
            let Some(Step { outputs, last }) = self.steps.recv().await else {
                self.over = true;
                return Some(self.finish(state).await);
            };
            self.streamed.extend(outputs.iter().map(|tensor| tensor.name.to_string()));
            if last {
                self.held = outputs;
                continue;
            }
            match self.wanted(state, &outputs).await {
                Ok(outputs) if outputs.is_empty() => {}
                outputs => return Some(outputs.map(|outputs| self.part(outputs, false))),
            }
        }
        None
    }

    /// The last step and all outputs that do not come in steps.
    async fn finish(&mut self, state: &State) -> Result<Part, Problem> {
        if self.overflown.load(Ordering::Acquire) {
            return Err(Problem::new(
                Kind::TooSlow,
                format!("more than {MAX_UNREAD} steps wait to be read; read the stream faster, or ask without one"),
            ));
        }
        let answered = self.accepted.answer().await?;
        self.late = Some(answered.late);
        let whole = answered.outputs.into_iter().filter(|tensor| !self.streamed.contains(&*tensor.name));
        let tensors: Vec<Tensor> = std::mem::take(&mut self.held).into_iter().chain(whole).collect();
        let outputs = self.wanted(state, &tensors).await;
        Ok(self.part(self.delivered(outputs)?, true))
    }

    /// Those that the client asked for, in the order in which it did.
    async fn wanted(&mut self, state: &State, tensors: &[Tensor]) -> Result<Vec<ResponseTensor>, Problem> {
        let mut outputs = Vec::new();
        for position in 0..self.accepted.outputs.len() {
            let name = self.accepted.name(position);
            if let Some(tensor) = tensors.iter().find(|tensor| *tensor.name == *name) {
                let delivery = self.accepted.output(position, tensor);
                outputs.push(deliver(state, delivery).await?);
            }
        }
        Ok(outputs)
    }

    fn part(&self, outputs: Vec<ResponseTensor>, last: bool) -> Part {
        let mut response = self.accepted.response(outputs);
        response.parameters.0.insert(FINAL.to_owned(), Parameter::Bool(last));
        Part { response, last }
    }
}
