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
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most requests of a frontend that wait until it is known what runs.
const MOST_ASKED: usize = 1 << 16;
/// When one beyond that may be tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A frontend that is connected.
#[derive(Clone)]
pub(super) struct Frontend {
    pub(super) id: u32,
    pub(super) link: Arc<Link>,
    /// Where its inputs are.
    pub(super) address: String,
    places: Arc<Mutex<Places>>,
}

/// The requests of a frontend that are under way.
#[derive(Default)]
struct Places {
    of: HashMap<u64, Place>,
    /// How many of them the engine does not have.
    asked: usize,
}

enum Place {
    /// It has come, and is not the engine's yet.
    Asked(Box<Ask>, Instant),
    /// It is; its ticket comes.
    Taken,
    /// It has a ticket.
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
                    break Frontend { id, link: Arc::clone(link), address, places: Arc::default() };
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
    fn introduce(&self, frontend: &Frontend) -> io::Result<()> {
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
        peers.frontends.insert(frontend.id, frontend.clone());
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

    fn listen(&self, frontend: &Frontend, reader: &mut Reader) -> io::Result<()> {
        let mut served: Option<Arc<Served>> = None;
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Ask(ask) => {
                    if served.is_none() {
                        served.clone_from(&self.peers.lock().served);
                    }
                    self.ask(served.as_deref(), frontend, ask)?;
                }
                Message::Withdraw(request) => self.withdraw(frontend, request),
                Message::Fenced(epoch) => self.tell(|machine, now, out| machine.on_epoch(now, epoch, out)),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// A request has come. Most of the time the engine takes it in; when a reign begins it waits.
    fn ask(&self, served: Option<&Served>, frontend: &Frontend, ask: Ask) -> io::Result<()> {
        let Ask { request, rows, .. } = ask;
        let mut places = frontend.places.lock();
        let (asked, open) = (places.asked, self.reign.is_open());
        match places.of.entry(request) {
            Entry::Occupied(_) => return Err(Garbled(format!("request {request} comes a second time")).into()),
            Entry::Vacant(place) if open || asked < MOST_ASKED => {
                place.insert(Place::Asked(Box::new(ask), Instant::now()));
                places.asked += 1;
            }
            Entry::Vacant(_) => {
                let refused = Refused::QueueFull { bound: MOST_ASKED, retry_after: RETRY_AFTER };
                frontend.link.send(&Message::End(End { request, answer: Err(Failure::Refused(refused)) }));
                return Ok(());
            }
        }
        drop(places);
        if open {
            match served {
                Some(served) => admit(served, frontend, request),
                None => end(frontend, request, Err(Failure::Refused(Refused::NotLoaded))),
            }
            return Ok(());
        }
        let id = RequestId { frontend: Process(u64::from(frontend.id)), number: request };
        let reigns = self.tell(|machine, _, out| {
            machine.on_ask(id, rows, out);
            machine.reigns().is_some()
        });
        if !reigns {
            // Whoever reigns will be asked.
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
            Some(Place::Taken) | None => {}
        }
    }

    /// Whose request it is, and what is served.
    pub(super) fn frontend_of(&self, request: RequestId) -> Option<(Frontend, Arc<Served>)> {
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

/// Has the engine take a request in, or says at once why not. Nothing happens to one that is the engine's already.
pub(super) fn admit(served: &Served, frontend: &Frontend, request: u64) {
    let mut places = frontend.places.lock();
    let Some(place) = places.of.get_mut(&request) else { return };
    let Place::Asked(ask, came) = std::mem::replace(place, Place::Taken) else { return };
    places.asked -= 1;
    drop(places);
    let (to, under_way) = (Arc::clone(&frontend.link), Arc::clone(&frontend.places));
    let on_answer = Box::new(move |answer: Answer| {
        drop(under_way.lock().remove(request));
        to.send(&Message::End(End { request, answer }));
    });
    let job = RemoteJob {
        model: ask.model,
        origin: Origin { frontend: frontend.id, request, first_row: 0 },
        rows: ask.rows as usize,
        extent: Extent { length: ask.length, limit: 0 },
        sizes: ask.sizes,
        bytes: usize::try_from(ask.bytes).unwrap_or(usize::MAX),
        timeout: ask.left_ns.map(|left| Duration::from_nanos(left).saturating_sub(came.elapsed())),
        client: ask.client,
        priority: ask.priority,
        on_answer,
    };
    match served.engine.submit_remote(job) {
        Ok(ticket) => {
            // It may have been answered meanwhile.
            if let Some(place) = frontend.places.lock().of.get_mut(&request) {
                *place = Place::Ticket(ticket);
            }
        }
        Err(refused) => end(frontend, request, Err(Failure::Refused(refused))),
    }
}

/// A request that an earlier scheduler had begun has ended well. How long it took nobody knows.
pub(super) fn is_over(frontend: &Frontend, request: u64) {
    let answered = Answered { outputs: Vec::new(), queued: Nanos::ZERO, executed: Nanos::ZERO, batch: 1, late: false };
    end(frontend, request, Ok(answered));
}

fn end(frontend: &Frontend, request: u64, answer: Answer) {
    frontend.places.lock().remove(request);
    frontend.link.send(&Message::End(End { request, answer }));
}

/// A front end that names a port alone is where it came from.
fn reachable(address: String, peer: Option<SocketAddr>) -> String {
    match (address.strip_prefix(':').and_then(|port| port.parse().ok()), peer) {
        (Some(port), Some(peer)) => SocketAddr::new(peer.ip(), port).to_string(),
        _ => address,
    }
}
