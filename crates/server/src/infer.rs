//! One inference, the same for every protocol: find the model, check, submit, wait, pick the outputs.

use crate::access::Caller;
use crate::backend::Withdraw;
use crate::bounds::budget::{Budget, Reservation, hold};
use crate::check::{Checked, Wanted, answer_bytes, check, wire_datatype};
use crate::delivery::{Delivery, Wish, deliver};
use crate::ensemble::{Run, Whole};
use crate::problem::{Kind, Problem};
use crate::regions::{self, Spot};
use crate::sequences::{self, Place, Turn};
use crate::state::State;
use ripieno_executor::Tensor;
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{Answer, Answered, Job, OnStep, Refused};
use ripieno_wire::{InferRequest, InferResponse, ResponseTensor};
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
    /// Among the messages of a stream.
    pub(crate) place: Option<Place>,
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
    rows: usize,
    /// What the answer is going to take, as far as its shape is known before.
    room: Option<Reservation>,
    /// The request's own time limit.
    timeout: Option<Duration>,
    /// In its sequence, and what the states count against.
    turn: Option<(Turn, Arc<Budget>)>,
    awaited: Awaited,
}

/// Who gives the answer.
enum Awaited {
    Model(oneshot::Receiver<Answer>, Option<Withdraw>),
    Ensemble(Box<Run>),
}

/// Checks a request and submits it; `on_step` receives its steps, if they are wanted.
pub(crate) async fn accept(
    state: &State,
    budget: &Arc<Budget>,
    asked: Asked,
    on_step: Option<OnStep>,
) -> Result<Accepted, Problem> {
    let Asked { mut request, received, timeout, slo, caller, place } = asked;
    let entry = state.registry.get(&request.model, &request.version)?;
    let event = sequences::event(&entry, &request.parameters)?;
    // Who belongs to no sequence goes as it comes.
    let place = place.filter(|_| event.is_some());
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
    let whole = answer_bytes(&entry, rows, outputs.iter().copied());
    // In parts, as much for each that may wait to be read.
    let parts = if on_step.is_some() && entry.streams { MAX_UNREAD } else { 1 };
    let room = budget.reserve(whole.saturating_mul(parts))?;
    let timeout = [timeout, own_timeout, slo].into_iter().flatten().min();
    let (decoding, room) = (received.elapsed(), Some(room));
    if let Some(ensemble) = &entry.ensemble {
        let whole =
            Whole { ensemble: ensemble.clone(), entry: entry.clone(), rows, timeout, client: caller.client, priority };
        let run = Run::begin(state, budget, whole, &inputs)?;
        return Ok(Accepted {
            entry,
            outputs,
            spots,
            id,
            decoding,
            rows,
            room,
            timeout,
            turn: None,
            awaited: Awaited::Ensemble(Box::new(run)),
        });
    }
    let (mut turn, mut timeout) = (None, timeout);
    if let Some(event) = event {
        let begun = Instant::now();
        let own = state.sequences.turn(&entry, event, place).await?;
        inputs = own.inputs(&inputs)?;
        turn = Some((own, budget.clone()));
        // A request's own limit holds for its wait, too.
        timeout = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
    }
    let model = entry.id.ok_or_else(|| Problem::of_refusal(Refused::NotLoaded, &entry.name))?;
    let (send, answer) = oneshot::channel();
    // The receiver may be gone with its client; then nobody wants the answer.
    let on_answer = Box::new(move |answer| drop(send.send(answer)));
    let client = caller.client;
    let job = Job { model, inputs, rows, timeout, stage: None, client, priority, on_step, on_answer };
    let withdraw = state.backend.submit(job).map_err(|refused| Problem::of_refusal(refused, &entry.name))?;
    let awaited = Awaited::Model(answer, Some(withdraw));
    Ok(Accepted { entry, outputs, spots, id, decoding, rows, room, timeout, turn, awaited })
}

impl Accepted {
    /// Waits for the answer.
    pub(crate) async fn answer(&mut self) -> Result<Answered, Problem> {
        // A failure gives it back, too.
        let turn = self.turn.take();
        let answered = match &mut self.awaited {
            Awaited::Ensemble(run) => run.answer().await?,
            Awaited::Model(answer, withdraw) => {
                let answer = answer.await;
                *withdraw = None;
                let answer = answer.map_err(|_| Problem::lost())?;
                answer.map_err(|failure| Problem::of_failure(failure, &self.entry, self.rows, self.timeout))?
            }
        };
        if let Some((turn, budget)) = turn {
            turn.end(&answered.outputs, &budget)?;
        }
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
        let output = ResponseTensor {
            name: tensor.name.to_string(),
            datatype: wire_datatype(tensor.datatype),
            shape: self.entry.to_clients(&tensor.name, &tensor.shape),
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
    /// A client that goes away drops the future of its call, and this with it; the run of an ensemble does the same for its steps.
    fn drop(&mut self) {
        if let Awaited::Model(_, withdraw) = &mut self.awaited
            && let Some(withdraw) = withdraw.take()
        {
            withdraw();
        }
    }
}
