//! The frontend's role: takes jobs as an engine does, and has them decided and run elsewhere.
//!
//! Threads: for each scheduler one keeps the connection and reads what it says ([`follow`]); one takes connections of
//! backends, each of which has one that reads; one looks after requests whose time is over. They share the table of
//! requests. Nobody is answered with its lock held.

mod data;
mod follow;
mod models;
mod table;

use crate::description::Description;
use crate::fresh;
use crate::plane::{Ask, Link, Listener, Message, Transport};
use models::Models;
use parking_lot::{Condvar, Mutex, RwLock};
use ripieno_base::ModelId;
use ripieno_runtime::{Failure, Job, ModelSnapshot, Refused};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use table::{Due, Pending, Table};

/// How often requests are looked at whose time is over.
const LOOK: Duration = Duration::from_millis(100);

/// Hears which models there are, by the ids that jobs name.
pub type OnModels = Box<dyn Fn(&[(ModelId, Description)]) + Send + Sync>;

/// What a frontend is to know.
pub struct FrontendConfig {
    /// The addresses of all schedulers.
    pub schedulers: Vec<String>,
    /// Where backends fetch inputs and leave outputs.
    pub data: SocketAddr,
    /// The address of that as backends see it; where none is given, the port on the address that the scheduler sees.
    pub advertised: Option<String>,
    /// The most requests that wait for their answer.
    pub max_live: u32,
}

/// Takes requests.
#[derive(Clone)]
pub struct Frontend(Arc<Shared>);

/// What a thread does.
type Work = Box<dyn FnOnce(&Arc<Shared>) + Send>;

struct Shared {
    transport: Arc<dyn Transport>,
    /// What schedulers and backends call it.
    id: u32,
    advertised: String,
    door: Arc<dyn Listener>,
    table: Mutex<Table>,
    models: RwLock<Models>,
    on_models: OnModels,
    /// Connections to schedulers.
    links: Mutex<Vec<Arc<Link>>>,
    /// Devices that serve.
    devices: AtomicU32,
    /// Numbers of backends' connections.
    connections: AtomicU64,
    /// How many there are.
    backends: AtomicUsize,
    stop: Mutex<bool>,
    stopped: Condvar,
}

impl Frontend {
    /// Connects to the schedulers, again and again if need be, and listens for backends.
    pub fn start(transport: Arc<dyn Transport>, config: FrontendConfig, on_models: OnModels) -> io::Result<Frontend> {
        let FrontendConfig { schedulers, data, advertised, max_live } = config;
        let door = transport.listen(data)?;
        let own = door.address();
        let by_itself = || if own.ip().is_unspecified() { format!(":{}", own.port()) } else { own.to_string() };
        let shared = Arc::new(Shared {
            transport,
            id: (fresh() >> 32) as u32,
            advertised: advertised.unwrap_or_else(by_itself),
            door,
            table: Mutex::new(Table::new(max_live)),
            models: RwLock::default(),
            on_models,
            links: Mutex::default(),
            devices: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            backends: AtomicUsize::new(0),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let spawn = |name: &str, work: Work| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared)).map(drop)
        };
        spawn("frontend-door", Box::new(data::take_all))?;
        for scheduler in schedulers {
            spawn("frontend-follow", Box::new(move |shared| shared.follow(&scheduler)))?;
        }
        spawn("frontend-late", Box::new(|shared| shared.look_after_late()))?;
        Ok(Frontend(shared))
    }

    /// Where backends connect to.
    pub fn data_address(&self) -> SocketAddr {
        self.0.door.address()
    }

    /// As [`Engine::submit`](ripieno_runtime::Engine::submit): accepts a job, which is answered exactly once, or
    /// refuses it. Its number is for [`Frontend::withdraw`].
    pub fn submit(&self, job: Job) -> Result<u64, Refused> {
        let came = Instant::now();
        let model = self.0.models.read().get(job.model).ok_or(Refused::NotLoaded)?;
        let invalid = |text: String| Refused::Invalid(text);
        let (extent, _) = model.loaded().describe(&job.inputs).map_err(|error| invalid(error.to_string()))?;
        let rows = u32::try_from(job.rows).map_err(|_| invalid(format!("{} rows in one request", job.rows)))?;
        let bytes = job.inputs.iter().map(|input| input.data.len() as u64).sum();
        let ask = Ask {
            request: 0,
            model: job.model,
            client: job.client,
            priority: job.priority,
            rows,
            length: extent.length,
            bytes,
            left_ns: job.timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)),
            sizes: model.open.sizes(&job.inputs),
        };
        let expires = model.expires(came, job.timeout);
        let (inputs, on_answer, live) = (job.inputs, job.on_answer, model.counts.enter());
        let (ended, pieces, orphan) = (None, Vec::new(), false);
        let pending = Pending { ask, inputs, came, expires, live, on_answer, ended, pieces, orphan };
        let accepted = self.0.table.lock().insert(pending, came);
        let (request, scheduler) = accepted.inspect_err(|_| model.counts.metrics.on_refused())?;
        if let Some(scheduler) = scheduler {
            self.0.ask(&scheduler, Ask { request, ..ask });
        }
        Ok(request)
    }

    /// Nobody waits for a request any more; nothing happens if it has been answered.
    pub fn withdraw(&self, request: u64) {
        self.0.withdraw(request, Failure::Cancelled).into_iter().for_each(Due::answer);
    }

    /// The numbers of a model, of this front end's requests.
    pub fn model(&self, id: ModelId) -> Option<ModelSnapshot> {
        self.0.models.read().get(id).map(|model| model.counts.snapshot())
    }

    /// Whether a scheduler is there that has a device, or was there a moment ago.
    pub fn serves(&self) -> bool {
        self.0.devices.load(Ordering::Relaxed) > 0
    }

    /// Refuses new jobs and waits until all accepted ones are answered, which they are after `timeout`; then false.
    pub fn drain(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        self.0.table.lock().closed = true;
        while Instant::now() < until {
            if self.0.table.lock().len() == 0 {
                return true;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let left = self.0.table.lock().dismiss();
        let all = left.is_empty();
        left.into_iter().for_each(Due::answer);
        all
    }

    /// Ends all connections, for good.
    pub fn close(&self) {
        *self.0.stop.lock() = true;
        self.0.door.close();
        self.0.stopped.notify_all();
        self.0.links.lock().iter().for_each(|link| link.close());
        let lost = self.0.table.lock().give_up();
        lost.into_iter().for_each(Due::answer);
    }
}

impl Shared {
    /// Waits; true once the front end is closed.
    fn is_stopped_within(&self, span: Duration) -> bool {
        let mut stop = self.stop.lock();
        if !*stop {
            self.stopped.wait_for(&mut stop, span);
        }
        *stop
    }

    fn look_after_late(&self) {
        while !self.is_stopped_within(LOOK) {
            let now = Instant::now();
            let mut table = self.table.lock();
            let mut late = table.expire(now);
            if table.is_abandoned(now) {
                self.devices.store(0, Ordering::Relaxed);
                late.extend(table.give_up());
            }
            drop(table);
            late.into_iter().for_each(Due::answer);
        }
    }

    /// Asks a scheduler for a request, by its own id of the model.
    fn ask(&self, scheduler: &Link, ask: Ask) {
        let model = self.models.read().get(ask.model);
        match model {
            Some(model) => scheduler.send(&Message::Ask(Ask { model: model.id, ..ask })),
            None => {
                let due = self.table.lock().take(ask.request, Err(Failure::Unloaded));
                due.into_iter().for_each(Due::answer);
            }
        }
    }

    /// Takes a request out, of which the scheduler may yet have parts.
    fn withdraw(&self, request: u64, failure: Failure) -> Option<Due> {
        let mut table = self.table.lock();
        let due = table.take(request, Err(failure))?;
        table.scheduler().iter().for_each(|scheduler| scheduler.send(&Message::Withdraw(request)));
        Some(due)
    }
}
