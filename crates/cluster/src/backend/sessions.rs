//! The current scheduler session of a backend, earlier ones that still have running tasks, and the
//! frontends, which all sessions share.
//!
//! Lock order: the session state, the work of a session, the frontends.

use super::Backend;
use super::session::{SchedulerSession, SessionHost};
use super::source::{FrontendSource, RowReceiver};
use crate::handover::{ClaimOutcome, Epoch, Fence, ProcessId, RequestId, RunningRows, Stamp};
use crate::offer::decode_names;
use crate::plane::{DecodeError, LoadCall, Message, MessageReader, PeerLink, RunningReport};
use crate::random_id;
use parking_lot::Mutex;
use ripieno_executor::Tensor;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Longest pause before the next look for inputs that are late.
const INPUTS_CHECK: Duration = Duration::from_millis(25);

pub(super) struct SessionManager {
    own: Weak<SessionManager>,
    /// Number of the device, unique in the process.
    pub(super) number: u64,
    pub(super) backend: Backend,
    state: Mutex<SessionState>,
    frontends: Mutex<AnnouncedFrontends>,
}

/// The frontends that schedulers have announced, by id.
#[derive(Default)]
struct AnnouncedFrontends {
    by_id: HashMap<u32, AnnouncedFrontend>,
    /// Number of scheduler connections so far.
    connections: u64,
}

struct AnnouncedFrontend {
    source: Arc<FrontendSource>,
    /// The scheduler connections on which the frontend is connected, as far as is known. A spare
    /// may reach a frontend that the primary has lost.
    by: BTreeSet<u64>,
}

struct SessionState {
    fence: Fence,
    /// Number of sessions so far.
    session_count: u64,
    /// The session of the latest claim.
    current: Option<Arc<SchedulerSession>>,
    /// Sessions of earlier claims that still have running tasks.
    earlier: Vec<Arc<SchedulerSession>>,
    /// Number of the last report.
    revision: u32,
}

impl SessionManager {
    pub(super) fn new(backend: Backend) -> Arc<SessionManager> {
        let fence = Fence::new(backend.epoch);
        let state = SessionState { fence, session_count: 0, current: None, earlier: Vec::new(), revision: 0 };
        Arc::new_cyclic(|own| SessionManager {
            own: own.clone(),
            number: random_id(),
            backend,
            state: Mutex::new(state),
            frontends: Mutex::default(),
        })
    }

    /// Returns the epoch of the latest accepted claim.
    pub(super) fn epoch(&self) -> Epoch {
        self.state.lock().fence.last().epoch
    }

    /// Reads a scheduler's connection until it ends, and applies its orders while its claim is the
    /// latest. Sets `established` at the first message.
    pub(super) fn serve_connection(
        &self,
        link: &Arc<PeerLink>,
        reader: &mut MessageReader,
        stood: &mut bool,
    ) -> io::Result<()> {
        let connection = {
            let mut frontends = self.frontends.lock();
            frontends.connections += 1;
            frontends.connections
        };
        let ended = self.serve_messages(link, connection, reader, stood);
        // Their rows and outputs are still on the way.
        for frontend in self.frontends.lock().by_id.values_mut() {
            frontend.by.remove(&connection);
        }
        ended
    }

    fn serve_messages(
        &self,
        link: &Arc<PeerLink>,
        connection: u64,
        reader: &mut MessageReader,
        stood: &mut bool,
    ) -> io::Result<()> {
        let mut session: Option<Arc<SchedulerSession>> = None;
        loop {
            let message = reader.read()?;
            *stood = true;
            match message {
                Message::KeepAlive => {}
                Message::AddFrontend(id, address) => self.on_frontend(id, &address, connection),
                Message::RemoveFrontend(id) => self.on_frontend_gone(id, connection),
                Message::Claim { stamp, holder } => {
                    if let Some(claimed) = self.claim(stamp, holder, link) {
                        session = Some(claimed);
                    }
                }
                Message::Refused(cause) => {
                    *stood = false;
                    let cause = format!("the scheduler refuses: {cause}");
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, cause));
                }
                Message::LoadCall(call) => self.change_models(call, link),
                order => match &session {
                    Some(session) if session.is_over() => link.send(&Message::Fenced(self.epoch())),
                    Some(session) => match order {
                        Message::Place(place, names) => self.on_place(place, &names)?,
                        order => session.apply(order)?,
                    },
                    None => return Err(DecodeError(format!("a scheduler that has not claimed says {order:?}")).into()),
                },
            }
        }
    }

    /// Handles the primary's order to have these models.
    fn on_place(&self, place: u32, names: &[u8]) -> Result<(), DecodeError> {
        let names = decode_names(names).map_err(DecodeError)?;
        let Some(planned) = &self.backend.planned else {
            return Err(DecodeError("this backend follows no plan".to_owned()));
        };
        if let Ok(place) = usize::try_from(place) {
            self.backend.models.set_place(self.number, place);
        }
        planned.set(self.number, names.into_iter().collect());
        Ok(())
    }

    /// Makes a call to load or unload a model, on a thread of its own: it may take minutes.
    fn change_models(&self, LoadCall { call, unload, name }: LoadCall, link: &Arc<PeerLink>) {
        let Some(calls) = self.backend.calls.clone() else {
            let cause = "this backend keeps the models that it began with".to_owned();
            return link.send(&Message::LoadCallEnd(call, cause));
        };
        let to = Arc::clone(link);
        let make = move || {
            let failed = calls.make(call, &name, unload).err().unwrap_or_default();
            to.send(&Message::LoadCallEnd(call, failed));
        };
        if let Err(error) = thread::Builder::new().name("backend-load".to_owned()).spawn(make) {
            link.send(&Message::LoadCallEnd(call, format!("no thread for it: {error}")));
        }
    }

    /// Handles a claim. Returns the session that begins if the claim is accepted.
    fn claim(&self, stamp: Stamp, holder: ProcessId, link: &Arc<PeerLink>) -> Option<Arc<SchedulerSession>> {
        let mut state = self.state.lock();
        match state.fence.on_claim(stamp) {
            ClaimOutcome::Accepted => {}
            ClaimOutcome::Stale(epoch) => {
                link.send(&Message::Fenced(epoch));
                return None;
            }
            ClaimOutcome::Repeated => return None,
        }
        state.session_count += 1;
        let number = state.session_count;
        let session = SchedulerSession::new(self.own.clone(), (stamp, holder), number, Arc::clone(link));
        if let Some(before) = state.current.replace(Arc::clone(&session)) {
            // It starts no further task. The new scheduler sends what waited again.
            before.end();
            state.earlier.push(before);
        }
        session.notify_order(true);
        state.revision = 1;
        self.report(&state, &[]);
        let ended: Vec<Arc<SchedulerSession>> = state.earlier.clone();
        drop(state);
        ended.into_iter().for_each(|session| self.close_in_background(session));
        Some(session)
    }

    /// Closes a superseded session on a thread of its own, which waits for its running tasks.
    fn close_in_background(&self, session: Arc<SchedulerSession>) {
        let own = self.own.clone();
        let wait = move || {
            session.close();
            if let Some(own) = own.upgrade() {
                own.state.lock().earlier.retain(|other| !Arc::ptr_eq(other, &session));
            }
        };
        if let Err(error) = thread::Builder::new().name("backend-finish".to_owned()).spawn(wait) {
            tracing::error!(%error, "no thread to end a device");
        }
    }

    /// Reports to the current scheduler the rows that earlier sessions still run.
    fn report(&self, state: &SessionState, failed: &[RunningRows]) {
        let Some(current) = &state.current else { return };
        let mut rows: BTreeMap<RequestId, u32> = BTreeMap::new();
        for (request, own) in state.earlier.iter().flat_map(|session| session.running()) {
            *rows.entry(request).or_default() += own;
        }
        let running = rows.into_iter().map(|(request, rows)| RunningRows { request, rows, failed: false });
        let held = running.chain(failed.iter().copied()).collect();
        let (stamp, revision) = (state.fence.last(), state.revision);
        current.link.send(&Message::Report(RunningReport { stamp, revision, held }));
    }

    /// Closes all sessions and waits for their running tasks. The outputs are sent, unless the end
    /// is to be like a crash.
    pub(super) fn close(&self, like_crash: bool) {
        if like_crash {
            self.frontends.lock().by_id.drain().for_each(|(_, frontend)| frontend.source.close());
        }
        let mut state = self.state.lock();
        let sessions: Vec<_> = state.current.take().into_iter().chain(state.earlier.drain(..)).collect();
        drop(state);
        sessions.iter().for_each(|session| session.close());
        let mut frontends = self.frontends.lock();
        let finishing: Vec<_> = frontends.by_id.drain().filter_map(|(_, frontend)| frontend.source.finish()).collect();
        drop(frontends);
        let until = Instant::now() + PeerLink::MAX_SILENCE;
        finishing.iter().for_each(|link| link.wait_closed(until));
    }

    // Frontends.

    fn on_frontend(&self, id: u32, address: &str, connection: u64) {
        let mut frontends = self.frontends.lock();
        match frontends.by_id.get_mut(&id).filter(|known| known.source.address == address) {
            Some(known) => {
                known.by.insert(connection);
            }
            None => {
                let (source, by) = (self.connect_to(id, address), BTreeSet::from([connection]));
                let earlier = frontends.by_id.insert(id, AnnouncedFrontend { source, by });
                if let Some(earlier) = earlier {
                    earlier.source.close();
                }
            }
        }
    }

    fn connect_to(&self, id: u32, address: &str) -> Arc<FrontendSource> {
        let receiver = self.own.clone();
        FrontendSource::connect(Arc::clone(&self.backend.transport), (id, address.to_owned()), self.epoch().0, receiver)
    }

    /// Handles the end of a frontend's connection to a scheduler. The frontend has gone once no
    /// scheduler has it.
    fn on_frontend_gone(&self, id: u32, connection: u64) {
        let mut frontends = self.frontends.lock();
        let Some(frontend) = frontends.by_id.get_mut(&id) else { return };
        frontend.by.remove(&connection);
        let gone = if frontend.by.is_empty() { frontends.by_id.remove(&id) } else { None };
        drop(frontends);
        if let Some(gone) = gone {
            gone.source.close();
        }
    }

    fn source(&self, frontend: u32) -> Option<Arc<FrontendSource>> {
        self.frontends.lock().by_id.get(&frontend).map(|frontend| Arc::clone(&frontend.source))
    }

    /// Gives up inputs that were waited for too long, again and again until `over` is dropped.
    pub(super) fn watch_inputs(&self, over: &Receiver<()>) {
        let mut pause = INPUTS_CHECK;
        while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(pause) {
            let within = self.current().and_then(|session| session.give_up_inputs(Instant::now()));
            pause = within.map_or(INPUTS_CHECK, |within| INPUTS_CHECK.min(within / 4));
        }
    }

    fn current(&self) -> Option<Arc<SchedulerSession>> {
        self.state.lock().current.clone()
    }
}

impl SessionHost for SessionManager {
    fn backend(&self) -> &Backend {
        &self.backend
    }

    fn pull(&self, frontend: u32, pulls: Vec<Message>) -> bool {
        let Some(source) = self.source(frontend) else { return false };
        let Err(pulls) = source.send(pulls) else { return true };
        // The connection had ended, but the frontend is still registered at the scheduler.
        let again = self.connect_to(frontend, &source.address);
        let mut frontends = self.frontends.lock();
        let Some(known) = frontends.by_id.get_mut(&frontend) else { return false };
        known.source = Arc::clone(&again);
        drop(frontends);
        again.send(pulls).is_ok()
    }

    fn push(&self, frontend: u32, outputs: Vec<Message>) {
        if let Some(source) = self.source(frontend) {
            // Without the connection, the frontend answers the requests by itself.
            let _ = source.send(outputs);
        }
    }

    fn on_earlier_end(&self, failed: &[RunningRows]) {
        let mut state = self.state.lock();
        state.revision += 1;
        self.report(&state, failed);
    }
}

impl RowReceiver for SessionManager {
    fn on_rows(&self, tag: u64, inputs: Option<Vec<Tensor>>) {
        // Only tasks of the current session can still start, so only they need rows.
        if let Some(session) = self.current() {
            session.on_rows(tag, inputs);
        }
    }

    fn on_lost(&self, frontend: u32) {
        let mut frontends = self.frontends.lock();
        // The last scheduler connection may have ended before it could say that the frontend has
        // gone.
        let is_over = |known: &AnnouncedFrontend| known.by.is_empty() && known.source.is_down();
        if frontends.by_id.get(&frontend).is_some_and(is_over) {
            frontends.by_id.remove(&frontend);
        }
        drop(frontends);
        if let Some(session) = self.current() {
            session.on_lost(frontend);
        }
    }
}
