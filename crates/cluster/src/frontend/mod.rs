//! The frontend's role: takes jobs as an engine does, and has them decided and run elsewhere.
//!
//! Threads: one keeps the connection to the scheduler and reads what it says; one takes connections of backends, each
//! of which has one that reads; one looks after requests whose time is over. They share the table of requests. Nobody
//! is answered with its lock held.

mod data;
mod models;
mod table;

use crate::description::{self, Description};
use crate::plane::{
    Ask, Garbled, Greeting, Link, LinkBounds, Listener, Message, Reader, Role, Transport, Unwelcome, greet,
};
use models::Models;
use parking_lot::{Condvar, Mutex, RwLock};
use ripieno_base::ModelId;
use ripieno_runtime::{Job, ModelSnapshot, Refused};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use table::{Due, Pending, Table};

const CONNECT: Duration = Duration::from_secs(2);
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(2);
/// How often requests are looked at whose time is over.
const LOOK: Duration = Duration::from_millis(100);

/// Hears which models there are, by the ids that jobs name.
pub type OnModels = Box<dyn Fn(&[(ModelId, Description)]) + Send + Sync>;

/// What a frontend is to know.
pub struct FrontendConfig {
    /// The address of the scheduler.
    pub scheduler: String,
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

struct Shared {
    transport: Arc<dyn Transport>,
    scheduler: String,
    advertised: String,
    door: Arc<dyn Listener>,
    table: Mutex<Table>,
    models: RwLock<Models>,
    on_models: OnModels,
    /// The highest epoch seen.
    epoch: AtomicU64,
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
    /// Connects to the scheduler, again and again if need be, and listens for backends.
    pub fn start(transport: Arc<dyn Transport>, config: FrontendConfig, on_models: OnModels) -> io::Result<Frontend> {
        let FrontendConfig { scheduler, data, advertised, max_live } = config;
        let door = transport.listen(data)?;
        let own = door.address();
        let by_itself = || if own.ip().is_unspecified() { format!(":{}", own.port()) } else { own.to_string() };
        let shared = Arc::new(Shared {
            transport,
            scheduler,
            advertised: advertised.unwrap_or_else(by_itself),
            door,
            table: Mutex::new(Table::new(max_live)),
            models: RwLock::default(),
            on_models,
            epoch: AtomicU64::new(0),
            devices: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            backends: AtomicUsize::new(0),
            stop: Mutex::new(false),
            stopped: Condvar::new(),
        });
        let spawn = |name: &str, work: fn(&Arc<Shared>)| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(name.to_owned()).spawn(move || work(&shared)).map(drop)
        };
        spawn("frontend-door", data::take_all)?;
        spawn("frontend-hear", |shared| shared.follow())?;
        spawn("frontend-late", |shared| shared.look_after_late())?;
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
            model: model.id,
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
        let pending = Pending { inputs, rows, came, expires, live, on_answer, ended: None, pieces: Vec::new() };
        let accepted = self.0.table.lock().insert(pending, &model.scheduler);
        let request = accepted.inspect_err(|_| model.counts.metrics.on_refused())?;
        model.scheduler.send(&Message::Ask(Ask { request, ..ask }));
        Ok(request)
    }

    /// Nobody waits for a request any more; nothing happens if it has been answered.
    pub fn withdraw(&self, request: u64) {
        let mut table = self.0.table.lock();
        let (due, scheduler) = (table.take(request, Err(ripieno_runtime::Failure::Cancelled)), table.scheduler.clone());
        drop(table);
        if let Some(due) = due {
            scheduler.iter().for_each(|scheduler| scheduler.send(&Message::Withdraw(request)));
            due.answer();
        }
    }

    /// The numbers of a model, of this front end's requests.
    pub fn model(&self, id: ModelId) -> Option<ModelSnapshot> {
        self.0.models.read().get(id).map(|model| model.counts.snapshot())
    }

    /// Whether a scheduler is there that has a device.
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
        let scheduler = self.0.table.lock().scheduler.clone();
        scheduler.iter().for_each(|scheduler| scheduler.close());
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
            let late = self.table.lock().expire(Instant::now());
            late.into_iter().for_each(Due::answer);
        }
    }

    /// Keeps up the connection to the scheduler.
    fn follow(&self) {
        let (mut again, mut said) = (AGAIN_MIN, String::new());
        loop {
            let before = self.epoch.load(Ordering::Relaxed);
            let Err(error) = self.session();
            self.lose_scheduler();
            let cause = error.to_string();
            if self.is_stopped_within(Duration::ZERO) {
                return;
            }
            if cause != said {
                tracing::warn!(scheduler = self.scheduler, "{cause}; connecting again");
                said = cause;
            }
            let met_another = self.epoch.load(Ordering::Relaxed) != before;
            again = if met_another { AGAIN_MIN } else { (again * 2).min(AGAIN_MAX) };
            if self.is_stopped_within(again) {
                return;
            }
        }
    }

    /// One connection, until it ends.
    fn session(&self) -> Result<std::convert::Infallible, Unwelcome> {
        let stream = self.transport.connect(&self.scheduler, CONNECT)?;
        let own = Greeting::new(Role::Frontend, self.epoch.load(Ordering::Relaxed));
        let greeting = greet(&*stream, own, Role::Scheduler).inspect_err(|_| stream.close())?;
        self.epoch.fetch_max(greeting.epoch, Ordering::Relaxed);
        let link = Link::start(Arc::clone(&stream), LinkBounds::CONTROL, "frontend-ask")?;
        link.send(&Message::DataAt(self.advertised.clone()));
        let mut reader = Reader::new(stream, Link::SILENCE);
        loop {
            let heard = reader.read().and_then(|message| self.hear(&link, message));
            if let Err(error) = heard {
                link.close();
                return Err(Unwelcome::Io(error));
            }
        }
    }

    fn hear(&self, link: &Arc<Link>, message: Message) -> io::Result<()> {
        match message {
            Message::Here => {}
            Message::End(end) => {
                let due = self.table.lock().end(end.request, end.answer, Instant::now());
                due.into_iter().for_each(Due::answer);
            }
            Message::Devices(serving) => self.devices.store(serving, Ordering::Relaxed),
            Message::Models(text) => {
                let models = description::read_served(&text).map_err(Garbled)?;
                let known = self.models.write().renew(models, link).map_err(Garbled)?;
                (self.on_models)(&known);
                // Only now: before, nobody could name them.
                self.table.lock().scheduler = Some(Arc::clone(link));
            }
            Message::Refused(cause) => return Err(io::Error::other(format!("the scheduler refuses: {cause}"))),
            other => return Err(Garbled(format!("a scheduler does not say {other:?}")).into()),
        }
        Ok(())
    }

    fn lose_scheduler(&self) {
        self.devices.store(0, Ordering::Relaxed);
        let lost = self.table.lock().lose_scheduler();
        lost.into_iter().for_each(Due::answer);
    }
}
