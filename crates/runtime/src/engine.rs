//! The handle that servers and embedders use to load models, submit jobs, drain and shut down.

mod devices;
mod findings;
mod start;

use crate::clock::saturating_nanos;
use crate::devices::hang_detector::HangBound;
use crate::devices::{DeviceDirectory, DeviceState, SharedDevice};
use crate::event_loop::in_turn;
use crate::event_loop::mailbox::{EngineCommand, Mail, Mailbox};
use crate::event_loop::model_ids::ModelIds;
use crate::event_loop::schedulers::{SchedulerThreads, Schedulers, Stopped};
use crate::learn::capacity::{CapacityLimits, ModelEntry, RequestedCapacity};
use crate::learn::server_delay::ServerDelay;
use crate::learn::shapes::OpenSizes;
use crate::metrics::{DeviceMetrics, DeviceSnapshot, ModelSnapshot, SchedulerMetrics, SchedulerSnapshot};
use crate::requests::answer::{Answerer, DrainGate, DrainPass};
use crate::requests::jobs::{CancelState, JobPart, LiveJob};
use crate::requests::parts;
use crate::{
    Clock, EngineProcesses, Failure, FlightConfig, FlightRecorder, Job, JobResult, OnStep, RemoteJob, ServedModel,
    event_loop::suitable,
};
use parking_lot::{Mutex, RwLock};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, Time};
use ripieno_executor::{Executor, LoadError};
use ripieno_model::Profile;
use ripieno_policies::{Policy, ServedPolicy};
use ripieno_sched::{Limits, RequestClass, Setup};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Configuration of an engine.
pub struct EngineConfig {
    /// The scheduler, built for `setup`. Each shard of the scheduler gets its own thread.
    pub scheduler: ServedPolicy,
    /// The setup that the scheduler was built for. It has no models, because they are loaded later.
    /// Its number of devices is the length of `devices`. Its limits include devices added later.
    pub setup: Setup,
    /// The executors. Each entry opens one device, and an executor may be listed several times. The
    /// first executor also opens the devices added later.
    pub devices: Vec<Arc<dyn Executor>>,
    /// Largest total size of the inputs of live requests, in bytes.
    pub max_queued_bytes: usize,
    /// The policy's catalogue entry. The engine refuses models that this policy cannot run; `None`
    /// accepts any model.
    pub policy: Option<&'static Policy>,
    /// The recording to make of the run, if any.
    pub record: Option<Recording>,
    /// The flight recorder to keep, if any.
    pub flight: Option<FlightConfig>,
    /// Time after which a device that does not end its task counts as lost.
    pub hang: HangBound,
    /// The clock. Engines whose flight recorders are joined share one.
    pub clock: Clock,
}

/// Destination and header of a recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The file to write. An existing file is replaced.
    pub path: PathBuf,
    /// The policy's name in the catalogue.
    pub policy: String,
    /// The policy's options, from which a replay builds the scheduler.
    pub options: serde_json::Value,
}

impl EngineConfig {
    /// Default of [`EngineConfig::max_queued_bytes`], 1 GiB.
    pub const MAX_QUEUED_BYTES: usize = 1 << 30;

    /// Creates a configuration that runs `scheduler` on `devices` and records nothing. The
    /// scheduler must have been built for `setup`.
    pub fn new(scheduler: impl Into<ServedPolicy>, setup: Setup, devices: Vec<Arc<dyn Executor>>) -> EngineConfig {
        let max_queued_bytes = EngineConfig::MAX_QUEUED_BYTES;
        let hang = HangBound::default();
        let (policy, record, flight, clock) = (None, None, None, Clock::start());
        let scheduler = scheduler.into();
        EngineConfig { scheduler, setup, devices, max_queued_bytes, policy, record, flight, hang, clock }
    }
}

/// Reason why an engine cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// A device cannot be opened.
    #[error("cannot open device {device}: {error}")]
    Device {
        /// Index of the device.
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
    /// The operating system could not start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Reason why a model cannot be loaded, changed or unloaded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ModelRefused {
    /// No model id is free. Holds the number of ids. A model that is being unloaded still holds its
    /// id.
    #[error("{0} models are loaded already, which is the bound; unload one first")]
    TooMany(usize),
    /// The model's description contradicts itself or the engine's limits. Holds the reason.
    #[error("{0}")]
    Unsuitable(String),
    /// The model is not loaded.
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

/// Cheap handle to the engine that serves models; all server threads share it.
///
/// Dropping the last handle answers all unanswered jobs and joins the engine's threads.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    clock: Clock,
    limits: Limits,
    least_hang: Duration,
    policy: Option<&'static Policy>,
    gate: Arc<DrainGate>,
    capacity: Arc<CapacityLimits>,
    model_ids: Arc<ModelIds>,
    metrics: Arc<[DeviceMetrics]>,
    scheduler_metrics: Arc<SchedulerMetrics>,
    server_delay: Arc<ServerDelay>,
    devices: Arc<DeviceDirectory>,
    /// Executor for devices added later; `None` if the engine started without devices.
    executor: Option<Arc<dyn Executor>>,
    /// Guards the attachment of models to devices. Loading a model takes a read lock, and adding a
    /// device takes the write lock.
    attaching: RwLock<()>,
    flight: Option<FlightRecorder>,
    /// Admits one command at a time, which bounds the number of commands in the mailbox.
    orders: Mutex<()>,
    schedulers: Arc<Schedulers>,
    /// The scheduler threads; `None` once the engine has stopped.
    threads: Mutex<Option<SchedulerThreads>>,
}

/// Callbacks for a request's answer and, if wanted, its steps.
type Receivers = (Box<dyn FnOnce(JobResult) + Send>, Option<OnStep>);

/// Handle to an accepted job. Dropping the handle does not affect the job.
pub struct Ticket {
    cancel_state: Arc<CancelState>,
    lead: RequestSlot,
    mailbox: Arc<Mailbox>,
}

impl Ticket {
    /// Cancels the job, for example because the client went away. Waiting parts are freed. The
    /// outputs of running parts are discarded. The answer is
    /// [`Failure::Cancelled`](crate::Failure::Cancelled), unless the job has been answered already.
    pub fn cancel(&self) {
        if self.cancel_state.cancel() {
            self.mailbox.post(Mail::Cancel(self.lead));
        }
    }
}

impl Engine {
    /// Loads a model and returns its id. The id stays taken until the model is unloaded and its
    /// last request has ended.
    ///
    /// The caller sets the drop rule, `model.drop`. A model with `answer_late` needs
    /// `DropRule::Never`; otherwise the scheduler drops requests whose client would accept a late
    /// answer.
    pub fn load(&self, served: ServedModel) -> Result<ModelId, ModelRefused> {
        suitable::check(&served, self.0.policy, &self.0.limits).map_err(ModelRefused::Unsuitable)?;
        let inner = &self.0;
        if inner.threads.lock().is_none() {
            return Err(ModelRefused::Stopped);
        }
        let _no_device_comes = inner.attaching.read();
        let id = inner.model_ids.reserve().ok_or(ModelRefused::TooMany(inner.limits.models))?;
        // Attaching a model may be slow. This thread does it, so no other model waits.
        inner.devices.open().iter().for_each(|device| device.attach(id, Arc::clone(&served.loaded)));
        let entry = Arc::new(ModelEntry::new(&served));
        let _one_at_a_time = inner.orders.lock();
        self.0.schedulers.command_for_model(
            id,
            EngineCommand::Load { id, entry: Arc::clone(&entry), model: Box::new(served.model) },
        )?;
        inner.model_ids.serve(id, entry);
        Ok(id)
    }

    /// Unloads a model. Queued requests are rejected and running ones finish. Once this returns, no
    /// further request can reach the model.
    pub fn unload(&self, id: ModelId) -> Result<(), ModelRefused> {
        let _one_at_a_time = self.0.orders.lock();
        if !self.0.model_ids.leave(id) {
            return Err(ModelRefused::NotLoaded);
        }
        Ok(self.0.schedulers.command_for_model(id, EngineCommand::Unload(id))?)
    }

    /// Replaces the latency profile of one block. If requests differ in length, `profile` is of the
    /// longest requests, and the cost of shorter requests changes in proportion.
    pub fn replace_profile(&self, id: ModelId, block: BlockId, profile: Profile) -> Result<(), ModelRefused> {
        let _one_at_a_time = self.0.orders.lock();
        let entry = self.0.model_ids.get(id).ok_or(ModelRefused::NotLoaded)?;
        if block.index() >= entry.blocks {
            let text = format!("model {:?} has {} blocks; there is no block {}", entry.name, entry.blocks, block.0);
            return Err(ModelRefused::Unsuitable(text));
        }
        if !entry.unfolds {
            suitable::check_profile(&entry.name, &profile, entry.max_batch).map_err(ModelRefused::Unsuitable)?;
        }
        Ok(self.0.schedulers.command_for_model(id, EngineCommand::Profile { id, block, profile })?)
    }

    /// Accepts or refuses a job. An accepted job is answered exactly once; a refused job never
    /// calls `on_answer`.
    ///
    /// The deadline is the arrival plus the smaller of the model's SLO and the job's own timeout. A
    /// model that answers late still answers after its SLO, but never after the job's timeout.
    pub fn submit(&self, job: Job) -> Result<Ticket, Failure> {
        self.submit_tagged(job, 0)
    }

    /// Accepts or refuses a job, like [`Engine::submit`]. The flight recorder finds it by its tag.
    pub fn submit_tagged(&self, job: Job, tag: u64) -> Result<Ticket, Failure> {
        let model = job.model;
        self.submit_job(job, tag).inspect_err(|refused| self.0.record_refusal(model, refused))
    }

    fn submit_job(&self, job: Job, tag: u64) -> Result<Ticket, Failure> {
        let bytes = job.inputs.iter().map(|input| input.data.len()).sum();
        let newcomer = self.0.receive(job.model, job.rows, bytes)?;
        let parts = parts::of_job(&job, &newcomer.model)?;
        let Job { timeout, stage, client, priority, on_step, on_answer, .. } = job;
        let class = RequestClass { client, priority, ..RequestClass::default() };
        let spec =
            RequestSpec { parts, sizes: None, timeout, stage, age: Duration::ZERO, way: Duration::ZERO, class, tag };
        let ticket = self.0.accept(newcomer, spec, (on_answer, on_step))?;
        self.0.schedulers.for_model(job.model).wake();
        Ok(ticket)
    }

    /// Accepts a job whose inputs are on another machine, like [`Engine::submit`]. Only remote
    /// devices can run the job.
    ///
    /// The caller must then call [`Engine::wake_scheduler`], once for all jobs that it submitted
    /// together. No answer is given before this returns.
    pub fn submit_remote(&self, job: RemoteJob) -> Result<Ticket, Failure> {
        let model = job.model;
        self.submit_remote_job(job).inspect_err(|refused| self.0.record_refusal(model, refused))
    }

    fn submit_remote_job(&self, job: RemoteJob) -> Result<Ticket, Failure> {
        let newcomer = self.0.receive(job.model, job.rows, job.bytes)?;
        let parts = parts::of_remote_job(&job, &newcomer.model)?;
        let RemoteJob { sizes, timeout, age, way, client, priority, on_answer, .. } = job;
        let class = RequestClass { client, priority, ..RequestClass::default() };
        let spec = RequestSpec { parts, sizes, timeout, stage: None, age, way, class, tag: 0 };
        self.0.accept(newcomer, spec, (on_answer, None))
    }

    /// Wakes the scheduler for jobs submitted by [`Engine::submit_remote`].
    pub fn wake_scheduler(&self) {
        self.0.schedulers.wake_all();
    }

    /// Refuses new jobs and waits until all accepted jobs are answered. Returns false if `timeout`
    /// passes first; the remaining jobs are then answered with
    /// [`Failure::ShuttingDown`](crate::Failure::ShuttingDown).
    pub fn drain(&self, timeout: Duration) -> bool {
        self.0.gate.close();
        let now = Instant::now();
        let until = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(1 << 30));
        if self.0.gate.wait_until_empty(until) {
            return true;
        }
        let _one_at_a_time = self.0.orders.lock();
        // This fails only if a scheduler thread has stopped, and a stopped thread has answered all
        // its jobs.
        let _ = self.0.schedulers.command_all(|_| EngineCommand::Dismiss);
        false
    }

    /// Answers unanswered jobs and joins the threads. Blocks until every device has ended its
    /// tasks, so a device that hangs blocks it for ever.
    pub fn shutdown(&self) {
        self.0.stop();
    }

    /// Least time after which a device that does not end its task counts as lost.
    pub fn least_hang(&self) -> Duration {
        self.0.least_hang
    }

    /// Whether all scheduler threads run; false after a shutdown or a crash.
    pub fn is_alive(&self) -> bool {
        self.0.schedulers.are_alive()
    }

    /// Number of unanswered jobs.
    pub fn unanswered(&self) -> usize {
        self.0.gate.inside()
    }

    /// Returns the metrics of a model.
    pub fn model_metrics(&self, id: ModelId) -> Option<ModelSnapshot> {
        self.0.model_ids.get(id).map(|entry| entry.snapshot())
    }

    /// Returns the largest rate at which the serving devices answer a model's rows by their
    /// deadlines, in rows per second, without other load. `None` if it is not loaded, or if its
    /// requests differ in cost.
    pub fn model_capacity(&self, id: ModelId) -> Option<f64> {
        self.0.model_ids.get(id)?.rows_per_s(self.0.devices.serving())
    }

    /// Returns the number of devices that a rate in rows per second keeps busy in the model's best
    /// batches within its SLO. `None` if it is not loaded, or if its requests differ in cost.
    pub fn busy_devices(&self, id: ModelId, rows_per_s: f64) -> Option<f64> {
        self.0.model_ids.get(id)?.busy_devices(rows_per_s)
    }

    /// Returns the state of a model's engine processes. Returns `None` if the model is not loaded
    /// or its engine runs inside the server's process.
    pub fn model_processes(&self, id: ModelId) -> Option<EngineProcesses> {
        let loaded = &self.0.model_ids.get(id)?.loaded;
        loaded.restarts().map(|restarts| EngineProcesses { up: loaded.outage().is_none(), restarts })
    }

    /// Returns id, name and metrics of all served models, ordered by id.
    pub fn all_metrics(&self) -> Vec<(ModelId, String, ModelSnapshot)> {
        let served = self.0.model_ids.serving().into_iter();
        served.map(|(id, entry)| (id, entry.name.clone(), entry.snapshot())).collect()
    }

    /// Returns the metrics of all devices, ordered by id.
    pub fn device_metrics(&self) -> Vec<DeviceSnapshot> {
        let snapshot = |(id, state, device): (DeviceId, DeviceState, Option<SharedDevice>)| {
            let counted = DeviceSnapshot { id: id.0, state, ..self.0.metrics[id.index()].snapshot() };
            match device {
                Some(open) => DeviceSnapshot {
                    rows_gathered: open.rows_gathered(),
                    tasks_without_copy: open.tasks_without_copy(),
                    tasks_gathered_ahead: open.tasks_gathered_ahead(),
                    tasks_answered_beside: open.tasks_answered_beside(),
                    spent: open.spent(),
                    ..counted
                },
                None => counted,
            }
        };
        self.0.devices.all().into_iter().map(snapshot).collect()
    }

    /// Returns the flight recorder, if the engine keeps one.
    pub fn flight(&self) -> Option<FlightRecorder> {
        self.0.flight.clone()
    }

    /// Returns the metrics of the scheduler's turns.
    pub fn scheduler_metrics(&self) -> SchedulerSnapshot {
        self.0.scheduler_metrics.snapshot()
    }

    /// Learns from the time that a server spent on an answered request before and after the engine.
    pub fn observe_server_delay(&self, delay: Duration) {
        self.0.server_delay.observe(saturating_nanos(delay));
    }
}

/// A request that has passed the first checks but has reserved no capacity.
struct IncomingRequest {
    pass: DrainPass,
    id: ModelId,
    model: Arc<ModelEntry>,
    arrived: Time,
    rows: usize,
    bytes: usize,
}

/// Parts, time limits and class of a request.
struct RequestSpec {
    parts: Vec<JobPart>,
    sizes: OpenSizes,
    timeout: Option<Duration>,
    stage: Option<Duration>,
    /// Part of the SLO that has passed before the request arrived here.
    age: Duration,
    /// Part of the time until the deadline that passes on other machines.
    way: Duration,
    class: RequestClass,
    tag: u64,
}

impl Inner {
    /// Records a refusal that depends on the load or on the engine, not on the request.
    fn record_refusal(&self, model: ModelId, refused: &Failure) {
        if let (Some(flight), Some(why)) = (&self.flight, refused.recorded()) {
            flight.refused(model, why);
        }
    }

    /// Refuses a request if the engine is draining, the model is not loaded or has no running
    /// process, or the request is too large.
    fn receive(&self, id: ModelId, rows: usize, bytes: usize) -> Result<IncomingRequest, Failure> {
        assert!(rows > 0, "a job has at least one row");
        let arrived = self.clock.now();
        let pass = self.gate.enter().ok_or(Failure::ShuttingDown)?;
        let model = self.model_ids.get(id).ok_or(Failure::NotLoaded)?;
        self.capacity.check(&model, rows, bytes)?;
        model.check_outage()?;
        Ok(IncomingRequest { pass, id, model, arrived, rows, bytes })
    }

    /// Reserves capacity and enqueues the request; the caller must then wake the scheduler.
    fn accept(
        &self,
        newcomer: IncomingRequest,
        ask: RequestSpec,
        (on_answer, on_step): Receivers,
    ) -> Result<Ticket, Failure> {
        let IncomingRequest { pass, id, model, arrived, rows, bytes } = newcomer;
        let RequestSpec { parts, sizes, timeout, stage, age, way, class, tag } = ask;
        let nodes = parts[0].entry.graph.as_ref().map_or(0, |graph| Limits::room(graph));
        let work_ns =
            parts.iter().map(|part| model.work_ns(part.rows, part.entry.extent)).fold(0, usize::saturating_add);
        let requested = RequestedCapacity { parts: parts.len(), bytes, nodes, work_ns };
        let permit = self.capacity.reserve(&model, requested)?;
        let (deadline, expires) = deadlines(arrived, &model, (timeout, age), stage);
        let (deadline, expires) = (without_way(arrived, deadline, way), without_way(arrived, expires, way));
        let cancel_state = Arc::new(CancelState::new());
        let call = LiveJob {
            answerer: Some(Answerer::new(on_answer, on_step, pass)),
            cancel_state: Arc::clone(&cancel_state),
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
            slow_inputs: None,
            sizes,
            class,
            tag,
            permit,
        };
        let scheduler = self.schedulers.for_model(id);
        let ticket = Ticket { cancel_state, lead: call.lead(), mailbox: Arc::clone(scheduler.mailbox()) };
        scheduler.enqueue(Box::new(call));
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
        // An answer's callback may drop the last handle on a scheduler or device thread, which
        // cannot join itself.
        if !in_turn() {
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

/// Returns the deadline of the answer, and the time at which the call expires.
fn deadlines(
    arrived: Time,
    model: &ModelEntry,
    (timeout, age): (Option<Duration>, Duration),
    stage: Option<Duration>,
) -> (Time, Time) {
    let own = timeout.map_or(Nanos::MAX, saturating_nanos);
    if let Some(stage) = stage {
        let deadline = arrived + saturating_nanos(stage).min(own);
        return (deadline, deadline);
    }
    let slo = (model.slo - saturating_nanos(age)).max(Nanos::ZERO);
    let deadline = arrived + slo.min(own);
    (deadline, if model.answer_late { arrived + own } else { deadline })
}

/// Returns a deadline ahead by the time that passes on other machines, at the earliest the arrival.
fn without_way(arrived: Time, deadline: Time, way: Duration) -> Time {
    if deadline == Time::NEVER { deadline } else { deadline - saturating_nanos(way).min(deadline - arrived) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::served;

    #[test]
    fn the_way_takes_its_part_of_the_time_and_at_most_all() {
        let (now, ms) = (Time(5), Duration::from_millis);
        let deadline = now + Nanos::from_millis(100);
        assert_eq!(without_way(now, deadline, Duration::ZERO), deadline);
        assert_eq!(without_way(now, deadline, ms(7)), now + Nanos::from_millis(93));
        assert_eq!(without_way(now, deadline, ms(40)), now + Nanos::from_millis(60));
        assert_eq!(without_way(now, deadline, Duration::MAX), now);
        assert_eq!(without_way(now, Time::NEVER, ms(7)), Time::NEVER);
    }

    #[test]
    fn the_nearer_limit_is_the_deadline_and_late_answers_waive_only_the_slo() {
        let strict = ModelEntry::new(&served(1, 1));
        let patient = ModelEntry::new(&ServedModel { answer_late: true, ..served(1, 1) });
        let (slo, now, ms) = (Nanos::from_millis(100), Time(5), Duration::from_millis);
        let limits = |model, timeout, stage| deadlines(now, model, (timeout, Duration::ZERO), stage);
        assert_eq!(limits(&strict, None, None), (now + slo, now + slo));
        assert_eq!(limits(&strict, Some(ms(7)), None), (Time(7_000_005), Time(7_000_005)));
        assert_eq!(limits(&patient, None, None), (now + slo, Time::NEVER));
        assert_eq!(limits(&patient, Some(ms(900)), None), (now + slo, Time(900_000_005)));
        assert_eq!(limits(&patient, Some(Duration::MAX), None), (now + slo, Time::NEVER));
        // A stage has the remaining time of its ensemble, even if that is more than the model's
        // SLO.
        for (left, model) in [(7, &strict), (900, &strict), (900, &patient)] {
            let at = now + Nanos::from_millis(left);
            assert_eq!(limits(model, None, Some(ms(left.unsigned_abs()))), (at, at));
        }
        let nearer = now + Nanos::from_millis(3);
        assert_eq!(limits(&strict, Some(ms(3)), Some(ms(900))), (nearer, nearer));
    }
    #[test]
    fn the_slo_of_a_request_that_is_sent_again_counts_from_its_first_arrival() {
        let patient = ModelEntry::new(&ServedModel { answer_late: true, ..served(1, 1) });
        let (now, ms) = (Time(5), Duration::from_millis);
        for (age, left) in [(0, 100), (30, 70), (100, 0), (5_000, 0)] {
            let deadline = now + Nanos::from_millis(left);
            assert_eq!(deadlines(now, &patient, (None, ms(age)), None), (deadline, Time::NEVER));
            let own = deadlines(now, &patient, (Some(ms(40)), ms(age)), None);
            assert_eq!(own, (now + Nanos::from_millis(left.min(40)), now + Nanos::from_millis(40)));
        }
    }
}
