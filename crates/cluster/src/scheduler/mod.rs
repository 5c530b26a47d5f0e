//! The scheduler role: an engine whose devices are remote backends and whose requests come from
//! remote frontends.
//!
//! Of several schedulers with a common epoch store one is the primary ([`leadership`]); the others
//! are spares, with the same connections and an engine without devices. The first backend
//! determines the policy, which suits its models; served is what all backends offer ([`releases`]).
//! A scheduler that becomes the primary claims all backends. Each is a device of the engine from
//! the time when nothing of earlier epochs runs on it until its connection ends. Each connection
//! has a reader thread; outgoing messages are enqueued in its [`PeerLink`]. One lock guards the set
//! of peers, so that a backend learns of each frontend before it receives a request of it.

mod backends;
mod calls;
mod device;
mod frontends;
mod leadership;
mod refusals;
mod releases;
mod spares;
mod store_thread;

use crate::description::ModelDescription;
use crate::handover::store::EpochStore;
use crate::handover::{Epoch, ProcessId, Timing};
use crate::offer::{OfferedModel, encode_served};
use crate::plane::{
    ByteStream, DecodeError, Handshake, LinkBounds, Listener, Message, MessageReader, PeerAddress, PeerLink, Role,
    Transport, accept_handshake,
};
use crate::random_id;
use backends::BackendPeer;
use calls::ModelCallTable;
use frontends::FrontendPeer;
use leadership::Leadership;
use parking_lot::Mutex;
use refusals::{NotAccepted, Refusals};
use releases::ReleaseTable;
use ripieno_base::ModelId;
use ripieno_runtime::{DeviceState, Engine};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The largest number of connections.
const MAX_PEERS: usize = 4096;

/// An engine without devices, and the depth that its devices need.
pub struct StartedEngine {
    /// The engine.
    pub engine: Engine,
    /// The largest number of tasks on each lane of a device.
    pub depth: usize,
}

/// Callback that starts an engine; the scheduler loads models afterwards.
pub type StartEngine = Box<dyn Fn() -> Result<StartedEngine, String> + Send + Sync>;

/// Callback for the engine and its models once they are served; `None` when they no longer are.
pub type OnServing = Box<dyn Fn(Option<(&Engine, &[(ModelId, ModelDescription)])>) + Send + Sync>;

/// Configuration of a scheduler.
pub struct SchedulerConfig {
    /// Listening address.
    pub listen: SocketAddr,
    /// Addresses of all schedulers; its own may be among them.
    pub schedulers: Vec<String>,
    /// The epoch store, the same for all schedulers.
    pub store: Box<dyn EpochStore>,
    /// The timeouts of the hand-over protocol.
    pub timing: Timing,
    /// Callback that starts the engine.
    pub start: StartEngine,
    /// Callback for the served models.
    pub on_serving: OnServing,
}

/// A running scheduler.
pub struct ClusterScheduler {
    shared: Arc<SchedulerShared>,
    listener: Arc<dyn Listener>,
}

struct SchedulerShared {
    start: StartEngine,
    on_serving: OnServing,
    leadership: Leadership,
    peers: Mutex<ConnectedPeers>,
    calls: Mutex<ModelCallTable>,
    connections: AtomicUsize,
    refusals: Refusals,
    /// Whether another scheduler has ever listened to this one.
    had_spare: AtomicBool,
    closed: AtomicBool,
}

/// The connected processes.
#[derive(Default)]
struct ConnectedPeers {
    /// All connections, also those whose peer has not yet registered.
    links: Vec<Arc<PeerLink>>,
    served: Option<Arc<ServedModels>>,
    frontends: BTreeMap<u32, Arc<FrontendPeer>>,
    backends: BTreeMap<ProcessId, BackendPeer>,
    /// Schedulers that receive heartbeats from this one.
    schedulers: BTreeMap<ProcessId, Arc<PeerLink>>,
}

/// The engine and its models.
struct ServedModels {
    engine: Engine,
    depth: usize,
    models: Mutex<ReleaseTable>,
}

impl ClusterScheduler {
    /// Listens for frontends and backends, as a spare until it becomes the primary.
    pub fn start(transport: Arc<dyn Transport>, config: SchedulerConfig) -> io::Result<ClusterScheduler> {
        let SchedulerConfig { listen, schedulers, store, timing, start, on_serving } = config;
        let listener = transport.listen(listen)?;
        let shared = Arc::new(SchedulerShared {
            start,
            on_serving,
            leadership: Leadership::new(ProcessId(random_id()), timing),
            peers: Mutex::default(),
            calls: Mutex::default(),
            connections: AtomicUsize::new(0),
            refusals: Refusals::default(),
            had_spare: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        shared.start_election(store)?;
        let (accepting, owner) = (Arc::clone(&listener), Arc::clone(&shared));
        thread::Builder::new()
            .name("scheduler-accept".to_owned())
            .spawn(move || owner.accept_connections(&*accepting))?;
        for address in schedulers {
            Arc::clone(&shared).listen_to(Arc::clone(&transport), address)?;
        }
        Ok(ClusterScheduler { shared, listener })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns the engine, once a backend has registered.
    pub fn engine(&self) -> Option<Engine> {
        self.shared.peers.lock().served.as_ref().map(|served| served.engine.clone())
    }

    /// Returns its id.
    pub fn process(&self) -> ProcessId {
        self.shared.leadership.me
    }

    /// Returns the number of times that it became the primary.
    pub fn elections(&self) -> u64 {
        self.shared.leadership.elections()
    }

    /// Returns true if it is the primary.
    pub fn is_primary(&self) -> bool {
        self.shared.leadership.is_primary()
    }

    /// Returns true if it is the primary, or a spare that receives heartbeats from one.
    pub fn knows_primary(&self) -> bool {
        self.shared.leadership.knows_primary()
    }

    /// Returns the number of other schedulers that listen to this one; `None` before the first.
    pub fn spares(&self) -> Option<usize> {
        let had_spare = self.shared.had_spare.load(Ordering::Relaxed);
        had_spare.then(|| self.shared.peers.lock().schedulers.len())
    }

    /// Returns the backends that were refused in the last seconds, each with the reason.
    pub fn refused(&self) -> Vec<String> {
        self.shared.refusals.backends()
    }

    /// Stops listening and ends all connections.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.shared.leadership.close();
        self.listener.close();
        self.shared.peers.lock().links.iter().for_each(|link| link.close());
    }
}

impl Drop for ClusterScheduler {
    fn drop(&mut self) {
        self.close();
    }
}

impl SchedulerShared {
    fn accept_connections(self: Arc<SchedulerShared>, listener: &dyn Listener) {
        loop {
            match listener.accept() {
                Ok(Some(stream)) => self.spawn_connection(stream),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Serves a connection on a thread of its own.
    fn spawn_connection(self: &Arc<SchedulerShared>, stream: Arc<dyn ByteStream>) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= MAX_PEERS {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return stream.close();
        }
        let shared = Arc::clone(self);
        let serve = move || {
            let peer = PeerAddress(stream.peer());
            if let Err(error) = shared.serve(&stream) {
                let again = error.get_ref().is_some_and(|cause| cause.is::<NotAccepted>())
                    && !shared.refusals.note(peer.0, &error.to_string(), false);
                if !again {
                    tracing::info!(%peer, "the connection of {peer} has ended: {error}");
                }
            }
            stream.close();
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = thread::Builder::new().name("scheduler-peer".to_owned()).spawn(serve) {
            tracing::error!(%error, "no thread for a connection");
        }
    }

    fn serve(self: &Arc<SchedulerShared>, stream: &Arc<dyn ByteStream>) -> io::Result<()> {
        let own = Handshake::new(Role::Scheduler, self.leadership.epoch());
        let all = [Role::Frontend, Role::Scheduler, Role::Backend];
        let greeting = accept_handshake(&**stream, own, &all).map_err(|error| NotAccepted::error(&error))?;
        self.update(|machine, now, out| machine.on_epoch(now, Epoch(greeting.epoch), out));
        let link = PeerLink::start(Arc::clone(stream), LinkBounds::CONTROL, "scheduler-send")?;
        let mut reader = MessageReader::new(Arc::clone(stream), PeerLink::MAX_SILENCE);
        self.register_link(&link);
        let outcome = match greeting.role {
            Role::Backend => self.serve_backend(&link, &mut reader),
            Role::Frontend => self.serve_frontend(&link, stream.peer(), &mut reader),
            Role::Scheduler => self.serve_scheduler(&link, &mut reader),
        };
        link.close();
        self.peers.lock().links.retain(|other| !Arc::ptr_eq(other, &link));
        outcome
    }

    /// Registers a connection, so that [`ClusterScheduler::close`] closes it.
    fn register_link(&self, link: &Arc<PeerLink>) {
        let mut peers = self.peers.lock();
        peers.links.push(Arc::clone(link));
        if self.closed.load(Ordering::Relaxed) {
            link.close();
        }
    }

    /// Sends the number of serving devices to all frontends.
    fn broadcast_device_count(&self) {
        let peers = self.peers.lock();
        let message = Message::Devices(peers.serving());
        peers.frontends.values().for_each(|frontend| frontend.link.send(&message));
    }
}

impl ConnectedPeers {
    /// Returns the connection to a process of any role.
    fn link(&self, process: ProcessId) -> Option<Arc<PeerLink>> {
        let frontend = || Some(&self.frontends.get(&u32::try_from(process.0).ok()?)?.link);
        let backend = || self.backends.get(&process).map(|backend| &backend.link);
        self.schedulers.get(&process).or_else(backend).or_else(frontend).cloned()
    }

    fn serving(&self) -> u32 {
        let devices = self.served.as_ref().map(|served| served.engine.device_metrics()).unwrap_or_default();
        devices.iter().filter(|device| device.state == DeviceState::Serving).count() as u32
    }

    /// Returns what each backend offers.
    fn offers(&self) -> Vec<Vec<OfferedModel>> {
        self.backends.values().map(|backend| backend.offers.lock().clone()).collect()
    }

    fn models(&self) -> Option<Message> {
        let served = self.served.as_ref()?;
        let listed = served.models.lock().listed();
        Some(Message::Models(encode_served(&listed).into()))
    }
}

/// Returns the error for a message that the peer's role must not send.
fn unexpected(message: &Message) -> io::Error {
    let text = format!("{message:?}");
    DecodeError(format!("it is not for this role to say {}", text.split([' ', '(']).next().unwrap_or_default())).into()
}
