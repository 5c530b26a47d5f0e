//! An inference with a streamed response: one part per step of the walk, and a last one.
//!
//! Steps come from the scheduler's thread, which must not block, so they wait in a channel. Their
//! bytes count towards the memory of the server and its client. A request fails if it leaves more
//! than [`MAX_UNREAD`] steps of more than [`MAX_UNREAD_BYTES`] unread. A bound on the number alone
//! would be reached while this process stands still: in a cluster, thousands of small steps then
//! arrive together. Merging steps into larger parts would only postpone the failure.

use crate::call::delivery::deliver;
use crate::call::infer::{Accepted, InferCall, accept, delivered};
use crate::limits::budget::{MemoryBudget, Reservation};
use crate::problem::{Problem, ProblemKind};
use crate::state::ServerState;
use parking_lot::Mutex;
use ripieno_executor::Tensor;
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{OnStep, StreamedStep};
use ripieno_wire::{InferResponse, Parameter, ResponseTensor};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc::{self, Receiver};

/// Parameter that marks the last part, as in Triton.
const FINAL_PARAMETER: &str = "triton_final_response";

/// Steps of a request that may wait for the client to read them, however large they are.
const MAX_UNREAD: usize = 256;

/// Bytes of a request's steps that may wait, however many steps they are.
const MAX_UNREAD_BYTES: usize = 4 << 20;

/// Bytes that a tensor of a waiting step takes beside its elements.
const TENSOR_BYTES: usize = 256;

/// An inference in progress. Dropping it withdraws the request.
pub(crate) struct AnswerParts {
    accepted: Accepted,
    /// Steps that wait to be read, with their memory.
    steps: Receiver<(StreamedStep, Reservation)>,
    /// The error of the first step for which there was no memory.
    refused: Arc<Mutex<Option<Problem>>>,
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
        let (send, steps) = mpsc::channel(MAX_UNREAD_BYTES / TENSOR_BYTES);
        let (refused, unread) = (Arc::new(Mutex::new(None)), budget.child(usize::MAX));
        let (refusal, mut send) = (refused.clone(), Some(send));
        let on_step: OnStep = Box::new(move |step| {
            let Some(sender) = &send else { return };
            match reserve_step(&unread, sender.max_capacity() - sender.capacity(), &step) {
                // A client that is gone needs no steps, and what has memory fits into the channel.
                Ok(room) => drop(sender.try_send((step, room))),
                // One that reads too slowly learns of it when it reads.
                Err(problem) => {
                    *refusal.lock() = Some(problem);
                    send = None;
                }
            }
        });
        let accepted = accept(state, budget, call, Some(on_step)).await?;
        Ok(AnswerParts {
            accepted,
            steps,
            refused,
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
            let Some((StreamedStep { outputs, last }, _room)) = self.steps.recv().await else {
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
        if let Some(problem) = self.refused.lock().take() {
            return Err(problem);
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

/// Reserves the memory of a step until it is read; `waiting` is the number of unread steps.
fn reserve_step(unread: &Arc<MemoryBudget>, waiting: usize, step: &StreamedStep) -> Result<Reservation, Problem> {
    let of_tensors: usize = step.outputs.iter().map(|tensor| tensor.data.len() + TENSOR_BYTES).sum();
    let bytes = of_tensors.max(TENSOR_BYTES);
    if waiting < MAX_UNREAD || unread.held().saturating_add(bytes) <= MAX_UNREAD_BYTES {
        return unread.reserve(bytes);
    }
    let most = MAX_UNREAD_BYTES >> 20;
    let text = format!(
        "more than {MAX_UNREAD} steps of more than {most} MiB wait to be read; read the stream faster, or ask without one"
    );
    Err(Problem::new(ProblemKind::TooSlow, text))
}
