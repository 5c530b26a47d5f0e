//! The handle that the front end holds: load models, submit jobs, drain, shut down.

mod devices;
mod start;

use crate::admission::{Admission, Asked, ModelEntry};
use crate::answer::{Answerer, Gate, Pass};
use crate::clock::saturating_nanos;
use crate::devices::{DeviceState, DeviceTable, Shared};
use crate::hangs::HangBound;
use crate::jobs::{Call, Hold, Part};
use crate::mailbox::{Mail, Mailbox, Order};
use crate::metrics::{DeviceMetrics, DeviceSnapshot, ModelSnapshot, SchedulerMetrics, SchedulerSnapshot};
use crate::registry::Registry;
use crate::schedulers::{Schedulers, Stopped, Threads};
use crate::shapes::OpenSizes;
use crate::turns::takes_a_turn;
use crate::{Answer, Clock, Job, OnStep, Processes, Refused, RemoteJob, ServedModel, split, suitable};
use parking_lot::{Mutex, RwLock};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, Time};
use ripieno_executor::{Engine as Executor, Entry, LoadError, Origin, Payload};
use ripieno_model::Profile;
use ripieno_sched::{Limits, Policy, RequestClass, Served, Setup, fit_batches};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What an engine is made of.
pub struct EngineConfig {
    /// Decides; built for `setup`. Each of its pieces has a thread of its own.
    pub scheduler: Served,
    /// No models (they are loaded later), as many devices as `devices`, and the bounds of everything, of devices also that of
    /// those to come.
    pub setup: Setup,
    /// Each opens one device; one executor may stand here many times. Devices that come later are opened by the first.
    pub devices: Vec<Arc<dyn Executor>>,
    /// The most bytes of inputs in the server.
    pub max_queued_bytes: usize,
    /// What the scheduler is in the catalogue: models whose walk it does not serve are refused. None takes any model.
    pub policy: Option<&'static Policy>,
    /// Where and under what name to record the run.
    pub record: Option<Recording>,
    /// When a device that does not end its task is given up as lost.
    pub hang: HangBound,
}

/// A recording to be made.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The file; an old one is replaced.
    pub path: PathBuf,
    /// The policy's name in the catalogue.
    pub policy: String,
    /// The policy's options; whoever replays builds the scheduler from them.
    pub options: serde_json::Value,
}

impl EngineConfig {
    /// The default of [`EngineConfig::max_queued_bytes`], 1 GiB.
    pub const MAX_QUEUED_BYTES: usize = 1 << 30;

    /// Serves with `scheduler`, which was built for `setup`, on `devices`; not recorded.
    pub fn new(scheduler: impl Into<Served>, setup: Setup, devices: Vec<Arc<dyn Executor>>) -> EngineConfig {
        let max_queued_bytes = EngineConfig::MAX_QUEUED_BYTES;
        let hang = HangBound::default();
        EngineConfig { scheduler: scheduler.into(), setup, devices, max_queued_bytes, policy: None, record: None, hang }
    }
}

/// Why an engine cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Configuration that contradicts itself.
    #[error("{0}")]
    Config(String),
    /// A device cannot be opened.
    #[error("cannot open device {device}: {error}")]
    Device {
        /// Its position.
        device: usize,
        /// The cause.
        error: LoadError,
    },
    /// The recording cannot be written.
    #[error("cannot record to {path}: {error}")]
    Recording {
        /// The file.
        path: String,
        /// The cause.
        error: std::io::Error,
    },
    /// The operating system gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Why a model cannot be loaded, changed or unloaded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ModelRefused {
    /// Every id is taken, be it by a model that is just leaving.
    #[error("{0} models are loaded already, which is the bound; unload one first")]
    TooMany(usize),
    /// Its parts contradict each other or the engine's bounds.
    #[error("{0}")]
    Unsuitable(String),
    /// No such model is loaded.
    #[error("the model is not loaded")]
    NotLoaded,
    /// The engine has stopped.
    #[error("the server is shutting down")]
    Stopped,
}

impl From<Stopped> for ModelRefused {
    fn from(_: Stopped) -> ModelRefused {
        ModelRefused::Stopped
    }
}

/// Serves models: a cheap handle, shared by all threads of the front end.
///
/// The last one to go answers what is still unanswered and joins the threads.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    clock: Clock,
    limits: Limits,
    policy: Option<&'static Policy>,
    gate: Arc<Gate>,
    admission: Arc<Admission>,
    registry: Arc<Registry>,
    metrics: Arc<[DeviceMetrics]>,
    turns: Arc<SchedulerMetrics>,
    devices: Arc<DeviceTable>,
    /// Opens devices that come later; none if there was no device to begin with.
    executor: Option<Arc<dyn Executor>>,
    /// Held to change what is attached where: many models at a time, or one device.
    attaching: RwLock<()>,
    /// One order at a time, so that they are bounded in the mailbox.
    orders: Mutex<()>,
    schedulers: Arc<Schedulers>,
    /// None once stopped.
    threads: Mutex<Option<Threads>>,
}

/// Who hears of a request.
type Receivers = (Box<dyn FnOnce(Answer) + Send>, Option<OnStep>);

/// An accepted job. Dropping it changes nothing.
pub struct Ticket {
    hold: Arc<Hold>,
    lead: RequestSlot,
    mailbox: Arc<Mailbox>,
}

impl Ticket {
    /// The client went away: what waits is freed, what runs is discarded when done, and the answer, unless it has been
    /// given, is [`Failure::Cancelled`](crate::Failure::Cancelled).
    pub fn cancel(&self) {
        if self.hold.cancel() {
            self.mailbox.post(Mail::Cancel(self.lead));
        }
    }
}

impl Engine {
    /// Serves a model from now on; its id stays its own until it is unloaded and its last request has ended.
    ///
    /// `model.drop` is the core's rule and set by the caller: with `answer_late` it should be `DropRule::Never`, or
    /// the core gives up what the client would still take.
    pub fn load(&self, mut served: ServedModel) -> Result<ModelId, ModelRefused> {
        suitable::check(&served, self.0.policy, &self.0.limits).map_err(ModelRefused::Unsuitable)?;
        if let Some(policy) = self.0.policy {
            fit_batches(&mut served.model, policy);
        }
        let inner = &self.0;
        if inner.threads.lock().is_none() {
            return Err(ModelRefused::Stopped);
        }
        let _no_device_comes = inner.attaching.read();
        let id = inner.registry.reserve().ok_or(ModelRefused::TooMany(inner.limits.models))?;
        // May be slow, so it is this thread's business and holds up no other model.
        inner.devices.open().iter().for_each(|device| device.attach(id, Arc::clone(&served.loaded)));
        let entry = Arc::new(ModelEntry::new(&served));
        let _one_at_a_time = inner.orders.lock();
        self.0.schedulers.order_of(id, Order::Load { id, entry: Arc::clone(&entry), model: Box::new(served.model) })?;
        inner.registry.serve(id, entry);
        Ok(id)
    }

    /// Serves a model no more: queued requests are rejected, running ones finish. Returns once no further request can
    /// reach it.
    pub fn unload(&self, id: ModelId) -> Result<(), ModelRefused> {
        let _one_at_a_time = self.0.orders.lock();
        if !self.0.registry.leave(id) {
            return Err(ModelRefused::NotLoaded);
        }
        Ok(self.0.schedulers.order_of(id, Order::Unload(id))?)
    }

    /// Plans with a new latency profile of one block from now on: that of its longest requests, where lengths matter. What
    /// shorter ones cost changes in proportion.
    pub fn replace_profile(&self, id: ModelId, block: BlockId, profile: Profile) -> Result<(), ModelRefused> {
        let _one_at_a_time = self.0.orders.lock();
        let entry = self.0.registry.get(id).ok_or(ModelRefused::NotLoaded)?;
        if block.index() >= entry.blocks {
            let text = format!("model {:?} has {} blocks; there is no block {}", entry.name, entry.blocks, block.0);
            return Err(ModelRefused::Unsuitable(text));
        }
        if !entry.unfolds {
            suitable::check_profile(&entry.name, &profile, entry.max_batch).map_err(ModelRefused::Unsuitable)?;
        }
        Ok(self.0.schedulers.order_of(id, Order::Profile { id, block, profile })?)
    }

    /// Accepts a job, which will be answered exactly once, or refuses it, and then `on_answer` is not called.
    ///
    /// The answer is due at arrival plus the smaller of the model's SLO and the job's own timeout. A model that
    /// answers late waives its SLO for the answer, never the client's own timeout.
    pub fn submit(&self, job: Job) -> Result<Ticket, Refused> {
        let bytes = job.inputs.iter().map(|input| input.data.len()).sum();
        let newcomer = self.0.receive(job.model, job.rows, bytes)?;
        let parts = parts(&job, &newcomer.model)?;
        let Job { timeout, stage, client, priority, on_step, on_answer, .. } = job;
        let class = RequestClass { client, priority, ..RequestClass::default() };
        let ticket =
            self.0.accept(newcomer, Ask { parts, sizes: None, timeout, stage, class }, (on_answer, on_step))?;
        self.0.schedulers.of_model(job.model).look();
        Ok(ticket)
    }

    /// The same for a request whose inputs lie elsewhere. Devices elsewhere run it; none of this process can.
    ///
    /// It is looked at in the scheduler's next turn, and [`Engine::look`] must follow: who has many requests to submit
    /// wakes the scheduler once for all of them. No answer is given before this returns.
    pub fn submit_remote(&self, job: RemoteJob) -> Result<Ticket, Refused> {
        let newcomer = self.0.receive(job.model, job.rows, job.bytes)?;
        let parts = remote_parts(&job, &newcomer.model)?;
        let RemoteJob { sizes, timeout, client, priority, on_answer, .. } = job;
        let class = RequestClass { client, priority, ..RequestClass::default() };
        self.0.accept(newcomer, Ask { parts, sizes, timeout, stage: None, class }, (on_answer, None))
    }

    /// Has what was submitted as remote looked at.
    pub fn look(&self) {
        self.0.schedulers.look();
    }

    /// Refuses new jobs and waits until all accepted ones are answered. What is not answered after `timeout` is
    /// answered with [`Failure::ShuttingDown`](crate::Failure::ShuttingDown), and false is returned.
    pub fn drain(&self, timeout: Duration) -> bool {
        self.0.gate.close();
        let now = Instant::now();
        let until = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(1 << 30));
        if self.0.gate.wait_until_empty(until) {
            return true;
        }
        let _one_at_a_time = self.0.orders.lock();
        // If the thread has stopped meanwhile, it has answered everything.
        let _ = self.0.schedulers.order_all(|_| Order::Dismiss);
        false
    }

    /// Answers what is unanswered and joins the threads. A device that never ends its task holds this up.
    pub fn shutdown(&self) {
        self.0.stop();
    }

    /// Whether the scheduler's threads run; false after a shutdown or a crash.
    pub fn is_alive(&self) -> bool {
        self.0.schedulers.are_alive()
    }

    /// Jobs that await their answer.
    pub fn unanswered(&self) -> usize {
        self.0.gate.inside()
    }

    /// The numbers of a model.
    pub fn model_metrics(&self, id: ModelId) -> Option<ModelSnapshot> {
        self.0.registry.get(id).map(|entry| entry.snapshot())
    }

    /// The processes of a model's engine; none if it has none of its own, or is not loaded.
    pub fn model_processes(&self, id: ModelId) -> Option<Processes> {
        let loaded = &self.0.registry.get(id)?.loaded;
        loaded.restarts().map(|restarts| Processes { up: loaded.outage().is_none(), restarts })
    }

    /// The numbers of all models served, by id.
    pub fn all_metrics(&self) -> Vec<(ModelId, String, ModelSnapshot)> {
        let served = self.0.registry.serving().into_iter();
        served.map(|(id, entry)| (id, entry.name.clone(), entry.snapshot())).collect()
    }

    /// The numbers of the devices that are there, by id.
    pub fn device_metrics(&self) -> Vec<DeviceSnapshot> {
        let snapshot = |(id, state, device): (DeviceId, DeviceState, Option<Shared>)| {
            let counted = DeviceSnapshot { id: id.0, state, ..self.0.metrics[id.index()].snapshot() };
            match device {
                Some(open) => DeviceSnapshot {
                    rows_gathered: open.rows_gathered(),
                    tasks_without_copy: open.tasks_without_copy(),
                    spent: open.spent(),
                    ..counted
                },
                None => counted,
            }
        };
        self.0.devices.all().into_iter().map(snapshot).collect()
    }

    /// The numbers of the scheduler's turns.
    pub fn scheduler_metrics(&self) -> SchedulerSnapshot {
        self.0.turns.snapshot()
    }
}

/// A request at the door.
struct Newcomer {
    pass: Pass,
    id: ModelId,
    model: Arc<ModelEntry>,
    arrived: Time,
    rows: usize,
    bytes: usize,
}

/// What it is to the core.
struct Ask {
    parts: Vec<Part>,
    sizes: OpenSizes,
    timeout: Option<Duration>,
    stage: Option<Duration>,
    class: RequestClass,
}

impl Inner {
    /// Whether a request may come in at all.
    fn receive(&self, id: ModelId, rows: usize, bytes: usize) -> Result<Newcomer, Refused> {
        assert!(rows > 0, "a job has at least one row");
        let arrived = self.clock.now();
        let pass = self.gate.enter().ok_or(Refused::ShuttingDown)?;
        let model = self.registry.get(id).ok_or(Refused::NotLoaded)?;
        self.admission.check(&model, rows, bytes)?;
        model.check_outage()?;
        Ok(Newcomer { pass, id, model, arrived, rows, bytes })
    }

    /// Takes what it needs and leaves it to its scheduler, who is to be told to look.
    fn accept(&self, newcomer: Newcomer, ask: Ask, (on_answer, on_step): Receivers) -> Result<Ticket, Refused> {
        let Newcomer { pass, id, model, arrived, rows, bytes } = newcomer;
        let Ask { parts, sizes, timeout, stage, class } = ask;
        let nodes = parts[0].entry.graph.as_ref().map_or(0, |graph| Limits::room(graph));
        let permit = self.admission.enter(&model, Asked { parts: parts.len(), bytes, nodes })?;
        let (deadline, expires) = due(arrived, &model, timeout, stage);
        let hold = Arc::new(Hold::new());
        let call = Call {
            answerer: Some(Answerer::new(on_answer, on_step, pass)),
            hold: Arc::clone(&hold),
            id,
            model,
            arrived,
            deadline,
            expires,
            rows,
            parts,
            done: 0,
            in_core: 0,
            cancel_read: false,
            lost: None,
            sizes,
            class,
            permit,
        };
        let scheduler = self.schedulers.of_model(id);
        let ticket = Ticket { hold, lead: call.lead(), mailbox: Arc::clone(scheduler.mailbox()) };
        scheduler.leave(Box::new(call));
        Ok(ticket)
    }

    fn stop(&self) {
        self.gate.close();
        let Some(threads) = self.threads.lock().take() else { return };
        self.schedulers.stop();
        let (devices, schedulers) = (Arc::clone(&self.devices), Arc::clone(&self.schedulers));
        let end = move || {
            schedulers.join(threads);
            devices.close_all();
        };
        // The last handle may be dropped by an answer's receiver, on one of the very threads that are to end.
        if !takes_a_turn() {
            return end();
        }
        if let Err(error) = thread::Builder::new().name("ripieno-end".to_owned()).spawn(end) {
            tracing::error!(%error, "no thread to end the devices");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a job is to the core: batches of rows, or one sequence or graph, which is checked here.
fn parts(job: &Job, model: &ModelEntry) -> Result<Vec<Part>, Refused> {
    let stream = job.on_step.is_some();
    let (extent, graph) = model.loaded.describe(&job.inputs).map_err(|error| Refused::Invalid(error.to_string()))?;
    if !model.unfolds {
        let parts = split::split(&job.inputs, job.rows, model.max_batch).into_iter();
        let entry = |inputs| Entry { stream, ..Entry::new(Payload::Here(inputs), extent) };
        let part = |(rows, inputs)| Part::new(rows, entry(inputs));
        return Ok(parts.map(part).collect());
    }
    if job.rows != 1 {
        let rows = job.rows;
        return Err(Refused::Invalid(format!("{rows} sequences or graphs in one request; send a request for each")));
    }
    let (payload, graph) = (Payload::Here(Arc::clone(&job.inputs)), graph.map(Arc::new));
    Ok(vec![Part::new(1, Entry { graph, stream, ..Entry::new(payload, extent) })])
}

/// The batches of rows of a request whose inputs lie elsewhere.
fn remote_parts(job: &RemoteJob, model: &ModelEntry) -> Result<Vec<Part>, Refused> {
    if model.unfolds {
        let cause =
            format!("model {:?} has a walk that unfolds, whose inputs must be where its devices are", model.name);
        return Err(Refused::Invalid(cause));
    }
    let longest = model.loaded.lengths().map_or(1, |lengths| lengths.max);
    let length = job.extent.length;
    if !(1..=longest).contains(&length) {
        return Err(Refused::Invalid(format!(
            "a request of length {length}; model {:?} takes 1 to {longest}",
            model.name
        )));
    }
    let mut first_row = job.origin.first_row;
    let part = |rows: usize| {
        let origin = Origin { first_row, ..job.origin };
        first_row = first_row.saturating_add(rows as u32);
        Part::new(rows, Entry::new(Payload::Elsewhere(origin), job.extent))
    };
    // Of a known number, so that one part takes the room of one.
    let mut parts = Vec::with_capacity(job.rows.div_ceil(model.max_batch));
    parts.extend(split::sizes(job.rows, model.max_batch).map(part));
    Ok(parts)
}

/// When an answer is due, and when the client is told that it is too late.
fn due(arrived: Time, model: &ModelEntry, timeout: Option<Duration>, stage: Option<Duration>) -> (Time, Time) {
    let own = timeout.map_or(Nanos::MAX, saturating_nanos);
    if let Some(stage) = stage {
        let deadline = arrived + saturating_nanos(stage).min(own);
        return (deadline, deadline);
    }
    let deadline = arrived + model.slo.min(own);
    (deadline, if model.answer_late { arrived + own } else { deadline })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::served;

    #[test]
    fn the_nearer_limit_is_the_deadline_and_late_answers_waive_only_the_slo() {
        let strict = ModelEntry::new(&served(1, 1));
        let patient = ModelEntry::new(&ServedModel { answer_late: true, ..served(1, 1) });
        let (slo, now, ms) = (Nanos::from_millis(100), Time(5), Duration::from_millis);
        assert_eq!(due(now, &strict, None, None), (now + slo, now + slo));
        assert_eq!(due(now, &strict, Some(ms(7)), None), (Time(7_000_005), Time(7_000_005)));
        assert_eq!(due(now, &patient, None, None), (now + slo, Time::NEVER));
        assert_eq!(due(now, &patient, Some(ms(900)), None), (now + slo, Time(900_000_005)));
        assert_eq!(due(now, &patient, Some(Duration::MAX), None), (now + slo, Time::NEVER));
        // What is left of the whole counts for a stage, be it less than the model's SLO or more.
        for (left, model) in [(7, &strict), (900, &strict), (900, &patient)] {
            let at = now + Nanos::from_millis(left);
            assert_eq!(due(now, model, None, Some(ms(left.unsigned_abs()))), (at, at));
        }
        let nearer = now + Nanos::from_millis(3);
        assert_eq!(due(now, &strict, Some(ms(3)), Some(ms(900))), (nearer, nearer));
    }
}
