//! Whom a backend obeys, what still runs of those who were obeyed before, and the frontends, which all of them share.
//!
//! Locks are taken in this order: the command, the work of a session, the frontends.

use super::Backend;
use super::session::{Session, Shared};
use super::source::{Receiver, Source};
use crate::handover::{Claimed, Epoch, Fence, Held, Process, RequestId, Stamp};
use crate::plane::{Garbled, Link, Message, Reader, Report};
use parking_lot::Mutex;
use ripieno_executor::{Origin, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Weak};
use std::thread;

pub(super) struct Sessions {
    own: Weak<Sessions>,
    pub(super) backend: Backend,
    command: Mutex<Command>,
    sources: Mutex<HashMap<u32, Arc<Source>>>,
}

struct Command {
    fence: Fence,
    /// How many there were.
    session_count: u64,
    /// Of the last claim.
    current: Option<Arc<Session>>,
    /// Of claims before, as long as something of them runs.
    earlier: Vec<Arc<Session>>,
    /// Of the last report.
    revision: u32,
}

impl Sessions {
    pub(super) fn new(backend: Backend) -> Arc<Sessions> {
        let fence = Fence::new(backend.epoch);
        let command = Command { fence, session_count: 0, current: None, earlier: Vec::new(), revision: 0 };
        Arc::new_cyclic(|own| Sessions {
            own: own.clone(),
            backend,
            command: Mutex::new(command),
            sources: Mutex::default(),
        })
    }

    /// The latest epoch that it has obeyed.
    pub(super) fn epoch(&self) -> Epoch {
        self.command.lock().fence.last().epoch
    }

    /// Does what a scheduler says, if it is to be obeyed, until the connection ends. Whether it has been.
    pub(super) fn obey(&self, link: &Arc<Link>, reader: &mut Reader, stood: &mut bool) -> io::Result<()> {
        let mut session: Option<Arc<Session>> = None;
        loop {
            let message = reader.read()?;
            *stood = true;
            match message {
                Message::Here => {}
                Message::Frontend(id, address) => self.on_frontend(id, &address),
                Message::FrontendGone(id) if session.as_ref().is_some_and(|session| !session.is_over()) => {
                    self.on_frontend_gone(id)
                }
                Message::FrontendGone(_) => {}
                Message::Claim { stamp, holder } => {
                    if let Some(claimed) = self.claim(stamp, holder, link) {
                        session = Some(claimed);
                    }
                }
                Message::Refused(cause) => return Err(io::Error::other(format!("the scheduler refuses: {cause}"))),
                order => match &session {
                    Some(session) if session.is_over() => link.send(&Message::Fenced(self.epoch())),
                    Some(session) => session.obey(order)?,
                    None => return Err(Garbled(format!("a scheduler that has not claimed says {order:?}")).into()),
                },
            }
        }
    }

    /// Somebody claims the backend: the session that begins, if that is obeyed.
    fn claim(&self, stamp: Stamp, holder: Process, link: &Arc<Link>) -> Option<Arc<Session>> {
        let mut command = self.command.lock();
        match command.fence.on_claim(stamp) {
            Claimed::Obeyed => {}
            Claimed::Past(epoch) => {
                link.send(&Message::Fenced(epoch));
                return None;
            }
            Claimed::Repeated => return None,
        }
        command.session_count += 1;
        let number = command.session_count;
        let session = Session::new(self.own.clone(), (stamp, holder), number, Arc::clone(link));
        if let Some(before) = command.current.replace(Arc::clone(&session)) {
            // From here on it begins nothing. What waits will be ordered anew.
            before.end();
            command.earlier.push(before);
        }
        session.tell_order(true);
        command.revision = 1;
        self.report(&command, &[]);
        let ended: Vec<Arc<Session>> = command.earlier.clone();
        drop(command);
        ended.into_iter().for_each(|session| self.finish(session));
        Some(session)
    }

    /// Waits for what runs in a session that is over, elsewhere.
    fn finish(&self, session: Arc<Session>) {
        let own = self.own.clone();
        let wait = move || {
            session.close();
            own.upgrade().iter().for_each(|own| {
                own.command.lock().earlier.retain(|other| !Arc::ptr_eq(other, &session));
            });
        };
        if let Err(error) = thread::Builder::new().name("backend-finish".to_owned()).spawn(wait) {
            tracing::error!(%error, "no thread to end a device");
        }
    }

    /// Tells whoever is obeyed what earlier sessions run.
    fn report(&self, command: &Command, failed: &[Held]) {
        let Some(current) = &command.current else { return };
        let mut rows: BTreeMap<RequestId, u32> = BTreeMap::new();
        for (request, own) in command.earlier.iter().flat_map(|session| session.running()) {
            *rows.entry(request).or_default() += own;
        }
        let running = rows.into_iter().map(|(request, rows)| Held { request, rows, failed: false });
        let held = running.chain(failed.iter().copied()).collect();
        let (stamp, revision) = (command.fence.last(), command.revision);
        current.link.send(&Message::Report(Report { stamp, revision, held }));
    }

    /// Ends all that is left, and waits for what runs.
    pub(super) fn close(&self) {
        let sources: Vec<_> = self.sources.lock().drain().collect();
        sources.iter().for_each(|(_, source)| source.close());
        let mut command = self.command.lock();
        let sessions: Vec<_> = command.current.take().into_iter().chain(command.earlier.drain(..)).collect();
        drop(command);
        sessions.iter().for_each(|session| session.close());
    }

    // Frontends.

    fn on_frontend(&self, id: u32, address: &str) {
        let mut sources = self.sources.lock();
        if sources.get(&id).is_none_or(|known| known.address != address) {
            let earlier = sources.insert(id, self.connect_to(id, address));
            earlier.iter().for_each(|earlier| earlier.close());
        }
    }

    fn connect_to(&self, id: u32, address: &str) -> Arc<Source> {
        let receiver = self.own.clone();
        Source::connect(Arc::clone(&self.backend.transport), (id, address.to_owned()), self.epoch().0, receiver)
    }

    fn on_frontend_gone(&self, id: u32) {
        let source = self.sources.lock().remove(&id);
        source.iter().for_each(|source| source.close());
    }

    fn current(&self) -> Option<Arc<Session>> {
        self.command.lock().current.clone()
    }
}

impl Shared for Sessions {
    fn backend(&self) -> &Backend {
        &self.backend
    }

    fn pull(&self, tag: u64, Origin { frontend, request, first_row }: Origin, rows: u32) -> bool {
        let message = || Message::Pull { tag, request, first_row, rows };
        let source = self.sources.lock().get(&frontend).cloned();
        let Some(source) = source else { return false };
        if source.send(message()) {
            return true;
        }
        // The connection had ended, and the scheduler says that the frontend is there.
        let again = self.connect_to(frontend, &source.address);
        self.sources.lock().insert(frontend, Arc::clone(&again));
        again.send(message())
    }

    /// Without its front end nobody waits for outputs.
    fn send_outputs(&self, origin: Origin, rows: u32, outputs: Result<Vec<Tensor>, String>) {
        let Origin { frontend, request, first_row } = origin;
        let source = self.sources.lock().get(&frontend).cloned();
        source.iter().for_each(|source| {
            source.send(Message::Outputs { request, first_row, rows, outputs: outputs.clone() });
        });
    }

    fn on_earlier_end(&self, failed: &[Held]) {
        let mut command = self.command.lock();
        command.revision += 1;
        self.report(&command, failed);
    }
}

impl Receiver for Sessions {
    fn on_rows(&self, tag: u64, inputs: Option<Vec<Tensor>>) {
        // Only what is to begin needs any.
        self.current().iter().for_each(|session| session.on_rows(tag, inputs.clone()));
    }

    fn on_lost(&self, frontend: u32) {
        self.current().iter().for_each(|session| session.on_lost(frontend));
    }
}
