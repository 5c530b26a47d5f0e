//! The frontend role: it takes jobs like an engine, and has them scheduled and run by other
//! processes.
//!
//! Threads: one for each scheduler keeps the connection and reads it ([`follow`]); one accepts
//! connections of backends, each of which has a reader thread; one expires requests. They share the
//! table of requests. No request is answered with its lock held.

mod calls;
mod counters;
mod data;
mod follow;
mod models;
mod pending;
mod steps;
mod table;
mod way;

use crate::description::ModelDescription;
use crate::plane::{Listener, Message, PeerLink, RequestHeader, Transport, graph_fits};
use crate::random_id;
use calls::FrontendCalls;
use models::FrontendModels;
use parking_lot::{Condvar, Mutex, RwLock};
use pending::{CompletedRequest, PendingRequest, Resubmission};
use ripieno_base::{ModelId, Nanos};
use ripieno_runtime::{DelayPercentiles, Failure, Job, ModelSnapshot};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use steps::StepReceiver;
use table::RequestTable;

/// Interval at which requests are expired.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(100);

/// Callback for the served models, by the ids that jobs name, and for the names of those that
/// backends are loading.
pub type OnModels = Box<dyn Fn(&[(ModelId, ModelDescription)], &[String]) + Send + Sync>;

/// Configuration of a frontend.
pub struct FrontendConfig {
    /// Addresses of all schedulers.
    pub schedulers: Vec<String>,
    /// Listening address for backends, which fetch inputs and leave outputs there.
    pub data: SocketAddr,
    /// Address at which backends reach it; by default the host that the scheduler sees, with the
    /// listening port.
    pub advertised: Option<String>,
    /// The largest number of requests in flight.
    pub max_live: u32,
    /// Time that requests wait for another scheduler; afterwards clients are asked to retry.
    pub scheduler_timeout: Duration,
}

impl FrontendConfig {
    /// Default of [`FrontendConfig::scheduler_timeout`].
    pub const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(1);
}

/// A running frontend.
#[derive(Clone)]
pub struct Frontend(Arc<FrontendShared>);

/// The body of one of its threads.
type ThreadBody = Box<dyn FnOnce(&Arc<FrontendShared>) + Send>;

struct FrontendShared {
    transport: Arc<dyn Transport>,
    /// Id towards schedulers and backends.
    id: u32,
    advertised: String,
    listener: Arc<dyn Listener>,
    table: Mutex<RequestTable>,
    models: RwLock<FrontendModels>,
    calls: FrontendCalls,
    on_models: OnModels,
    /// Connections to schedulers.
    links: Mutex<Vec<Arc<PeerLink>>>,
    /// Number of devices that serve.
    devices: AtomicU32,
    /// Number of the next backend connection.
    connections: AtomicU64,
    /// Number of connected backends.
    backends: AtomicUsize,
    stop: Mutex<bool>,
    stopped: Condvar,
}

impl Frontend {
    /// Connects to the schedulers, retrying until it succeeds, and listens for backends.
    pub fn start(transport: Arc<dyn Transport>, config: FrontendConfig, on_models: OnModels) -> io::Result<Frontend> {
        let FrontendConfig { schedulers, data, advertised, max_live, scheduler_timeout } = config;
        let listener = transport.listen(data)?;
        let own = listener.address();
        let by_itself = || if own.ip().is_unspecified() { format!(":{}", own.port()) } else { own.to_string() };
        let shared = Arc::new(FrontendShared {
            transport,
            id: (random_id() >> 32) as u32,
            advertised: advertised.unwrap_or_else(by_itself),
            listener,
            table: Mutex::new(RequestTable::new(max_live, scheduler_timeout)),
            models: RwLock::default(),
            calls: FrontendCalls::default(),
            on_models,
            links: Mutex::default(),
            devices: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            backends: AtomicUsize::new(0),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let spawn = |name: &str, work: ThreadBody| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared)).map(drop)
        };
        spawn("frontend-accept", Box::new(data::accept_backends))?;
        for scheduler in schedulers {
            spawn("frontend-follow", Box::new(move |shared| shared.follow(&scheduler)))?;
        }
        spawn("frontend-late", Box::new(|shared| shared.expire_requests()))?;
        Ok(Frontend(shared))
    }

    /// Returns the address that backends connect to.
    pub fn data_address(&self) -> SocketAddr {
        self.0.listener.address()
    }

    /// Loads a model on all backends, or takes it out of service. Blocks until all have answered;
    /// the error says why the model is not served as asked.
    pub fn change_model(&self, name: &str, unload: bool) -> Result<(), String> {
        let scheduler = self.0.table.lock().scheduler();
        let scheduler = scheduler.ok_or("no scheduler is there; call again")?;
        self.0.calls.make(&scheduler, name, unload)
    }

    /// Accepts a job, which is answered exactly once, or refuses it, like
    /// [`Engine::submit`](ripieno_runtime::Engine::submit). The returned number is for
    /// [`Frontend::cancel`].
    pub fn submit(&self, job: Job) -> Result<u64, Failure> {
        let came = Instant::now();
        let model = self.0.models.read().get(job.model).ok_or(Failure::NotLoaded)?;
        let invalid = |text: String| Failure::Invalid(text);
        let (extent, graph) = model.loaded().describe(&job.inputs).map_err(|error| invalid(error.to_string()))?;
        if graph.as_ref().is_some_and(|graph| !graph_fits(graph)) {
            return Err(invalid("a graph that is too large for the scheduler's connection".to_owned()));
        }
        let (graph, steps) = (graph.map(Arc::new), job.on_step.filter(|_| model.streams()).map(StepReceiver::new));
        let rows = u32::try_from(job.rows).map_err(|_| invalid(format!("{} rows in one request", job.rows)))?;
        let bytes = job.inputs.iter().map(|input| input.data.len() as u64).sum();
        let ask = RequestHeader {
            request: 0,
            model: job.model,
            client: job.client,
            priority: job.priority,
            rows,
            length: extent.length,
            bytes,
            left_ns: job.timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)),
            way: 0,
            age_ms: 0,
            sizes: model.open.sizes(&job.inputs),
            stream: steps.is_some(),
        };
        let limits = model.limits(came, job.timeout);
        let (inputs, on_answer, live) = (job.inputs, job.on_answer, model.counts.enter());
        let pending = PendingRequest {
            header: ask,
            inputs,
            graph: graph.clone(),
            steps,
            streamed: false,
            whole: model.is_whole(),
            came,
            limits,
            live,
            on_answer,
            ended: None,
            pieces: Vec::new(),
            orphaned: false,
        };
        let accepted = self.0.table.lock().insert(pending, came);
        let (header, scheduler) =
            accepted.inspect_err(|failure| model.counts.metrics.on_not_accepted(failure.ending()))?;
        if let Some(scheduler) = scheduler {
            self.0.send_request(&scheduler, (header, graph));
        }
        Ok(header.request)
    }

    /// Cancels a request whose client no longer waits. Does nothing if it has been answered.
    pub fn cancel(&self, request: u64) {
        if let Some(due) = self.0.remove(request, Failure::Cancelled) {
            due.answer();
        }
    }

    /// Returns the counters of a model, for requests of this frontend.
    pub fn model(&self, id: ModelId) -> Option<ModelSnapshot> {
        self.0.models.read().get(id).map(|model| model.counts.snapshot())
    }

    /// Returns the time of a request that passes neither in the scheduler nor on a device; `None`
    /// before the first answer.
    pub fn way(&self) -> Option<DelayPercentiles> {
        self.0.table.lock().way()
    }

    /// Returns a sentence for each model of which requests were refused in the last seconds, since
    /// a link of the frontend is too slow for its SLO.
    pub fn slow_links(&self) -> Vec<String> {
        let (models, table, now) = (self.0.models.read().served(), self.0.table.lock(), Instant::now());
        let says = |(id, name, slo): &(ModelId, String, Nanos)| {
            let (link, takes) = table.slow_link(*id, now)?;
            let [takes, slo] = [takes.as_secs_f64() * 1e3, slo.as_millis_f64()].map(f64::ceil);
            Some(format!(
                "requests of {name} are refused: {link} take {takes} ms, and its SLO is {slo} ms. Move the frontend \
                 nearer, or raise slo_ms in its model.toml"
            ))
        };
        models.iter().filter_map(says).collect()
    }

    /// Returns the number of the primary's devices that serve, or served a moment ago.
    pub fn serving_devices(&self) -> usize {
        self.0.devices.load(Ordering::Relaxed) as usize
    }

    /// Refuses new jobs and waits until all accepted ones are answered. After `timeout` it fails
    /// the rest and returns false.
    pub fn drain(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        self.0.table.lock().closed = true;
        while Instant::now() < until {
            if self.0.table.lock().len() == 0 {
                return true;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let left = self.0.table.lock().fail_all();
        let all = left.is_empty();
        left.into_iter().for_each(CompletedRequest::answer);
        all
    }

    /// Ends all connections for good.
    pub fn close(&self) {
        *self.0.stop.lock() = true;
        self.0.listener.close();
        self.0.stopped.notify_all();
        self.0.links.lock().iter().for_each(|link| link.close());
        let lost = self.0.table.lock().fail_without_scheduler();
        lost.into_iter().for_each(CompletedRequest::answer);
    }
}

impl FrontendShared {
    /// Waits for at most `span`; returns true once the frontend is closed.
    fn is_stopped_within(&self, span: Duration) -> bool {
        let mut stop = self.stop.lock();
        if !*stop {
            self.stopped.wait_for(&mut stop, span);
        }
        *stop
    }

    fn expire_requests(&self) {
        while !self.is_stopped_within(EXPIRY_INTERVAL) {
            let now = Instant::now();
            let mut table = self.table.lock();
            let mut late = table.expire(now);
            if table.is_abandoned(now) {
                self.devices.store(0, Ordering::Relaxed);
                late.extend(table.fail_without_scheduler());
            }
            drop(table);
            late.into_iter().for_each(CompletedRequest::answer);
        }
    }

    /// Sends a request to a scheduler, by the scheduler's id of the model.
    fn send_request(&self, scheduler: &PeerLink, (ask, graph): Resubmission) {
        let model = self.models.read().get(ask.model);
        match model {
            Some(model) => {
                let header = RequestHeader { model: model.id, ..ask };
                scheduler.send(&match graph {
                    Some(graph) => Message::SubmitGraph(header, graph),
                    None => Message::Submit(header),
                });
            }
            None => {
                let due = self.table.lock().complete(ask.request, Err(Failure::Unloaded));
                if let Some(due) = due {
                    due.answer();
                }
            }
        }
    }

    /// Completes a request with a failure, and cancels it at the scheduler, which may still hold
    /// parts of it.
    fn remove(&self, request: u64, failure: Failure) -> Option<CompletedRequest> {
        let mut table = self.table.lock();
        let due = table.complete(request, Err(failure))?;
        if let Some(scheduler) = table.scheduler() {
            scheduler.send(&Message::CancelRequest(request));
        }
        Some(due)
    }

    /// Answers a request that has ended here, and cancels it at the scheduler.
    fn cancel_ended(&self, request: u64, ended: Option<CompletedRequest>) {
        let Some(ended) = ended else { return };
        let scheduler = self.table.lock().scheduler();
        if let Some(scheduler) = scheduler {
            scheduler.send(&Message::CancelRequest(request));
        }
        ended.answer();
    }
}
