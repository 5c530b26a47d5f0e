//! The backend role: one device of an executor that runs the tasks of a remote scheduler.
//!
//! It is connected to all schedulers and follows the one with the latest claim ([`sessions`]). Each
//! claim begins a session with a fresh device. Tasks of the earlier claim run to their end and
//! their outputs go to the frontends. The new scheduler receives a report of them and sends nothing
//! before they have ended. So a device that hangs keeps its backend out of service, as it should.
//! The end of a scheduler's connection changes nothing: its tasks still run.

mod models;
mod planned;
mod session;
mod sessions;
mod slots;
mod source;
mod tasks;
mod usage;

use crate::handover::{Epoch, ProcessId, Stamp};
use crate::plane::{
    Handshake, HandshakeError, LinkBounds, Message, MessageReader, PeerLink, Role, Transport, connect_handshake,
};
pub use models::{BackendModel, BackendModels, ModelCalls};
use parking_lot::{Condvar, Mutex};
pub use planned::PlannedModels;
use ripieno_executor::Executor;
use sessions::SessionManager;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, Scope};
use std::time::Duration;
pub use usage::DeviceUsage;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The first and the longest wait before connecting again.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_millis(250);
/// The wait after a refusal, which holds until models or settings change.
const RECONNECT_REFUSED: Duration = Duration::from_secs(1);

/// Callback for accepted orders: the claim, its scheduler, and true for the claim itself, false for
/// a task under it.
pub type OnOrder = Arc<dyn Fn(Stamp, ProcessId, bool) + Send + Sync>;

/// A backend that is not connected yet.
pub struct Backend {
    /// The transport between machines.
    pub transport: Arc<dyn Transport>,
    /// Addresses of all schedulers.
    pub schedulers: Vec<String>,
    /// The executor that opens the device; it has loaded the models.
    pub executor: Arc<dyn Executor>,
    /// The largest number of tasks on each of its lanes.
    pub depth: usize,
    /// The models, which the devices of a process share.
    pub models: Arc<BackendModels>,
    /// Calls to load and unload models; `None` if its models stay as they are.
    pub calls: Option<Arc<ModelCalls>>,
    /// Loads and unloads models as a plan says; `None` if the backend follows no plan.
    pub planned: Option<Arc<PlannedModels>>,
    /// Claims of earlier epochs are refused.
    pub epoch: Epoch,
    /// Callback for accepted orders.
    pub on_order: Option<OnOrder>,
    /// Counters of its device.
    pub usage: Arc<DeviceUsage>,
}

/// Asks a backend to stop.
#[derive(Default)]
pub struct StopSignal {
    state: Mutex<StopState>,
    changed: Condvar,
}

#[derive(Default)]
struct StopState {
    requested: bool,
    /// True if the stop is to be like a crash.
    aborted: bool,
    links: Vec<Arc<PeerLink>>,
    /// Reason for which the last connection to each scheduler ended.
    causes: BTreeMap<String, String>,
}

impl StopSignal {
    /// Makes the backend leave: it starts no further task, finishes those that run, and ends.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.requested = true;
        state.links.iter().for_each(|link| link.send(&Message::Leave));
        self.changed.notify_all();
    }

    /// Closes its connections immediately, as a crash would.
    pub fn abort(&self) {
        let mut state = self.state.lock();
        (state.requested, state.aborted) = (true, true);
        state.links.iter().for_each(|link| link.close());
        self.changed.notify_all();
    }

    /// Returns true if a scheduler has accepted it and no stop is requested.
    pub fn is_connected(&self) -> bool {
        let state = self.state.lock();
        !state.requested && state.links.iter().any(|link| !link.is_closed())
    }

    /// Returns why no scheduler has the backend: a scheduler's address, and how the last connection
    /// to it ended. Returns `None` while one has it, and before the first attempt.
    pub fn waits_for(&self) -> Option<(String, String)> {
        let state = self.state.lock();
        if state.links.iter().any(|link| !link.is_closed()) {
            return None;
        }
        state.causes.first_key_value().map(|(scheduler, cause)| (scheduler.clone(), cause.clone()))
    }

    /// Keeps the reason for which the last connection to a scheduler ended.
    fn note(&self, scheduler: &str, cause: &str) {
        self.state.lock().causes.insert(scheduler.to_owned(), cause.to_owned());
    }

    fn is_aborted(&self) -> bool {
        self.state.lock().aborted
    }

    fn is_requested(&self) -> bool {
        self.state.lock().requested
    }

    /// Registers a connection; returns false if the stop is requested already.
    fn register(&self, link: &Arc<PeerLink>) -> bool {
        let mut state = self.state.lock();
        state.links.push(Arc::clone(link));
        !state.requested
    }

    /// Unregisters a connection.
    fn unregister(&self, link: &Arc<PeerLink>) {
        self.state.lock().links.retain(|other| !Arc::ptr_eq(other, link));
    }

    fn wait(&self, span: Duration) {
        let mut state = self.state.lock();
        if !state.requested {
            self.changed.wait_for(&mut state, span);
        }
    }
}

impl Backend {
    /// Serves until the stop is requested, and reconnects whenever a connection ends.
    pub fn run(self, stop: &StopSignal) {
        let sessions = &SessionManager::new(self);
        thread::scope(|all| {
            // Dropped at the end of the followers.
            let (_following, over) = channel();
            let watch = move || sessions.watch_inputs(&over);
            spawn_named(all, "backend-inputs", watch);
            thread::scope(|following| {
                for scheduler in &sessions.backend.schedulers {
                    spawn_named(following, "backend-follow", move || sessions.follow(scheduler, stop));
                }
            });
        });
        sessions.close(stop.is_aborted());
    }
}

/// Runs on a thread of this name until the end of the scope.
fn spawn_named<'scope>(scope: &'scope Scope<'scope, '_>, name: &str, run: impl FnOnce() + Send + 'scope) {
    if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, run) {
        tracing::error!(%error, "no thread for '{name}'");
    }
}

impl SessionManager {
    /// Keeps a connection to a scheduler until the stop is requested.
    fn follow(self: &Arc<SessionManager>, scheduler: &str, stop: &StopSignal) {
        let (mut again, mut said) = (RECONNECT_MIN, String::new());
        while !stop.is_requested() {
            let (stood, ended) = self.connection(scheduler, stop);
            let refused =
                matches!(&ended, Err(HandshakeError::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied);
            let cause = ended.map_or_else(|error| error.to_string(), |()| "the connection has ended".to_owned());
            stop.note(scheduler, &cause);
            if !stop.is_requested() && cause != said {
                tracing::warn!(scheduler, "{cause}; connecting again");
                said = cause;
            }
            again = if stood { RECONNECT_MIN } else { (again * 2).min(RECONNECT_MAX) };
            stop.wait(if refused { RECONNECT_REFUSED } else { again });
        }
    }

    /// Serves one connection. Returns whether it was established, and how it ended.
    fn connection(
        self: &Arc<SessionManager>,
        scheduler: &str,
        stop: &StopSignal,
    ) -> (bool, Result<(), HandshakeError>) {
        let (link, mut reader) = match self.connect(scheduler) {
            Ok(connected) => connected,
            Err(error) => return (false, Err(error)),
        };
        if !stop.register(&link) {
            link.close();
        }
        let mut stood = false;
        let ended = self.serve_connection(&link, &mut reader, &mut stood);
        stop.unregister(&link);
        link.close();
        (stood, ended.map_err(HandshakeError::Io))
    }

    fn connect(&self, scheduler: &str) -> Result<(Arc<PeerLink>, MessageReader), HandshakeError> {
        let stream = self.backend.transport.connect(scheduler, CONNECT_TIMEOUT)?;
        let own = Handshake::new(Role::Backend, self.epoch().0);
        let theirs = connect_handshake(&*stream, own, Role::Scheduler).inspect_err(|_| stream.close())?;
        let link = PeerLink::start(Arc::clone(&stream), LinkBounds::CONTROL, "backend-send")?;
        self.backend.models.register(&link, theirs.revision, self.backend.depth as u32, self.number);
        Ok((link, MessageReader::new(stream, PeerLink::MAX_SILENCE)))
    }
}
