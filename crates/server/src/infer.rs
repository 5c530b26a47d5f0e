//! One inference, the same for every protocol: find the model, check, submit, wait, pick the outputs.

use crate::backend::Withdraw;
use crate::check::{Checked, check, wire_datatype};
use crate::problem::{Kind, Problem};
use crate::registry::ServedEntry;
use crate::state::State;
use ripieno_executor::Tensor;
use ripieno_runtime::{Answered, Job};
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
    let entry = state.registry.get(&request.model, &request.version)?;
    let id = request.id.clone();
    let Checked { inputs, rows, timeout: own_timeout, outputs } = check(&entry, request)?;
    let timeout = [timeout, own_timeout].into_iter().flatten().min();
    let (answer, answered) = oneshot::channel();
    // The receiver may be gone with its client; then nobody wants the answer.
    let on_answer = Box::new(move |result| drop(answer.send(result)));
    let job = Job { model: entry.id, inputs, rows, timeout, on_answer };
    let decoding = received.elapsed();
    let guard = WithdrawOnDrop(Some(state.backend.submit(job)?));
    let answer = answered.await;
    guard.disarm();
    let Answered { outputs: tensors, .. } = answer
        .map_err(|_| Problem::new(Kind::Internal, "the request was lost"))
        .and_then(|answer| answer.map_err(Problem::from))?;
    entry.stats.decoding.add(decoding);
    let outputs = outputs.into_iter().map(|(index, binary)| output(&entry, &tensors, index, binary));
    let response = InferResponse {
        model: entry.name.clone(),
        version: entry.version.clone(),
        id,
        outputs: outputs.collect::<Result<_, _>>()?,
        ..InferResponse::default()
    };
    Ok(Inferred { response, entry })
}

fn output(entry: &ServedEntry, tensors: &[Tensor], index: usize, binary: bool) -> Result<ResponseTensor, Problem> {
    let name = &entry.outputs[index].name;
    let tensor = tensors.iter().find(|tensor| *tensor.name == **name).ok_or_else(|| {
        Problem::new(Kind::Internal, format!("model '{}' gave no output '{name}', which it declares", entry.name))
    })?;
    Ok(ResponseTensor {
        name: name.clone(),
        datatype: wire_datatype(tensor.datatype),
        shape: tensor.shape.clone(),
        data: tensor.data.clone(),
        binary,
    })
}

/// A client that goes away drops the future of its call, and this with it.
struct WithdrawOnDrop(Option<Withdraw>);

impl WithdrawOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for WithdrawOnDrop {
    fn drop(&mut self) {
        if let Some(withdraw) = self.0.take() {
            withdraw();
        }
    }
}
