//! One inference, the same for every protocol: find the model, check, submit, wait, pick the outputs.

use crate::backend::Withdraw;
use crate::check::{Checked, check, wire_datatype};
use crate::problem::{Kind, Problem};
use crate::registry::ServedEntry;
use crate::state::State;
use ripieno_executor::Tensor;
use ripieno_runtime::{Answer, Answered, Job, OnStep};
use ripieno_wire::{InferRequest, InferResponse, ResponseTensor};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The answer and the entry that gave it, whose statistics the caller completes once the answer is encoded.
pub(crate) struct Inferred {
    pub(crate) response: InferResponse,
    pub(crate) entry: Arc<ServedEntry>,
}

/// Infers. `received` is when the last byte of the request came, `timeout` the limit that the transport carries. A
/// caller that drops this future withdraws the request.
pub(crate) async fn infer(
    state: &State,
    request: InferRequest,
    received: Instant,
    timeout: Option<Duration>,
) -> Result<Inferred, Problem> {
    let mut accepted = accept(state, request, received, timeout, None)?;
    let answered = accepted.answer().await?;
    let Accepted { entry, outputs, .. } = &accepted;
    let outputs = outputs.iter().map(|&(index, binary)| output(entry, &answered.outputs, index, binary));
    let outputs = outputs.collect::<Result<_, _>>()?;
    Ok(Inferred { response: accepted.response(outputs), entry: accepted.entry.clone() })
}

/// A request that the backend has accepted. Dropping it withdraws the request, unless it has been answered.
pub(crate) struct Accepted {
    pub(crate) entry: Arc<ServedEntry>,
    /// The outputs to send: index among the model's outputs, and whether in binary.
    pub(crate) outputs: Vec<(usize, bool)>,
    id: String,
    decoding: Duration,
    answer: oneshot::Receiver<Answer>,
    withdraw: Option<Withdraw>,
}

/// Checks a request and submits it; `on_step` receives its steps, if they are wanted.
pub(crate) fn accept(
    state: &State,
    request: InferRequest,
    received: Instant,
    timeout: Option<Duration>,
    on_step: Option<OnStep>,
) -> Result<Accepted, Problem> {
    let entry = state.registry.get(&request.model, &request.version)?;
    let id = request.id.clone();
    let Checked { inputs, rows, timeout: own_timeout, outputs } = check(&entry, request)?;
    let timeout = [timeout, own_timeout].into_iter().flatten().min();
    let (send, answer) = oneshot::channel();
    // The receiver may be gone with its client; then nobody wants the answer.
    let on_answer = Box::new(move |answer| drop(send.send(answer)));
    let job = Job { model: entry.id, inputs, rows, timeout, on_step, on_answer };
    let decoding = received.elapsed();
    let withdraw = state.backend.submit(job).map_err(|refused| Problem::of_refusal(refused, &entry.name))?;
    Ok(Accepted { entry, outputs, id, decoding, answer, withdraw: Some(withdraw) })
}

impl Accepted {
    /// Waits for the answer.
    pub(crate) async fn answer(&mut self) -> Result<Answered, Problem> {
        let answer = (&mut self.answer).await;
        self.withdraw = None;
        let answer = answer.map_err(|_| Problem::new(Kind::Internal, "the request was lost"))?;
        let answered = answer.map_err(Problem::from)?;
        self.entry.stats.decoding.add(self.decoding);
        Ok(answered)
    }

    /// A response, or a part of one.
    pub(crate) fn response(&self, outputs: Vec<ResponseTensor>) -> InferResponse {
        InferResponse {
            model: self.entry.name.clone(),
            version: self.entry.version.clone(),
            id: self.id.clone(),
            outputs,
            ..InferResponse::default()
        }
    }
}

impl Drop for Accepted {
    /// A client that goes away drops the future of its call, and this with it.
    fn drop(&mut self) {
        if let Some(withdraw) = self.withdraw.take() {
            withdraw();
        }
    }
}

fn output(entry: &ServedEntry, tensors: &[Tensor], index: usize, binary: bool) -> Result<ResponseTensor, Problem> {
    let name = &entry.outputs[index].name;
    let tensor = tensors.iter().find(|tensor| *tensor.name == **name).ok_or_else(|| {
        Problem::new(Kind::Internal, format!("model '{}' gave no output '{name}', which it declares", entry.name))
    })?;
    Ok(response_tensor(entry, tensor, binary))
}

pub(crate) fn response_tensor(entry: &ServedEntry, tensor: &Tensor, binary: bool) -> ResponseTensor {
    // Without a batch, the one row is the whole.
    let shape = if entry.batched { &tensor.shape[..] } else { tensor.shape.get(1..).unwrap_or_default() };
    ResponseTensor {
        name: tensor.name.to_string(),
        datatype: wire_datatype(tensor.datatype),
        shape: shape.to_vec(),
        data: tensor.data.clone(),
        binary,
    }
}
