//! An inference with a streamed response: one part per step of the walk, and a last one.
//!
//! Steps come from the scheduler's thread, which must not block, so they go into a bounded channel.
//! If a client reads too slowly, the channel fills up and its request fails: [`MAX_UNREAD`] steps
//! far exceed any network delay, and merging steps into larger parts would only postpone the
//! failure. Other clients are not affected, and memory stays bounded.

use crate::call::delivery::deliver;
use crate::call::infer::{Accepted, InferCall, MAX_UNREAD, accept, delivered};
use crate::limits::budget::MemoryBudget;
use crate::problem::{Problem, ProblemKind};
use crate::state::ServerState;
use ripieno_executor::Tensor;
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{OnStep, StreamedStep};
use ripieno_wire::{InferResponse, Parameter, ResponseTensor};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc::{self, Receiver};

/// Parameter that marks the last part, as in Triton.
const FINAL_PARAMETER: &str = "triton_final_response";

/// An inference in progress. Dropping it withdraws the request.
pub(crate) struct AnswerParts {
    accepted: Accepted,
    steps: Receiver<StreamedStep>,
    /// Whether a step found the channel full.
    overflown: Arc<AtomicBool>,
    /// Outputs that arrived in steps.
    streamed: BTreeSet<String>,
    /// Outputs of the last step, sent together with the rest of the answer.
    last_step: Vec<Tensor>,
    over: bool,
    /// Whether the answer was late; `None` until the engine has answered.
    late: Option<bool>,
}

/// A part of a response.
pub(crate) struct AnswerPart {
    pub(crate) response: InferResponse,
    pub(crate) last: bool,
}

impl AnswerParts {
    /// Submits a request, as [`infer`](crate::call::infer::infer) does.
    pub(crate) async fn begin(
        state: &ServerState,
        budget: &Arc<MemoryBudget>,
        call: InferCall,
    ) -> Result<AnswerParts, Problem> {
        let (send, steps) = mpsc::channel(MAX_UNREAD);
        let overflown = Arc::new(AtomicBool::new(false));
        let (full, mut send) = (overflown.clone(), Some(send));
        let on_step: OnStep = Box::new(move |step| {
            // A client that is gone needs no steps; one that reads too slowly learns of it when it
            // reads.
            if let Some(Err(mpsc::error::TrySendError::Full(_))) = send.as_ref().map(|send| send.try_send(step)) {
                full.store(true, Ordering::Release);
                send = None;
            }
        });
        let accepted = accept(state, budget, call, Some(on_step)).await?;
        Ok(AnswerParts {
            accepted,
            steps,
            overflown,
            streamed: BTreeSet::new(),
            last_step: Vec::new(),
            over: false,
            late: None,
        })
    }

    /// Returns the model's entry.
    pub(crate) fn entry(&self) -> &ServedEntry {
        &self.accepted.entry
    }

    /// Counts a failure to deliver a part after the engine's answer, and returns the result. Before
    /// the last part, a failure withdraws the request, which counts it.
    pub(crate) fn delivered<T>(&self, result: Result<T, Problem>) -> Result<T, Problem> {
        match self.late {
            Some(late) => delivered(self.entry(), late, result),
            None => result,
        }
    }

    /// Returns the next part; `None` after the last part or a failure.
    pub(crate) async fn next(&mut self, state: &ServerState) -> Option<Result<AnswerPart, Problem>> {
        while !self.over {
            let Some(StreamedStep { outputs, last }) = self.steps.recv().await else {
                self.over = true;
                return Some(self.finish(state).await);
            };
            self.streamed.extend(outputs.iter().map(|tensor| tensor.name.to_string()));
            if last {
                self.last_step = outputs;
                continue;
            }
            match self.requested_outputs(state, &outputs).await {
                Ok(outputs) if outputs.is_empty() => {}
                outputs => return Some(outputs.map(|outputs| self.part(outputs, false))),
            }
        }
        None
    }

    /// Returns the last part: the last step, and all outputs that do not come in steps.
    async fn finish(&mut self, state: &ServerState) -> Result<AnswerPart, Problem> {
        if self.overflown.load(Ordering::Acquire) {
            return Err(Problem::new(
                ProblemKind::TooSlow,
                format!("more than {MAX_UNREAD} steps wait to be read; read the stream faster, or ask without one"),
            ));
        }
        let answered = self.accepted.answer().await?;
        self.late = Some(answered.late);
        let whole = answered.outputs.into_iter().filter(|tensor| !self.streamed.contains(&*tensor.name));
        let tensors: Vec<Tensor> = std::mem::take(&mut self.last_step).into_iter().chain(whole).collect();
        let outputs = self.requested_outputs(state, &tensors).await;
        Ok(self.part(self.delivered(outputs)?, true))
    }

    /// Returns the requested outputs in the client's order.
    async fn requested_outputs(
        &mut self,
        state: &ServerState,
        tensors: &[Tensor],
    ) -> Result<Vec<ResponseTensor>, Problem> {
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

    fn part(&self, outputs: Vec<ResponseTensor>, last: bool) -> AnswerPart {
        let mut response = self.accepted.response(outputs);
        response.parameters.0.insert(FINAL_PARAMETER.to_owned(), Parameter::Bool(last));
        AnswerPart { response, last }
    }
}
