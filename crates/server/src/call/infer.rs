//! One inference, for every protocol: look the model up, check, submit, wait, select the outputs.

use crate::access::Caller;
use crate::backend::{Backend, Withdraw};
use crate::call::check::{CheckedRequest, OutputSelection, answer_bytes, check};
use crate::call::delivery::{Delivery, OutputTarget, deliver};
use crate::call::ensemble::{EnsembleCall, EnsembleRun};
use crate::call::regions::{self, RegionSlice};
use crate::call::sequences::{self, MessagePosition, SequenceTurn};
use crate::limits::budget::{MemoryBudget, Reservation, hold};
use crate::observe::access_log::LoggedInference;
use crate::problem::{Problem, ProblemKind};
use crate::state::ServerState;
use crate::trace::TraceContext;
use ripieno_executor::Tensor;
use ripieno_repository::edge::SequenceEvent;
use ripieno_repository::registry::ServedEntry;
use ripieno_runtime::{Failure, Job, JobOutput, JobResult, OnStep};
use ripieno_wire::{InferRequest, InferResponse, ResponseTensor};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A response, and the entry whose statistics the caller completes after encoding it.
pub(crate) struct Inferred {
    pub(crate) response: InferResponse,
    pub(crate) entry: Arc<ServedEntry>,
    /// Reservation of the outputs, and of their encoding if its size was known beforehand.
    pub(crate) room: Reservation,
    /// Whether the answer was late.
    pub(crate) late: bool,
    /// Rows of the request.
    pub(crate) rows: usize,
}

/// Counts a failure that happened after the engine's answer, and returns the result.
pub(crate) fn delivered<T>(entry: &ServedEntry, late: bool, delivered: Result<T, Problem>) -> Result<T, Problem> {
    if delivered.is_err() {
        entry.stats.undelivered.add(late);
    }
    delivered
}

impl Inferred {
    /// Returns its part of the access log, if there is one.
    pub(crate) fn logged(&self, state: &ServerState) -> Option<LoggedInference> {
        state.access_log.as_ref()?;
        let (model, version) = (self.entry.name.clone(), self.entry.version.clone());
        Some(LoggedInference { model, version, rows: self.rows, late: self.late })
    }

    /// Resizes the reservation to the outputs plus an encoding of `encoded` bytes; earlier
    /// estimates are included.
    pub(crate) fn make_room(&mut self, encoded: usize) -> Result<(), Problem> {
        let data: usize = self.response.outputs.iter().map(|output| output.data.len()).sum();
        self.room.resize(data + encoded)
    }
}

/// A request with the properties of its call.
pub(crate) struct InferCall {
    pub(crate) request: InferRequest,
    /// Time at which its last byte arrived.
    pub(crate) received: Instant,
    /// Time limit set by the transport.
    pub(crate) timeout: Option<Duration>,
    /// Time that a gateway allows until the first response.
    pub(crate) slo: Option<Duration>,
    pub(crate) caller: Caller,
    /// Span of its client, if that traces.
    pub(crate) trace: Option<TraceContext>,
    /// Position among the messages of a stream.
    pub(crate) position: Option<MessagePosition>,
}

/// Runs a request. Dropping the future withdraws it.
pub(crate) async fn infer(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    call: InferCall,
) -> Result<Inferred, Problem> {
    let mut accepted = accept(state, budget, call, None).await?;
    let answered = accepted.answer().await?;
    let (entry, late) = (accepted.entry.clone(), answered.late);
    let outputs = delivered(&entry, late, deliver_all(state, accepted.deliveries(&answered)).await)?;
    let response = accepted.response(outputs);
    let room = accepted.room.take().map_or_else(|| budget.reserve(0), Ok)?;
    Ok(Inferred { response, entry, room, late, rows: accepted.rows })
}

async fn deliver_all(
    state: &ServerState,
    deliveries: Result<Vec<Delivery>, Problem>,
) -> Result<Vec<ResponseTensor>, Problem> {
    let deliveries = deliveries?;
    let mut outputs = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        outputs.push(deliver(state, delivery).await?);
    }
    Ok(outputs)
}

/// A request accepted by the backend. Dropping it before the answer withdraws the request.
pub(crate) struct Accepted {
    pub(crate) entry: Arc<ServedEntry>,
    /// Outputs to send.
    pub(crate) outputs: Vec<OutputSelection>,
    /// Targets of outputs in shared memory.
    slices: Vec<Option<RegionSlice>>,
    id: String,
    decoding: Duration,
    rows: usize,
    /// Reservation of the outputs, as far as their shapes are known.
    room: Option<Reservation>,
    /// Time limit of the request.
    timeout: Option<Duration>,
    /// Turn in a sequence, and the budget of its states.
    turn: Option<(SequenceTurn, Arc<MemoryBudget>)>,
    awaited: Awaited,
}

/// Source of the answer.
enum Awaited {
    /// The request is not submitted yet.
    Nothing,
    Model(ModelCall),
    Ensemble(Box<EnsembleRun>),
}

/// A request in the executor.
struct ModelCall {
    answer: oneshot::Receiver<JobResult>,
    /// Taken once the request has been answered.
    withdraw: Option<Withdraw>,
    submitted: Instant,
    backend: Arc<dyn Backend>,
}

/// A checked request with its inputs in memory, before it is submitted.
struct ReadyCall {
    inputs: Arc<[Tensor]>,
    priority: u8,
    event: Option<SequenceEvent>,
    caller: Caller,
    trace: Option<TraceContext>,
    position: Option<MessagePosition>,
    received: Instant,
}

/// Checks and submits a request; `on_step` receives its steps if they are streamed.
pub(crate) async fn accept(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    call: InferCall,
    on_step: Option<OnStep>,
) -> Result<Accepted, Problem> {
    let (ready, mut accepted) = prepare(state, budget, call, on_step.is_some()).await?;
    if let Some(ensemble) = accepted.entry.ensemble.clone() {
        let Accepted { entry, rows, timeout, .. } = &accepted;
        let (client, priority) = (ready.caller.client, ready.priority);
        let call = EnsembleCall { ensemble, entry: entry.clone(), rows: *rows, timeout: *timeout, client, priority };
        accepted.awaited = Awaited::Ensemble(Box::new(EnsembleRun::begin(state, budget, call, &ready.inputs)?));
    } else {
        submit(state, budget, ready, &mut accepted, on_step).await?;
    }
    Ok(accepted)
}

/// Checks a request, and reserves memory for its copies and its outputs.
async fn prepare(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    call: InferCall,
    has_steps: bool,
) -> Result<(ReadyCall, Accepted), Problem> {
    let InferCall { mut request, received, timeout, slo, caller, trace, position } = call;
    let entry = state.registry.get(&request.model, &request.version)?;
    let event = sequences::event(&entry, &request.parameters)?;
    // Requests without a sequence need no order.
    let position = position.filter(|_| event.is_some());
    // A gateway's limit until the first response does not apply to the last step of a stream.
    let slo = slo.filter(|_| !(entry.streams && has_steps));
    let slices = regions::request::resolve(state, budget, &caller, &mut request).await?;
    let id = request.id.clone();
    // A raw string is copied, because its length is prepended.
    let has_strings = entry.inputs.first().is_some_and(|spec| spec.datatype.size().is_none());
    let copied =
        request.raw_input.as_ref().filter(|_| has_strings).map(|raw| budget.reserve(raw.len() + 4)).transpose()?;
    let CheckedRequest { mut inputs, rows, timeout: own_timeout, priority, outputs } = check(&entry, request)?;
    // The inputs have no other owner yet.
    let copy = Arc::get_mut(&mut inputs).and_then(|inputs| inputs.first_mut());
    if let (Some(room), Some(input)) = (copied, copy) {
        input.data = hold(std::mem::take(&mut input.data), room);
    }
    let room = budget.reserve(answer_bytes(&entry, rows, outputs.iter().copied()))?;
    let timeout = [timeout, own_timeout, slo].into_iter().flatten().min();
    let (decoding, room, turn, awaited) = (received.elapsed(), Some(room), None, Awaited::Nothing);
    let accepted = Accepted { entry, outputs, slices, id, decoding, rows, room, timeout, turn, awaited };
    Ok((ReadyCall { inputs, priority, event, caller, trace, position, received }, accepted))
}

/// Submits a request to the backend, in its turn if it belongs to a sequence.
async fn submit(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    ready: ReadyCall,
    accepted: &mut Accepted,
    on_step: Option<OnStep>,
) -> Result<(), Problem> {
    let ReadyCall { mut inputs, priority, event, caller, trace, position, received } = ready;
    let entry = accepted.entry.clone();
    if let Some(event) = event {
        let begun = Instant::now();
        let turn = state.sequences.acquire_turn(&entry, event, position).await?;
        inputs = turn.inputs(&inputs)?;
        accepted.turn = Some((turn, budget.clone()));
        // The request's time limit includes its wait for the turn.
        accepted.timeout = accepted.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
    }
    let model = entry.id.ok_or_else(|| Problem::of_ending(Failure::NotLoaded, &entry.name))?;
    let (send, answer) = oneshot::channel();
    // The receiver may be gone with its client.
    let on_answer = Box::new(move |answer| drop(send.send(answer)));
    let sampled = state.telemetry.as_ref().and_then(|telemetry| telemetry.begin(trace.as_ref(), received));
    let Accepted { rows, timeout, ref id, .. } = *accepted;
    let job = Job { model, inputs, rows, timeout, stage: None, client: caller.client, priority, on_step, on_answer };
    let tag = sampled.unwrap_or_else(|| tag_of(id));
    let submitted = Instant::now();
    let refused = |failure| Problem::of_failure(failure, &entry, rows, timeout);
    let withdraw = state.backend.submit_tagged(job, tag).map_err(refused)?;
    let backend = state.backend.clone();
    accepted.awaited = Awaited::Model(ModelCall { answer, withdraw: Some(withdraw), submitted, backend });
    Ok(())
}

/// Returns the number under which the flight recorder finds requests with this id of a client: a
/// hash, since ids may be long and may name people. 0 for an empty id.
pub(crate) fn tag_of(id: &str) -> u64 {
    if id.is_empty() {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(id.as_bytes());
    hasher.finish().max(1)
}

impl Accepted {
    /// Waits for the answer.
    pub(crate) async fn answer(&mut self) -> Result<JobOutput, Problem> {
        // Taking the turn ends it on failure, too.
        let turn = self.turn.take();
        let answered = match &mut self.awaited {
            Awaited::Nothing => return Err(Problem::lost()),
            Awaited::Ensemble(run) => run.answer().await?,
            Awaited::Model(call) => {
                let answer = (&mut call.answer).await;
                call.withdraw = None;
                let answer = answer.map_err(|_| Problem::lost())?;
                let answered =
                    answer.map_err(|failure| Problem::of_failure(failure, &self.entry, self.rows, self.timeout))?;
                let inside = Duration::from_nanos((answered.queued + answered.executed).0.max(0).cast_unsigned());
                let after = call.submitted.elapsed().saturating_sub(inside);
                call.backend.observe_server_delay(self.decoding + after);
                answered
            }
        };
        if let Some((turn, budget)) = turn {
            turn.end(&answered.outputs, &budget)?;
        }
        self.entry.stats.decoding.add(self.decoding);
        Ok(answered)
    }

    /// Returns the name of the output at this position among those to send.
    pub(crate) fn name(&self, position: usize) -> &str {
        &self.entry.outputs[self.outputs[position].index].name
    }

    /// Returns all outputs to send.
    fn deliveries(&self, answered: &JobOutput) -> Result<Vec<Delivery>, Problem> {
        let delivery = |position| {
            let name = self.name(position);
            let tensor = answered.outputs.iter().find(|tensor| *tensor.name == *name).ok_or_else(|| {
                let model = &self.entry.name;
                Problem::new(
                    ProblemKind::Internal,
                    format!("model '{model}' gave no output '{name}', which it declares"),
                )
            })?;
            Ok(self.output(position, tensor))
        };
        (0..self.outputs.len()).map(delivery).collect()
    }

    /// Returns the output at this position among those to send.
    pub(crate) fn output(&self, position: usize, tensor: &Tensor) -> Delivery {
        let output = ResponseTensor {
            name: tensor.name.to_string(),
            datatype: tensor.datatype,
            shape: self.entry.to_clients(&tensor.name, &tensor.shape),
            data: tensor.data.clone(),
            encoding: self.outputs[position].encoding,
        };
        let slice = self.slices.get(position).cloned().flatten().map(OutputTarget::Write);
        let classify = |most| OutputTarget::Classify(most, self.entry.clone());
        Delivery { output, target: slice.or(self.outputs[position].classes.map(classify)) }
    }

    /// Builds a response, or a part of one.
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
    /// Withdraws an unanswered request. When a client disconnects, the future of its call is
    /// dropped, and this with it; an ensemble's execution does the same for its steps.
    fn drop(&mut self) {
        if let Awaited::Model(call) = &mut self.awaited
            && let Some(withdraw) = call.withdraw.take()
        {
            withdraw();
        }
    }
}
