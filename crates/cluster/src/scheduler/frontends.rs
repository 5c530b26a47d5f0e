//! Frontends: each asks for requests of its clients, and is told how they end.

use super::{Frontend, Served, Shared, unexpected};
use crate::plane::{Ask, End, Garbled, Link, Message, Reader};
use parking_lot::Mutex;
use ripieno_executor::Origin;
use ripieno_model::Extent;
use ripieno_runtime::{Answer, Failure, Refused, RemoteJob, Ticket};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The requests of a front end that are under way; without a ticket until they have been taken.
type Tickets = Arc<Mutex<HashMap<u64, Option<Ticket>>>>;

impl Shared {
    pub(super) fn serve_frontend(
        self: &Arc<Shared>,
        id: u32,
        link: &Arc<Link>,
        peer: Option<SocketAddr>,
        reader: &mut Reader,
    ) -> io::Result<()> {
        let address = loop {
            match reader.read()? {
                Message::Here => {}
                Message::DataAt(address) => break reachable(address, peer),
                other => return Err(unexpected(&other)),
            }
        };
        tracing::info!(frontend = id, address, "a frontend has come");
        self.introduce(id, Frontend { link: Arc::clone(link), address });
        let tickets = Tickets::default();
        let ended = self.listen(id, link, reader, &tickets);
        self.forget(id);
        // Nobody waits for them any more.
        let left: Vec<Ticket> = tickets.lock().drain().filter_map(|(_, ticket)| ticket).collect();
        left.iter().for_each(Ticket::cancel);
        ended
    }

    /// Tells the backends of it before any request of it comes, and it of the models.
    fn introduce(&self, id: u32, frontend: Frontend) {
        let mut peers = self.peers.lock();
        let message = Message::Frontend(id, frontend.address.clone());
        peers.backends.values().for_each(|backend| backend.send(&message));
        peers.models().iter().for_each(|message| frontend.link.send(message));
        frontend.link.send(&Message::Devices(peers.serving()));
        peers.frontends.insert(id, frontend);
    }

    fn forget(&self, id: u32) {
        let mut peers = self.peers.lock();
        peers.frontends.remove(&id);
        peers.backends.values().for_each(|backend| backend.send(&Message::FrontendGone(id)));
    }

    fn listen(&self, id: u32, link: &Arc<Link>, reader: &mut Reader, tickets: &Tickets) -> io::Result<()> {
        let mut served: Option<Arc<Served>> = None;
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Ask(ask) => {
                    if served.is_none() {
                        served.clone_from(&self.peers.lock().served);
                    }
                    submit(served.as_deref(), id, link, &ask, tickets)?;
                }
                Message::Withdraw(request) => {
                    if let Some(Some(ticket)) = tickets.lock().get(&request) {
                        ticket.cancel();
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }
}

/// Takes a request in, or says at once why not.
fn submit(served: Option<&Served>, id: u32, link: &Arc<Link>, ask: &Ask, tickets: &Tickets) -> io::Result<()> {
    let request = ask.request;
    match tickets.lock().entry(request) {
        Entry::Occupied(_) => return Err(Garbled(format!("request {request} comes a second time")).into()),
        Entry::Vacant(place) => place.insert(None),
    };
    let (to, under_way) = (Arc::clone(link), Arc::clone(tickets));
    let on_answer = Box::new(move |answer: Answer| {
        drop(under_way.lock().remove(&request));
        to.send(&Message::End(End { request, answer }));
    });
    let job = RemoteJob {
        model: ask.model,
        origin: Origin { frontend: id, request, first_row: 0 },
        rows: ask.rows as usize,
        extent: Extent { length: ask.length, limit: 0 },
        sizes: ask.sizes,
        bytes: usize::try_from(ask.bytes).unwrap_or(usize::MAX),
        timeout: ask.left_ns.map(Duration::from_nanos),
        client: ask.client,
        priority: ask.priority,
        on_answer,
    };
    match served.map_or(Err(Refused::NotLoaded), |served| served.engine.submit_remote(job)) {
        Ok(ticket) => {
            // It may have been answered meanwhile.
            if let Some(place) = tickets.lock().get_mut(&request) {
                *place = Some(ticket);
            }
        }
        Err(refused) => {
            tickets.lock().remove(&request);
            link.send(&Message::End(End { request, answer: Err(Failure::Refused(refused)) }));
        }
    }
    Ok(())
}

/// A front end that names a port alone is where it came from.
fn reachable(address: String, peer: Option<SocketAddr>) -> String {
    match (address.strip_prefix(':').and_then(|port| port.parse().ok()), peer) {
        (Some(port), Some(peer)) => SocketAddr::new(peer.ip(), port).to_string(),
        _ => address,
    }
}
