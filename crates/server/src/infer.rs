//! One inference, the same for every protocol: find the model, check, submit, wait, pick the outputs.

use crate::access::Caller;
use crate::backend::Withdraw;
use crate::bounds::budget::{Budget, Reservation, hold};
use crate::check::{Checked, Wanted, check, wire_datatype};
use crate::delivery::{Delivery, Wish, deliver};
use crate::problem::{Kind, Problem};
use crate::regions::{self, Spot};
use crate::state::State;
use ripieno_executor::Tensor;
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{Answer, Answered, Job, OnStep};
use ripieno_wire::json::text_size;
use ripieno_wire::{Form, InferRequest, InferResponse, ResponseTensor};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Steps of one request that wait for their client to read.
pub(crate) const MAX_UNREAD: usize = 256;

/// The answer and the entry that gave it, whose statistics the caller completes once the answer is encoded.
pub(crate) struct Inferred {
    pub(crate) response: InferResponse,
    pub(crate) entry: Arc<ServedEntry>,
    /// What is reserved for the outputs, and for their encoding if it was known how large they would be.
    pub(crate) room: Reservation,
    /// Whether the answer came late.
    pub(crate) late: bool,
}

/// Passes on what became of an answer after the engine gave it; a failure counts as one of the request.
pub(crate) fn delivered<T>(entry: &ServedEntry, late: bool, delivered: Result<T, Problem>) -> Result<T, Problem> {
    if delivered.is_err() {
        entry.stats.undelivered.add(late);
    }
    delivered
}

impl Inferred {
    /// Makes room for the outputs beside their encoding of so many bytes. What was estimated before is in it.
    pub(crate) fn make_room(&mut self, encoded: usize) -> Result<(), Problem> {
        let data: usize = self.response.outputs.iter().map(|output| output.data.len()).sum();
        self.room.resize(data + encoded)
    }
}

/// A request, and what its call says of it.
pub(crate) struct Asked {
    pub(crate) request: InferRequest,
    /// When its last byte came.
    pub(crate) received: Instant,
    /// The limit that the transport carries.
    pub(crate) timeout: Option<Duration>,
    /// The time that a gateway gives it until its first answer.
    pub(crate) slo: Option<Duration>,
    pub(crate) caller: Caller,
}

/// Infers. A caller that drops this future withdraws the request.
pub(crate) async fn infer(state: &State, budget: &Arc<Budget>, asked: Asked) -> Result<Inferred, Problem> {
    let mut accepted = accept(state, budget, asked, None).await?;
    let answered = accepted.answer().await?;
    let (entry, late) = (accepted.entry.clone(), answered.late);
    let outputs = delivered(&entry, late, deliver_all(state, accepted.deliveries(&answered)).await)?;
    let response = accepted.response(outputs);
    let room = accepted.room.take().map_or_else(|| budget.reserve(0), Ok)?;
    Ok(Inferred { response, entry, room, late })
}

async fn deliver_all(
    state: &State,
    deliveries: Result<Vec<Delivery>, Problem>,
) -> Result<Vec<ResponseTensor>, Problem> {
    let deliveries = deliveries?;
    let mut outputs = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        outputs.push(deliver(state, delivery).await?);
    }
    Ok(outputs)
}

/// A request that the backend has accepted. Dropping it withdraws the request, unless it has been answered.
pub(crate) struct Accepted {
    pub(crate) entry: Arc<ServedEntry>,
    /// The outputs to send.
    pub(crate) outputs: Vec<Wanted>,
    /// Where they go, if any goes into shared memory.
    spots: Vec<Option<Spot>>,
    id: String,
    decoding: Duration,
    /// What the answer is going to take, as far as its shape is known before.
    room: Option<Reservation>,
    /// The request's own time limit.
    timeout: Option<Duration>,
    answer: oneshot::Receiver<Answer>,
    withdraw: Option<Withdraw>,
}

/// Checks a request and submits it; `on_step` receives its steps, if they are wanted.
pub(crate) async fn accept(
    state: &State,
    budget: &Arc<Budget>,
    asked: Asked,
    on_step: Option<OnStep>,
) -> Result<Accepted, Problem> {
    let Asked { mut request, received, timeout, slo, caller } = asked;
    let entry = state.registry.get(&request.model, &request.version)?;
    // Where steps are answered one by one, the last of them may come much later than the first.
    let slo = slo.filter(|_| !(entry.streams && on_step.is_some()));
    let spots = regions::request::resolve(state, budget, &caller, &mut request).await?;
    let id = request.id.clone();
    // A raw string is copied, because of the length that goes before it.
    let has_strings = entry.inputs.first().is_some_and(|spec| wire_datatype(spec.datatype).size().is_none());
    let copied =
        request.raw_input.as_ref().filter(|_| has_strings).map(|raw| budget.reserve(raw.len() + 4)).transpose()?;
    let Checked { mut inputs, rows, timeout: own_timeout, priority, outputs } = check(&entry, request)?;
    // Nobody else has them yet.
    let copy = Arc::get_mut(&mut inputs).and_then(|inputs| inputs.first_mut());
    if let (Some(room), Some(input)) = (copied, copy) {
        input.data = hold(std::mem::take(&mut input.data), room);
    }
    let room = budget.reserve(answer_bytes(&entry, rows, &outputs, on_step.is_some()))?;
    let timeout = [timeout, own_timeout, slo].into_iter().flatten().min();
    let (send, answer) = oneshot::channel();
    // The receiver may be gone with its client; then nobody wants the answer.
    let on_answer = Box::new(move |answer| drop(send.send(answer)));
    let job = Job { model: entry.id, inputs, rows, timeout, client: caller.client, priority, on_step, on_answer };
    let decoding = received.elapsed();
    let withdraw = state.backend.submit(job).map_err(|refused| Problem::of_refusal(refused, &entry.name))?;
    Ok(Accepted { entry, outputs, spots, id, decoding, room: Some(room), timeout, answer, withdraw: Some(withdraw) })
}

/// What the answer takes, at least: outputs and their encoding, where a dimension that is not known counts as one. In parts,
/// as much for each that may wait to be read.
fn answer_bytes(entry: &ServedEntry, rows: usize, outputs: &[Wanted], in_parts: bool) -> usize {
    let size = |wanted: &Wanted| {
        let spec = &entry.outputs[wanted.index];
        let known = spec.shape.iter().skip(1).map(|&dimension| usize::try_from(dimension).unwrap_or(1));
        let datatype = wire_datatype(spec.datatype);
        let data = known.fold(rows.saturating_mul(datatype.size().unwrap_or(1)), usize::saturating_mul);
        data.saturating_add(match wanted.form {
            Form::Binary => data,
            Form::Json => text_size(datatype, data),
            Form::Elsewhere => 0,
        })
    };
    let whole = outputs.iter().map(size).fold(0, usize::saturating_add);
    whole.saturating_mul(if in_parts && entry.streams { MAX_UNREAD } else { 1 })
}

impl Accepted {
    /// Waits for the answer.
    pub(crate) async fn answer(&mut self) -> Result<Answered, Problem> {
        let answer = (&mut self.answer).await;
        self.withdraw = None;
        let answer = answer.map_err(|_| Problem::new(Kind::Internal, "the request was lost"))?;
        let answered = answer.map_err(|failure| Problem::of_failure(failure, &self.entry, self.timeout))?;
        self.entry.stats.decoding.add(self.decoding);
        Ok(answered)
    }

    /// The name of the output at this place among those to send.
    pub(crate) fn name(&self, position: usize) -> &str {
        &self.entry.outputs[self.outputs[position].index].name
    }

    /// All outputs to send.
    fn deliveries(&self, answered: &Answered) -> Result<Vec<Delivery>, Problem> {
        let delivery = |position| {
            let name = self.name(position);
            let tensor = answered.outputs.iter().find(|tensor| *tensor.name == *name).ok_or_else(|| {
                let model = &self.entry.name;
                Problem::new(Kind::Internal, format!("model '{model}' gave no output '{name}', which it declares"))
            })?;
            Ok(self.output(position, tensor))
        };
        (0..self.outputs.len()).map(delivery).collect()
    }

    /// The output at this place among those to send.
    pub(crate) fn output(&self, position: usize, tensor: &Tensor) -> Delivery {
        // Without a batch, the one row is the whole.
        let shape = if self.entry.batched { &tensor.shape[..] } else { tensor.shape.get(1..).unwrap_or_default() };
        let output = ResponseTensor {
            name: tensor.name.to_string(),
            datatype: wire_datatype(tensor.datatype),
            shape: shape.to_vec(),
            data: tensor.data.clone(),
            form: self.outputs[position].form,
        };
        let spot = self.spots.get(position).cloned().flatten().map(Wish::Write);
        let classify = |most| Wish::Classify(most, self.entry.clone());
        Delivery { output, wish: spot.or(self.outputs[position].classes.map(classify)) }
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
