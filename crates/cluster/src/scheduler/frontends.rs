//! The frontends as a scheduler sees them: each submits requests of its clients, and receives their
//! results.

use super::refusals::RegistrationError;
use super::sub_clusters::{SubClusters, split};
use super::{SchedulerShared, unexpected};
use crate::handover::{ProcessId, RequestId};
use crate::placement::MAX_SUB_CLUSTERS;
use crate::plane::{DecodeError, Message, PeerLink, RequestEnd, RequestHeader, Role};
use parking_lot::Mutex;
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::RemoteRows;
use ripieno_model::{Extent, Graph};
use ripieno_runtime::{Failure, JobOutput, JobResult, RemoteJob, Ticket};
use std::collections::HashMap;
use std::collections::hash_map::{Entry, VacantEntry};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The largest number of requests of a frontend that are parked until the running tasks are known.
const MAX_PARKED: usize = 1 << 16;
/// Time after which a request beyond that may be retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The largest number of requests that are submitted before the engine is woken for them.
const WAKEUP_BATCH: usize = 64;

/// A frontend that is connected.
pub(super) struct FrontendPeer {
    pub(super) id: u32,
    pub(super) link: Arc<PeerLink>,
    /// Revision of its protocol, which determines the models that it can describe.
    pub(super) revision: u16,
    /// Address that serves its inputs.
    pub(super) address: String,
    requests: Mutex<FrontendRequests>,
}

/// The requests of a frontend that are in flight.
#[derive(Default)]
struct FrontendRequests {
    by_number: HashMap<u64, SubmittedRequest, foldhash::fast::RandomState>,
    /// Number of requests that the engine does not have.
    parked: usize,
}

/// A request as its frontend submits it.
struct Submission {
    header: RequestHeader,
    graph: Option<Arc<Graph>>,
}

enum SubmittedRequest {
    /// Received, and not yet submitted to the engine.
    Parked(Box<Submission>, Instant),
    /// Submitted to the engine.
    Ticket(Ticket),
}

impl FrontendRequests {
    fn remove(&mut self, request: u64) -> Option<SubmittedRequest> {
        let place = self.by_number.remove(&request)?;
        self.parked -= usize::from(matches!(place, SubmittedRequest::Parked(..)));
        Some(place)
    }
}

/// The connection of a registered frontend.
pub(super) struct FrontendConnection {
    frontend: Arc<FrontendPeer>,
    batch: SubmitBatch,
}

impl FrontendConnection {
    /// Handles a message that never waits; returns any other one.
    pub(super) fn try_handle(&mut self, shared: &SchedulerShared, message: Message) -> io::Result<Option<Message>> {
        let submits = |model| shared.leadership.is_open() && self.batch.has_device(model);
        match message {
            Message::Submit(header) if submits(header.model) => {
                self.batch.submit(&self.frontend, Submission { header, graph: None })?;
            }
            Message::SubmitGraph(header, graph) if submits(header.model) => {
                self.batch.submit(&self.frontend, Submission { header, graph: Some(graph) })?;
            }
            Message::CancelRequest(request) if !self.frontend.has_parked(request) => {
                shared.cancel_request(&self.frontend, request);
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    pub(super) fn handle(&mut self, shared: &SchedulerShared, message: Message) -> io::Result<()> {
        let FrontendConnection { frontend, batch } = self;
        match message {
            Message::Submit(header) => shared.on_submission(frontend, Submission { header, graph: None }, batch)?,
            Message::SubmitGraph(header, graph) => {
                shared.on_submission(frontend, Submission { header, graph: Some(graph) }, batch)?;
            }
            Message::CancelRequest(request) => shared.cancel_request(frontend, request),
            Message::LoadCall(call) => shared.begin_call(&frontend.link, call),
            Message::Fenced(epoch) => shared.update(|machine, now, out| machine.on_epoch(now, epoch, out)),
            other => return Err(unexpected(&other)),
        }
        Ok(())
    }

    /// Wakes the engines for the requests so far, before more is waited for.
    pub(super) fn on_pause(&mut self) {
        self.batch.wake_engines();
    }

    pub(super) fn on_end(self, shared: &SchedulerShared) {
        let FrontendConnection { frontend, .. } = self;
        shared.unregister_frontend(&frontend);
        // The frontend is gone, so no client waits for them.
        let left: Vec<SubmittedRequest> = frontend.requests.lock().by_number.drain().map(|(_, place)| place).collect();
        for state in &left {
            if let SubmittedRequest::Ticket(ticket) = state {
                ticket.cancel();
            }
        }
    }
}

impl FrontendPeer {
    fn has_parked(&self, request: u64) -> bool {
        matches!(self.requests.lock().by_number.get(&request), Some(SubmittedRequest::Parked(..)))
    }
}

impl SchedulerShared {
    pub(super) fn connect_frontend(
        &self,
        link: &Arc<PeerLink>,
        id: u32,
        address: String,
        revision: u16,
    ) -> Result<FrontendConnection, RegistrationError> {
        let address = reachable(address, link.peer());
        let (link, requests) = (Arc::clone(link), Mutex::default());
        let frontend = Arc::new(FrontendPeer { id, link, revision, address, requests });
        tracing::info!(frontend = frontend.id, address = frontend.address, "a frontend has come");
        self.register_frontend(&frontend)?;
        let process = ProcessId(u64::from(frontend.id));
        self.update(|machine, now, out| machine.on_member(now, process, Role::Frontend, out));
        Ok(FrontendConnection { frontend, batch: SubmitBatch::default() })
    }

    /// Registers a frontend: announces it to the backends before any request of it arrives, and
    /// sends it the models.
    fn register_frontend(&self, frontend: &Arc<FrontendPeer>) -> Result<(), RegistrationError> {
        let mut peers = self.peers.lock();
        match peers.frontends.get(&frontend.id) {
            // The frontend has reconnected, and its earlier connection has not ended here.
            Some(known) if known.address == frontend.address => known.link.close(),
            Some(_) => {
                let cause = "another frontend has its number; start it anew";
                return Err(RegistrationError::Refused(cause.to_owned()));
            }
            None => {}
        }
        let message = Message::AddFrontend(frontend.id, frontend.address.clone());
        peers.backends.values().for_each(|backend| backend.link.send(&message));
        peers.send_models(frontend);
        frontend.link.send(&Message::Devices(peers.serving()));
        peers.frontends.insert(frontend.id, Arc::clone(frontend));
        Ok(())
    }

    fn unregister_frontend(&self, frontend: &FrontendPeer) {
        let mut peers = self.peers.lock();
        // It may have reconnected meanwhile.
        if peers.frontends.get(&frontend.id).is_some_and(|known| Arc::ptr_eq(&known.link, &frontend.link)) {
            peers.frontends.remove(&frontend.id);
            peers.backends.values().for_each(|backend| backend.link.send(&Message::RemoveFrontend(frontend.id)));
            drop(peers);
            let process = ProcessId(u64::from(frontend.id));
            self.update(|machine, now, out| machine.on_lost(now, process, out));
        }
    }

    fn on_submission(&self, frontend: &Arc<FrontendPeer>, ask: Submission, left: &mut SubmitBatch) -> io::Result<()> {
        left.refresh(self, ask.header.model);
        match self.leadership.is_open() && left.has_device(ask.header.model) {
            true => left.submit(frontend, ask),
            false => self.park(frontend, ask),
        }
    }

    /// Parks a request that arrives while an epoch begins, until the running tasks are known and
    /// its sub-cluster has a device or is given up.
    fn park(&self, frontend: &FrontendPeer, ask: Submission) -> io::Result<()> {
        let RequestHeader { request, rows, model, .. } = ask.header;
        let mut places = frontend.requests.lock();
        let asked = places.parked;
        let place = vacant(&mut places, request)?;
        if asked >= MAX_PARKED {
            let refused = Failure::QueueFull { bound: MAX_PARKED, retry_after: RETRY_AFTER };
            frontend.link.send(&Message::RequestEnd(RequestEnd { request, answer: Err(refused) }));
            return Ok(());
        }
        place.insert(SubmittedRequest::Parked(Box::new(ask), Instant::now()));
        places.parked += 1;
        drop(places);
        let id = RequestId { frontend: ProcessId(u64::from(frontend.id)), number: request };
        let is_primary = self.update(|machine, now, out| {
            machine.on_ask(now, id, (rows, split(model).0), out);
            machine.primary_epoch().is_some()
        });
        if !is_primary {
            // The primary will receive it.
            frontend.requests.lock().remove(request);
        }
        Ok(())
    }

    fn cancel_request(&self, frontend: &FrontendPeer, request: u64) {
        let mut places = frontend.requests.lock();
        match places.by_number.get(&request) {
            Some(SubmittedRequest::Ticket(ticket)) => ticket.cancel(),
            Some(SubmittedRequest::Parked(..)) => {
                places.remove(request);
                drop(places);
                let id = RequestId { frontend: ProcessId(u64::from(frontend.id)), number: request };
                self.update(|machine, _, _| machine.on_withdraw(id));
            }
            None => {}
        }
    }

    /// Returns the frontend of a request, and the sub-clusters.
    pub(super) fn frontend_of(&self, request: RequestId) -> Option<(Arc<FrontendPeer>, SubClusters)> {
        let peers = self.peers.lock();
        let id = u32::try_from(request.frontend.0).ok()?;
        let frontend = peers.frontends.get(&id).cloned()?;
        if !peers.sub_clusters.is_empty() {
            return Some((frontend, peers.sub_clusters.clone()));
        }
        drop(peers);
        send_end(&frontend, request.number, Err(Failure::NotLoaded));
        None
    }
}

/// Requests submitted since the engines were last woken: one wake-up for all that arrive together.
#[derive(Default)]
struct SubmitBatch {
    sub_clusters: SubClusters,
    count: usize,
    /// A bit for each sub-cluster that has received a request.
    touched: u64,
}

impl SubmitBatch {
    /// Returns true if the sub-cluster of a model is known without a look at the peers, and has a
    /// device.
    fn has_device(&self, model: ModelId) -> bool {
        self.sub_clusters.get(split(model).0).is_some_and(|part| part.devices.load(Ordering::Acquire) > 0)
    }

    /// Looks for the sub-cluster of a model if it is not known.
    fn refresh(&mut self, shared: &SchedulerShared, model: ModelId) {
        if self.sub_clusters.get(split(model).0).is_none() {
            self.sub_clusters = shared.peers.lock().sub_clusters.clone();
        }
    }

    /// Submits a request to its engine directly, as happens most of the time.
    fn submit(&mut self, frontend: &Arc<FrontendPeer>, ask: Submission) -> io::Result<()> {
        let (at, _) = split(ask.header.model);
        let mut places = frontend.requests.lock();
        let request = ask.header.request;
        let place = vacant(&mut places, request)?;
        // With the lock held, so that the result always finds the request's state.
        match submit_to_engine(&self.sub_clusters, frontend, ask, Duration::ZERO) {
            Ok(ticket) => drop(place.insert(SubmittedRequest::Ticket(ticket))),
            Err(refused) => frontend.link.send(&Message::RequestEnd(RequestEnd { request, answer: Err(refused) })),
        }
        drop(places);
        self.touched |= 1 << (at % MAX_SUB_CLUSTERS);
        self.count += 1;
        if self.count >= WAKEUP_BATCH {
            self.wake_engines();
        }
        Ok(())
    }

    fn wake_engines(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.count) > 0 {
            let woken = self.sub_clusters.iter().filter(|part| touched & 1 << part.place != 0);
            woken.for_each(|part| part.engine.wake_scheduler());
        }
    }
}

impl Drop for SubmitBatch {
    fn drop(&mut self) {
        self.wake_engines();
    }
}

/// Returns the entry of a request that must not exist yet.
fn vacant(places: &mut FrontendRequests, request: u64) -> Result<VacantEntry<'_, u64, SubmittedRequest>, DecodeError> {
    match places.by_number.entry(request) {
        Entry::Vacant(place) => Ok(place),
        Entry::Occupied(_) => Err(DecodeError(format!("request {request} comes a second time"))),
    }
}

/// Submits a parked request to the engine, or refuses it. Does nothing for a request that the
/// engine already has.
pub(super) fn admit(sub_clusters: &SubClusters, frontend: &Arc<FrontendPeer>, request: u64) {
    let mut places = frontend.requests.lock();
    if !matches!(places.by_number.get(&request), Some(SubmittedRequest::Parked(..))) {
        return;
    }
    let Some(SubmittedRequest::Parked(ask, came)) = places.remove(request) else { return };
    let (at, _) = split(ask.header.model);
    match submit_to_engine(sub_clusters, frontend, *ask, came.elapsed()) {
        Ok(ticket) => drop(places.by_number.insert(request, SubmittedRequest::Ticket(ticket))),
        Err(refused) => frontend.link.send(&Message::RequestEnd(RequestEnd { request, answer: Err(refused) })),
    }
    drop(places);
    if let Some(part) = sub_clusters.get(at) {
        part.engine.wake_scheduler();
    }
}

/// Submits a request without waking the engine; it has been parked for `waited`.
fn submit_to_engine(
    sub_clusters: &SubClusters,
    frontend: &Arc<FrontendPeer>,
    ask: Submission,
    waited: Duration,
) -> Result<Ticket, Failure> {
    let Submission { header: ask, graph } = ask;
    let (to, request) = (Arc::clone(frontend), ask.request);
    let (at, model) = split(ask.model);
    let part = sub_clusters.get(at).ok_or(Failure::NotLoaded)?;
    let on_answer = Box::new(move |answer: JobResult| send_end(&to, request, answer));
    part.engine.submit_remote(RemoteJob {
        model,
        origin: RemoteRows { frontend: frontend.id, request, first_row: 0 },
        rows: ask.rows as usize,
        extent: Extent { length: ask.length, limit: 0 },
        graph,
        stream: ask.stream,
        sizes: ask.sizes,
        bytes: usize::try_from(ask.bytes).unwrap_or(usize::MAX),
        timeout: ask.left_ns.map(|left| Duration::from_nanos(left).saturating_sub(waited)),
        age: Duration::from_millis(ask.age_ms.into()) + waited,
        way: ask.way(),
        client: ask.client,
        priority: ask.priority,
        on_answer,
    })
}

/// Completes a request that an earlier scheduler had started, and that has succeeded. Its times are
/// unknown.
pub(super) fn complete_inherited(frontend: &FrontendPeer, request: u64) {
    let answered = JobOutput { outputs: Vec::new(), queued: Nanos::ZERO, executed: Nanos::ZERO, batch: 1, late: false };
    send_end(frontend, request, Ok(answered));
}

fn send_end(frontend: &FrontendPeer, request: u64, answer: JobResult) {
    // The ticket is dropped without the lock.
    let place = frontend.requests.lock().remove(request);
    drop(place);
    frontend.link.send(&Message::RequestEnd(RequestEnd { request, answer }));
}

/// Completes an address that names only a port, with the host of the connection.
fn reachable(address: String, peer: Option<SocketAddr>) -> String {
    match (address.strip_prefix(':').and_then(|port| port.parse().ok()), peer) {
        (Some(port), Some(peer)) => SocketAddr::new(peer.ip(), port).to_string(),
        _ => address,
    }
}
