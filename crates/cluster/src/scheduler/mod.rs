//! The scheduler's role: an engine whose devices are backends elsewhere, and whose requests come from frontends
//! elsewhere.
//!
//! Of several schedulers with one store of the epoch one is the primary ([`leadership`]); the others are spares, with the same
//! connections and an engine that has no device yet. The first backend tells what models there are; then the engine
//! starts, with the policy that suits them. When this scheduler becomes the primary it claims all backends, and each is a
//! device of the engine from when it runs nothing of earlier epochs until its connection ends. Each connection has a
//! thread that reads; what is sent waits in its [`Link`]. One lock stands over who is there, so that a backend hears of
//! each front end before it is given a request of it.

mod backends;
mod device;
mod frontends;
mod leadership;
mod spares;
mod store_thread;

use crate::description::Description;
use crate::fresh;
use crate::handover::store::EpochStore;
use crate::handover::{Epoch, Process, Timing};
use crate::plane::{Garbled, Greeting, Link, LinkBounds, Listener, Message, Reader, Role, Stream, Transport, welcome};
use backends::Backend;
use frontends::Frontend;
use leadership::Leadership;
use parking_lot::Mutex;
use ripieno_base::ModelId;
use ripieno_runtime::{DeviceState, Engine};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The most connections at once.
const MOST_PEERS: usize = 4096;

/// An engine that has no device yet, and what its devices need.
pub struct Started {
    /// The engine.
    pub engine: Engine,
    /// The most tasks on each lane of a device.
    pub depth: usize,
}

/// Starts an engine for these models, which it has yet to load.
pub type Start = Box<dyn Fn(&[Description]) -> Result<Started, String> + Send + Sync>;

/// Hears of the engine and its models, once they are there; and of none when they are not served any more.
pub type OnServing = Box<dyn Fn(Option<(&Engine, &[(ModelId, Description)])>) + Send + Sync>;

/// What a scheduler is to know.
pub struct SchedulerConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where all schedulers listen; itself may be among them.
    pub schedulers: Vec<String>,
    /// The epoch, the same for all of them.
    pub store: Box<dyn EpochStore>,
    /// How long whoever waits for whom.
    pub timing: Timing,
    /// Starts the engine.
    pub start: Start,
    /// Hears of it.
    pub on_serving: OnServing,
}

/// A scheduler that listens.
pub struct Scheduler {
    shared: Arc<Shared>,
    listener: Arc<dyn Listener>,
}

struct Shared {
    start: Start,
    on_serving: OnServing,
    leadership: Leadership,
    peers: Mutex<Peers>,
    connections: AtomicUsize,
    closed: AtomicBool,
}

/// Who is there.
#[derive(Default)]
struct Peers {
    /// Of all of them, and of those who have not yet said who they are.
    links: Vec<Arc<Link>>,
    served: Option<Arc<Served>>,
    frontends: BTreeMap<u32, Arc<Frontend>>,
    backends: BTreeMap<Process, Backend>,
    /// Those that listen to this one.
    schedulers: BTreeMap<Process, Arc<Link>>,
}

/// What is served.
struct Served {
    engine: Engine,
    depth: usize,
    models: Vec<(ModelId, Description)>,
}

impl Scheduler {
    /// Listens for frontends and backends from now on, as a spare until it is the primary.
    pub fn start(transport: Arc<dyn Transport>, config: SchedulerConfig) -> io::Result<Scheduler> {
        let SchedulerConfig { listen, schedulers, store, timing, start, on_serving } = config;
        let listener = transport.listen(listen)?;
        let shared = Arc::new(Shared {
            start,
            on_serving,
            leadership: Leadership::new(Process(fresh()), timing),
            peers: Mutex::default(),
            connections: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        shared.start_election(store)?;
        let (door, takes) = (Arc::clone(&listener), Arc::clone(&shared));
        thread::Builder::new().name("scheduler-door".to_owned()).spawn(move || takes.take_all(&*door))?;
        for address in schedulers {
            Arc::clone(&shared).listen_to(Arc::clone(&transport), address)?;
        }
        Ok(Scheduler { shared, listener })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The engine, once a backend has come.
    pub fn engine(&self) -> Option<Engine> {
        self.shared.peers.lock().served.as_ref().map(|served| served.engine.clone())
    }

    /// What others call it.
    pub fn process(&self) -> Process {
        self.shared.leadership.me
    }

    /// Whether it is the primary.
    pub fn is_primary(&self) -> bool {
        self.shared.leadership.is_primary()
    }

    /// Whether it does its part: it is the primary, or a spare that hears one.
    pub fn knows_primary(&self) -> bool {
        self.shared.leadership.knows_primary()
    }

    /// Takes no further connection and ends all that there are.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.shared.leadership.close();
        self.listener.close();
        self.shared.peers.lock().links.iter().for_each(|link| link.close());
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn take_all(self: Arc<Shared>, door: &dyn Listener) {
        loop {
            match door.accept() {
                Ok(Some(stream)) => self.take(stream),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Serves a connection on a thread of its own.
    fn take(self: &Arc<Shared>, stream: Arc<dyn Stream>) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= MOST_PEERS {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return stream.close();
        }
        let shared = Arc::clone(self);
        let serve = move || {
            let peer = stream.peer();
            if let Err(error) = shared.serve(&stream) {
                tracing::info!(?peer, %error, "a connection has ended");
            }
            stream.close();
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = thread::Builder::new().name("scheduler-peer".to_owned()).spawn(serve) {
            tracing::error!(%error, "no thread for a connection");
        }
    }

    fn serve(self: &Arc<Shared>, stream: &Arc<dyn Stream>) -> io::Result<()> {
        let own = Greeting::new(Role::Scheduler, self.leadership.epoch());
        let all = [Role::Frontend, Role::Scheduler, Role::Backend];
        let greeting = welcome(&**stream, own, &all).map_err(io::Error::other)?;
        self.tell(|machine, now, out| machine.on_epoch(now, Epoch(greeting.epoch), out));
        let link = Link::start(Arc::clone(stream), LinkBounds::CONTROL, "scheduler-send")?;
        let mut reader = Reader::new(Arc::clone(stream), Link::SILENCE);
        self.keep(&link);
        let outcome = match greeting.role {
            Role::Backend => self.serve_backend(&link, &mut reader),
            Role::Frontend => self.serve_frontend(&link, stream.peer(), &mut reader),
            Role::Scheduler => self.serve_scheduler(&link, &mut reader),
        };
        link.close();
        self.peers.lock().links.retain(|other| !Arc::ptr_eq(other, &link));
        outcome
    }

    /// Whoever closes all connections closes this one, too, from now on.
    fn keep(&self, link: &Arc<Link>) {
        let mut peers = self.peers.lock();
        peers.links.push(Arc::clone(link));
        if self.closed.load(Ordering::Relaxed) {
            link.close();
        }
    }

    /// Tells the frontends how many devices serve.
    fn count_devices(&self) {
        let peers = self.peers.lock();
        let message = Message::Devices(peers.serving());
        peers.frontends.values().for_each(|frontend| frontend.link.send(&message));
    }
}

impl Peers {
    /// Where somebody is reached, in whatever role.
    fn link(&self, process: Process) -> Option<Arc<Link>> {
        let frontend = || Some(&self.frontends.get(&u32::try_from(process.0).ok()?)?.link);
        let backend = || self.backends.get(&process).map(|backend| &backend.link);
        self.schedulers.get(&process).or_else(backend).or_else(frontend).cloned()
    }

    fn serving(&self) -> u32 {
        let devices = self.served.as_ref().map(|served| served.engine.device_metrics()).unwrap_or_default();
        devices.iter().filter(|device| device.state == DeviceState::Serving).count() as u32
    }

    fn models(&self) -> Option<Message> {
        let served = self.served.as_ref()?;
        let models: Vec<(u16, &Description)> = served.models.iter().map(|(id, model)| (id.0, model)).collect();
        // Descriptions came as JSON.
        serde_json::to_string(&models).ok().map(Message::Models)
    }
}

/// What a peer says that is not its part to say.
fn unexpected(message: &Message) -> io::Error {
    let text = format!("{message:?}");
    Garbled(format!("it is not for this role to say {}", text.split([' ', '(']).next().unwrap_or_default())).into()
}
