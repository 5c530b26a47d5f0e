//! The scheduler's role: an engine whose devices are backends elsewhere, and whose requests come from frontends
//! elsewhere.
//!
//! It begins with nothing. The first backend tells what models there are; then the engine starts, with the policy that
//! suits them, and from then on each backend is a device that joins, and is lost when its connection ends. Each
//! connection has a thread that reads; what is sent waits in its [`Link`]. One lock stands over who is there, so that a
//! backend hears of each front end before it is given a request of it.

mod backends;
mod device;
mod frontends;

use crate::description::Description;
use crate::plane::{Garbled, Greeting, Link, LinkBounds, Listener, Message, Reader, Role, Stream, Transport, welcome};
use parking_lot::Mutex;
use ripieno_base::ModelId;
use ripieno_runtime::{DeviceState, Engine};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;

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

/// Hears of the engine and its models, once they are there.
pub type OnServing = Box<dyn Fn(&Engine, &[(ModelId, Description)]) + Send + Sync>;

/// A scheduler that listens.
pub struct Scheduler {
    shared: Arc<Shared>,
    listener: Arc<dyn Listener>,
}

struct Shared {
    greeting: Greeting,
    start: Start,
    on_serving: OnServing,
    peers: Mutex<Peers>,
    /// Ids of peers.
    next: AtomicU32,
    connections: AtomicUsize,
}

/// Who is there.
#[derive(Default)]
struct Peers {
    served: Option<Arc<Served>>,
    frontends: BTreeMap<u32, Frontend>,
    backends: BTreeMap<u32, Arc<Link>>,
}

struct Frontend {
    link: Arc<Link>,
    /// Where its inputs are.
    address: String,
}

/// What is served.
struct Served {
    engine: Engine,
    depth: usize,
    models: Vec<(ModelId, Description)>,
}

impl Scheduler {
    /// Listens for frontends and backends from now on, as the scheduler of this epoch.
    pub fn start(
        transport: &dyn Transport,
        address: SocketAddr,
        epoch: u64,
        start: Start,
        on_serving: OnServing,
    ) -> io::Result<Scheduler> {
        let listener = transport.listen(address)?;
        let greeting = Greeting::new(Role::Scheduler, epoch);
        let (next, connections) = (AtomicU32::new(1), AtomicUsize::new(0));
        let shared = Arc::new(Shared { greeting, start, on_serving, peers: Mutex::default(), next, connections });
        let (door, takes) = (Arc::clone(&listener), Arc::clone(&shared));
        thread::Builder::new().name("scheduler-door".to_owned()).spawn(move || takes.take_all(&*door))?;
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

    /// Takes no further connection and ends all that there are.
    pub fn close(&self) {
        self.listener.close();
        let peers = self.shared.peers.lock();
        peers
            .frontends
            .values()
            .map(|frontend| &frontend.link)
            .chain(peers.backends.values())
            .for_each(|link| link.close());
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
                    thread::sleep(std::time::Duration::from_millis(100));
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
        let greeting = welcome(&**stream, self.greeting, &[Role::Frontend, Role::Backend]).map_err(io::Error::other)?;
        let link = Link::start(Arc::clone(stream), LinkBounds::CONTROL, "scheduler-send")?;
        let (id, mut reader) =
            (self.next.fetch_add(1, Ordering::Relaxed), Reader::new(Arc::clone(stream), Link::SILENCE));
        let outcome = match greeting.role {
            Role::Backend => self.serve_backend(id, &link, &mut reader),
            Role::Frontend => self.serve_frontend(id, &link, stream.peer(), &mut reader),
            Role::Scheduler => Ok(()),
        };
        link.close();
        outcome
    }

    /// Tells the frontends how many devices serve.
    fn count_devices(&self) {
        let peers = self.peers.lock();
        let message = Message::Devices(peers.serving());
        peers.frontends.values().for_each(|frontend| frontend.link.send(&message));
    }
}

impl Peers {
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
