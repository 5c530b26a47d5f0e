//! Frontends: each asks for requests of its clients, and is told how they end.

use super::{Served, Shared, unexpected};
use crate::handover::{Process, RequestId};
use crate::plane::{Ask, End, Garbled, Link, Message, Reader, Role};
use parking_lot::Mutex;
use ripieno_base::Nanos;
use ripieno_executor::Origin;
use ripieno_model::Extent;
use ripieno_runtime::{Answer, Answered, Failure, Refused, RemoteJob, Ticket};
use std::collections::HashMap;
use std::collections::hash_map::{Entry, VacantEntry};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most requests of a frontend that wait until it is known what runs.
const MOST_ASKED: usize = 1 << 16;
/// When one beyond that may be tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The most requests that are left to the scheduler before it is woken for them.
const MOST_LEFT: usize = 64;

/// A frontend that is connected.
pub(super) struct Frontend {
    pub(super) id: u32,
    pub(super) link: Arc<Link>,
    /// Where its inputs are.
    pub(super) address: String,
    places: Mutex<Places>,
}

/// The requests of a frontend that are under way.
#[derive(Default)]
struct Places {
    of: HashMap<u64, Place, foldhash::fast::RandomState>,
    /// How many of them the engine does not have.
    asked: usize,
}

enum Place {
    /// It has come, and is not the engine's yet.
    Asked(Box<Ask>, Instant),
    /// It is the engine's.
    Ticket(Ticket),
}

impl Places {
    fn remove(&mut self, request: u64) -> Option<Place> {
        let place = self.of.remove(&request)?;
        self.asked -= usize::from(matches!(place, Place::Asked(..)));
        Some(place)
    }
}

impl Shared {
    pub(super) fn serve_frontend(
        self: &Arc<Shared>,
        link: &Arc<Link>,
        peer: Option<SocketAddr>,
        reader: &mut Reader,
    ) -> io::Result<()> {
        let frontend = loop {
            match reader.read()? {
                Message::Here => {}
                Message::DataAt(id, address) => {
                    let address = reachable(address, peer);
                    break Arc::new(Frontend { id, link: Arc::clone(link), address, places: Mutex::default() });
                }
                other => return Err(unexpected(&other)),
            }
        };
        tracing::info!(frontend = frontend.id, address = frontend.address, "a frontend has come");
        self.introduce(&frontend)?;
        let process = Process(u64::from(frontend.id));
        self.tell(|machine, now, out| machine.on_member(now, process, Role::Frontend, out));
        let ended = self.listen(&frontend, reader);
        self.forget(&frontend);
        // Nobody waits for them any more.
        let left: Vec<Place> = frontend.places.lock().of.drain().map(|(_, place)| place).collect();
        left.iter().for_each(|place| {
            if let Place::Ticket(ticket) = place {
                ticket.cancel();
            }
        });
        ended
    }

    /// Tells the backends of it before any request of it comes, and it of the models.
    fn introduce(&self, frontend: &Arc<Frontend>) -> io::Result<()> {
        let mut peers = self.peers.lock();
        match peers.frontends.get(&frontend.id) {
            // It connects again, and its earlier connection has not ended here.
            Some(known) if known.address == frontend.address => known.link.close(),
            Some(_) => {
                let cause = "another frontend has its number; start it anew";
                frontend.link.send(&Message::Refused(cause.to_owned()));
                return Err(io::Error::other(cause));
            }
            None => {}
        }
        let message = Message::Frontend(frontend.id, frontend.address.clone());
        peers.backends.values().for_each(|backend| backend.link.send(&message));
        peers.models().iter().for_each(|message| frontend.link.send(message));
        frontend.link.send(&Message::Devices(peers.serving()));
        peers.frontends.insert(frontend.id, Arc::clone(frontend));
        Ok(())
    }

    fn forget(&self, frontend: &Frontend) {
        let mut peers = self.peers.lock();
        // It may have connected again meanwhile.
        if peers.frontends.get(&frontend.id).is_some_and(|known| Arc::ptr_eq(&known.link, &frontend.link)) {
            peers.frontends.remove(&frontend.id);
            peers.backends.values().for_each(|backend| backend.link.send(&Message::FrontendGone(frontend.id)));
            drop(peers);
            let process = Process(u64::from(frontend.id));
            self.tell(|machine, now, out| machine.on_lost(now, process, out));
        }
    }

    fn listen(&self, frontend: &Arc<Frontend>, reader: &mut Reader) -> io::Result<()> {
        let mut left = Left::default();
        loop {
            // Whoever waits for more has the scheduler look at what there is.
            if !reader.has_next() {
                left.look();
            }
            match reader.read()? {
                Message::Here => {}
                Message::Ask(ask) if self.leadership.is_open() => left.ask(self, frontend, ask)?,
                Message::Ask(ask) => self.park(frontend, ask)?,
                Message::Withdraw(request) => self.withdraw(frontend, request),
                Message::Fenced(epoch) => self.tell(|machine, now, out| machine.on_epoch(now, epoch, out)),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// A request comes while an epoch begins: it waits until it is known what runs.
    fn park(&self, frontend: &Frontend, ask: Ask) -> io::Result<()> {
        let Ask { request, rows, .. } = ask;
        let mut places = frontend.places.lock();
        let asked = places.asked;
        let place = vacant(&mut places, request)?;
        if asked >= MOST_ASKED {
            let refused = Refused::QueueFull { bound: MOST_ASKED, retry_after: RETRY_AFTER };
            frontend.link.send(&Message::End(End { request, answer: Err(Failure::Refused(refused)) }));
            return Ok(());
        }
        place.insert(Place::Asked(Box::new(ask), Instant::now()));
        places.asked += 1;
        drop(places);
        let id = RequestId { frontend: Process(u64::from(frontend.id)), number: request };
        let is_primary = self.tell(|machine, _, out| {
            machine.on_ask(id, rows, out);
            machine.primary_epoch().is_some()
        });
        if !is_primary {
            // The primary will be asked.
            frontend.places.lock().remove(request);
        }
        Ok(())
    }

    fn withdraw(&self, frontend: &Frontend, request: u64) {
        let mut places = frontend.places.lock();
        match places.of.get(&request) {
            Some(Place::Ticket(ticket)) => ticket.cancel(),
            Some(Place::Asked(..)) => {
                places.remove(request);
                drop(places);
                let id = RequestId { frontend: Process(u64::from(frontend.id)), number: request };
                self.tell(|machine, _, _| machine.on_withdraw(id));
            }
            None => {}
        }
    }

    /// Whose request it is, and what is served.
    pub(super) fn frontend_of(&self, request: RequestId) -> Option<(Arc<Frontend>, Arc<Served>)> {
        let peers = self.peers.lock();
        let id = u32::try_from(request.frontend.0).ok()?;
        let frontend = peers.frontends.get(&id).cloned()?;
        match &peers.served {
            Some(served) => Some((frontend, Arc::clone(served))),
            None => {
                drop(peers);
                end(&frontend, request.number, Err(Failure::Refused(Refused::NotLoaded)));
                None
            }
        }
    }
}

/// Requests that the engine has and has not been told to look at: one wake-up for all that came at once.
#[derive(Default)]
struct Left {
    served: Option<Arc<Served>>,
    count: usize,
}

impl Left {
    /// A request comes, and the engine takes it in, as it does most of the time.
    fn ask(&mut self, shared: &Shared, frontend: &Arc<Frontend>, ask: Ask) -> io::Result<()> {
        if self.served.is_none() {
            self.served.clone_from(&shared.peers.lock().served);
        }
        let mut places = frontend.places.lock();
        let (request, place) = (ask.request, vacant(&mut places, ask.request)?);
        let Some(served) = &self.served else {
            drop(places);
            end(frontend, request, Err(Failure::Refused(Refused::NotLoaded)));
            return Ok(());
        };
        // With the lock held: whoever answers it finds its place.
        match submit(served, frontend, ask, Duration::ZERO) {
            Ok(ticket) => drop(place.insert(Place::Ticket(ticket))),
            Err(refused) => frontend.link.send(&Message::End(End { request, answer: Err(Failure::Refused(refused)) })),
        }
        drop(places);
        self.count += 1;
        if self.count >= MOST_LEFT {
            self.look();
        }
        Ok(())
    }

    fn look(&mut self) {
        if std::mem::take(&mut self.count) > 0 {
            self.served.iter().for_each(|served| served.engine.look());
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.look();
    }
}

/// The place of a request that has not come before.
fn vacant(places: &mut Places, request: u64) -> Result<VacantEntry<'_, u64, Place>, Garbled> {
    match places.of.entry(request) {
        Entry::Vacant(place) => Ok(place),
        Entry::Occupied(_) => Err(Garbled(format!("request {request} comes a second time"))),
    }
}

/// Has the engine take in a request that waited, or says at once why not. Nothing happens to one that is the engine's
/// already.
pub(super) fn admit(served: &Served, frontend: &Arc<Frontend>, request: u64) {
    let mut places = frontend.places.lock();
    if !matches!(places.of.get(&request), Some(Place::Asked(..))) {
        return;
    }
    let Some(Place::Asked(ask, came)) = places.remove(request) else { return };
    match submit(served, frontend, *ask, came.elapsed()) {
        Ok(ticket) => drop(places.of.insert(request, Place::Ticket(ticket))),
        Err(refused) => frontend.link.send(&Message::End(End { request, answer: Err(Failure::Refused(refused)) })),
    }
    drop(places);
    served.engine.look();
}

/// Leaves a request to the engine, which is to be told to look at it; it has waited for so long already.
fn submit(served: &Served, frontend: &Arc<Frontend>, ask: Ask, waited: Duration) -> Result<Ticket, Refused> {
    let (to, request) = (Arc::clone(frontend), ask.request);
    let on_answer = Box::new(move |answer: Answer| end(&to, request, answer));
    served.engine.submit_remote(RemoteJob {
        model: ask.model,
        origin: Origin { frontend: frontend.id, request, first_row: 0 },
        rows: ask.rows as usize,
        extent: Extent { length: ask.length, limit: 0 },
        sizes: ask.sizes,
        bytes: usize::try_from(ask.bytes).unwrap_or(usize::MAX),
        timeout: ask.left_ns.map(|left| Duration::from_nanos(left).saturating_sub(waited)),
        client: ask.client,
        priority: ask.priority,
        on_answer,
    })
}

/// A request that an earlier scheduler had begun has ended well. How long it took nobody knows.
pub(super) fn is_over(frontend: &Frontend, request: u64) {
    let answered = Answered { outputs: Vec::new(), queued: Nanos::ZERO, executed: Nanos::ZERO, batch: 1, late: false };
    end(frontend, request, Ok(answered));
}

fn end(frontend: &Frontend, request: u64, answer: Answer) {
    // Its ticket goes when nobody waits for the lock.
    let place = frontend.places.lock().remove(request);
    drop(place);
    frontend.link.send(&Message::End(End { request, answer }));
}

/// A front end that names a port alone is where it came from.
fn reachable(address: String, peer: Option<SocketAddr>) -> String {
    match (address.strip_prefix(':').and_then(|port| port.parse().ok()), peer) {
        (Some(port), Some(peer)) => SocketAddr::new(peer.ip(), port).to_string(),
        _ => address,
    }
}
