//! The requests of a frontend until they are answered: each exactly once, in whatever order
//! messages about it come.
//!
//! A request's number consists of its slot in the table and the number of times that the slot was
//! used. So a number never repeats, and late messages find nothing. A request is answered when the
//! scheduler has reported its end and, if it succeeded, all rows have arrived. It is also answered
//! when the process that owes something is lost, or some time after its deadline. The code that
//! removes a request from the table answers it, so no other code can.
//!
//! An answer that has come after its deadline is late, or an error if the model refuses late
//! requests, whatever the scheduler reports: only the frontend knows when its client gets it.
//!
//! A request whose scheduler is lost, or no longer the primary, is orphaned: it is sent to the next
//! primary, and it is answered as soon as all its rows have arrived, since the first scheduler's
//! report may be lost.

use super::pending::{AnswerLimits, CompletedRequest, PendingRequest, Piece, Resubmission};
use super::steps::StepReceiver;
use super::way::{ExpectedWay, RequestWays, measured};
use crate::handover::{Epoch, Following, HeartbeatSender, ProcessId};
use crate::plane::{PeerLink, RequestHeader};
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::Tensor;
use ripieno_runtime::{DelayPercentiles, Failure, JobOutput, JobResult, SlowLink, check_joinable, join};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after a request's deadline at which the frontend answers it, if the scheduler has not
/// reported.
const EXPIRY_GRACE: Duration = Duration::from_secs(1);
/// Longest time between the scheduler's report of success and the arrival of all outputs.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);
/// The error of a request whose backend was lost.
const BACKEND_LOST: &str = "the backend that ran it was lost";
/// Time after which a client may retry.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// All requests of a frontend that are in flight.
pub(super) struct RequestTable {
    slots: Vec<TableSlot>,
    free: Vec<u32>,
    /// The primary, while it is connected.
    scheduler: Option<Arc<PeerLink>>,
    pub(super) following: Following,
    /// Time at which the primary was lost; `None` if there never was one.
    lost: Option<Instant>,
    /// Time that requests wait for another scheduler.
    pub(super) scheduler_timeout: Duration,
    ways: RequestWays,
    /// Numbers of the connected backends.
    connections: Vec<u64>,
    /// Whether new requests are refused.
    pub(super) closed: bool,
}

#[derive(Default)]
struct TableSlot {
    taken: u32,
    pending: Option<Box<PendingRequest>>,
}

/// The effect of a heartbeat.
pub(super) enum HeartbeatOutcome {
    /// The sender's epoch is over; this later one is known.
    Stale(Epoch),
    /// The sender is the primary, and requests go to it from now on.
    Primary {
        /// Requests whose outputs have all arrived.
        completed: Vec<CompletedRequest>,
        /// All other unanswered requests, which the new primary must receive.
        resend: Vec<Resubmission>,
    },
}

impl RequestTable {
    /// Returns a table of at most `most` requests, which wait so long for another scheduler.
    pub(super) fn new(most: u32, scheduler_timeout: Duration) -> RequestTable {
        let slots = (0..most).map(|_| TableSlot::default()).collect();
        RequestTable {
            slots,
            free: (0..most).rev().collect(),
            scheduler: None,
            following: Following::default(),
            lost: None,
            scheduler_timeout,
            ways: RequestWays::default(),
            connections: Vec::new(),
            closed: false,
        }
    }

    /// Returns the percentiles of the time of a request that passes neither in the scheduler nor on
    /// a device.
    pub(super) fn way(&self) -> Option<DelayPercentiles> {
        self.ways.percentiles()
    }

    /// Inserts a request. Returns its header and the scheduler that must receive it; without a
    /// scheduler, the next primary receives it.
    pub(super) fn insert(
        &mut self,
        mut pending: PendingRequest,
        now: Instant,
    ) -> Result<(RequestHeader, Option<Arc<PeerLink>>), Failure> {
        if self.closed {
            return Err(Failure::ShuttingDown);
        }
        if self.scheduler.is_none() && (self.lost.is_none() || self.is_abandoned(now)) {
            return Err(outage("no scheduler is there"));
        }
        let (bound, PendingRequest { came, limits, .. }) = (self.slots.len(), &pending);
        let model = pending.header.model;
        let way = self.ways.expected(model, *came, *limits);
        let ExpectedWay { span, link } = way;
        if limits.is_enforced() && limits.expires.is_some_and(|expires| *came + span >= expires) {
            let Some(link) = link else { return Err(Failure::Expired) };
            self.ways.on_refused(model, now, way);
            return Err(Failure::SlowLink { link, takes: span });
        }
        let at = self.free.pop().ok_or(Failure::QueueFull { bound, retry_after: RETRY_AFTER })?;
        let slot = &mut self.slots[at as usize];
        slot.taken = slot.taken.wrapping_add(1);
        let request = u64::from(slot.taken) << 32 | u64::from(at);
        let header = RequestHeader { request, way: RequestHeader::way_of(span), ..pending.header };
        pending.header = header;
        slot.pending = Some(Box::new(pending));
        Ok((header, self.scheduler.clone()))
    }

    /// Returns the primary, while it is connected.
    pub(super) fn scheduler(&self) -> Option<Arc<PeerLink>> {
        self.scheduler.clone()
    }

    /// Returns true if requests go to this scheduler.
    pub(super) fn is_primary(&self, link: &Arc<PeerLink>) -> bool {
        self.scheduler.as_ref().is_some_and(|scheduler| Arc::ptr_eq(scheduler, link))
    }

    /// Returns true if there has been no primary for longer than requests wait.
    pub(super) fn is_abandoned(&self, now: Instant) -> bool {
        self.scheduler.is_none() && self.lost.is_some_and(|lost| now > lost + self.scheduler_timeout)
    }

    /// Handles a scheduler's message that it is the primary.
    pub(super) fn on_heartbeat(
        &mut self,
        link: &Arc<PeerLink>,
        (epoch, process): (Epoch, ProcessId),
        now: Instant,
    ) -> HeartbeatOutcome {
        let another = match self.following.on_heartbeat(process, epoch) {
            HeartbeatSender::Stale(epoch) => return HeartbeatOutcome::Stale(epoch),
            HeartbeatSender::NewPrimary => true,
            HeartbeatSender::SamePrimary => !self.is_primary(link),
        };
        if !another {
            return HeartbeatOutcome::Primary { completed: Vec::new(), resend: Vec::new() };
        }
        self.scheduler = Some(Arc::clone(link));
        let due = self.orphan_all();
        let unanswered = self.slots.iter().filter_map(|slot| slot.pending.as_ref()).filter(|it| it.ended.is_none());
        HeartbeatOutcome::Primary { completed: due, resend: unanswered.map(|it| it.at(now)).collect() }
    }

    /// Handles the end of a connection to a scheduler. If it was the primary, returns the requests
    /// whose outputs have all arrived.
    pub(super) fn on_scheduler_lost(&mut self, link: &Arc<PeerLink>, now: Instant) -> Vec<CompletedRequest> {
        if !self.is_primary(link) {
            return Vec::new();
        }
        self.scheduler = None;
        self.lost = Some(now);
        if let Some(primary) = self.following.primary() {
            self.following.on_lost(primary);
        }
        self.orphan_all()
    }

    /// Marks unfinished requests as orphaned, since their scheduler will not report. Returns those
    /// that are complete.
    fn orphan_all(&mut self) -> Vec<CompletedRequest> {
        let mut here = Vec::new();
        for pending in self.slots.iter_mut().filter_map(|slot| slot.pending.as_mut()) {
            pending.orphaned |= pending.ended.is_none();
            if pending.orphaned && pending.rows_received() == pending.header.rows {
                here.push(pending.header.request);
            }
        }
        here.into_iter().filter_map(|request| self.complete_if_ready(request)).collect()
    }

    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn get(&mut self, request: u64) -> Option<&mut PendingRequest> {
        let slot = self.slots.get_mut(request as u32 as usize)?;
        slot.pending.as_deref_mut().filter(|_| u64::from(slot.taken) == request >> 32)
    }

    /// Removes a request, to be answered with this result.
    pub(super) fn complete(&mut self, request: u64, answer: JobResult) -> Option<CompletedRequest> {
        self.get(request)?;
        let at = request as u32;
        let pending = self.slots[at as usize].pending.take()?;
        self.free.push(at);
        Some(CompletedRequest(pending, answer))
    }

    /// Handles the scheduler's report that a request has ended.
    pub(super) fn on_end(&mut self, request: u64, answer: JobResult, now: Instant) -> Option<CompletedRequest> {
        let answered = match answer {
            Err(failure) => {
                let failure = self.by_link(request, failure, now);
                return self.complete(request, Err(failure));
            }
            Ok(answered) => answered,
        };
        self.get(request)?.ended = Some((answered, now));
        let owes = |connection: &u64| !self.connections.contains(connection);
        let is_lost =
            self.slots[request as u32 as usize].pending.as_ref()?.outstanding().any(|connection| owes(&connection));
        if is_lost { self.complete(request, Err(outage(BACKEND_LOST))) } else { self.complete_if_ready(request) }
    }

    /// Returns the failure of a request, which names the link that took the request's time. Learns
    /// from it.
    fn by_link(&mut self, request: u64, failure: Failure, now: Instant) -> Failure {
        let Some(PendingRequest { header, came, limits, .. }) = self.get(request) else { return failure };
        let (model, way) = (header.model, header.way());
        let limit = limits.expires.map_or(Duration::MAX, |expires| expires.saturating_duration_since(*came));
        let (link, span) = match failure {
            Failure::SlowLink { link: SlowLink::Inputs, takes } => {
                self.ways.add_slow_inputs(model, takes);
                (SlowLink::Inputs, takes)
            }
            // The scheduler knows only the time that the way leaves.
            Failure::TooLong { needed } if needed < limit && needed + way >= limit => (SlowLink::Messages, way),
            _ => return failure,
        };
        self.ways.on_refused(model, now, ExpectedWay { span, link: Some(link) });
        Failure::SlowLink { link, takes: span }
    }

    /// Returns the link for which requests of a model were refused in the last seconds, and its
    /// time.
    pub(super) fn slow_link(&self, model: ModelId, now: Instant) -> Option<(SlowLink, Duration)> {
        let ExpectedWay { span, link } = self.ways.refused(model, now)?;
        Some((link?, span))
    }

    /// Handles a device's pull of rows. Returns the inputs of the request, and its number of rows.
    pub(super) fn pull(
        &mut self,
        request: u64,
        first_row: u32,
        rows: u32,
        connection: u64,
    ) -> Option<(Arc<[Tensor]>, u32)> {
        let pending = self.get(request)?;
        if first_row.checked_add(rows)? > pending.header.rows || rows == 0 {
            return None;
        }
        // Overlapping rows are pulled again after the loss of a device, or by another scheduler,
        // which may split differently.
        let apart = |piece: &Piece| piece.first_row + piece.rows <= first_row || first_row + rows <= piece.first_row;
        pending.pieces.retain(apart);
        pending.pieces.push(Piece { first_row, rows, connection, pulled: Duration::ZERO, outputs: None });
        Some((Arc::clone(&pending.inputs), pending.header.rows))
    }

    /// Handles a pull of a request whose client has read a step: it runs again, and the repeated
    /// steps might differ. Returns the request, which ends.
    pub(super) fn end_repeated_stream(&mut self, request: u64) -> Option<CompletedRequest> {
        let pending = self.get(request).filter(|pending| pending.streamed)?;
        let cause = if pending.orphaned { "another scheduler has taken over" } else { BACKEND_LOST };
        self.complete(request, Err(outage(cause)))
    }

    /// Handles a step of a streamed answer. Returns its receiver; `None` if the step is of an
    /// earlier run.
    pub(super) fn on_step(&mut self, request: u64, connection: u64) -> Option<Arc<StepReceiver>> {
        let pending = self.get(request)?;
        pending.owed_by(connection)?;
        pending.streamed = true;
        pending.steps.clone()
    }

    /// Handles the outputs of rows, for which their device waited this many µs. The outputs of a
    /// streamed answer must follow its steps.
    pub(super) fn on_outputs(
        &mut self,
        request: u64,
        (first_row, rows): (u32, u32),
        connection: u64,
        (outputs, pulled_us): (Vec<Tensor>, u32),
    ) -> Option<CompletedRequest> {
        let pending = self.get(request)?;
        if pending.steps.is_some() && pending.owed_by(connection).is_none() {
            return None;
        }
        let mut pieces = pending.pieces.iter_mut();
        let piece = pieces.find(|piece| (piece.first_row, piece.rows) == (first_row, rows))?;
        (piece.outputs, piece.pulled) = (Some(outputs), Duration::from_micros(pulled_us.into()));
        self.complete_if_ready(request)
    }

    fn complete_if_ready(&mut self, request: u64) -> Option<CompletedRequest> {
        let pending = self.get(request)?;
        if !pending.orphaned && pending.ended.is_none() || pending.rows_received() < pending.header.rows {
            return None;
        }
        let (now, AnswerLimits { due, expires }) = (Instant::now(), pending.limits);
        let model = pending.header.model;
        let reported = pending.ended.as_ref().filter(|_| pending.reports_times());
        let way = reported.and_then(|(answered, _)| measured(pending.came, now, answered));
        let answered = pending.ended.take().map_or_else(output_of_orphan, |(answered, _)| answered);
        let pulled = pending.pieces.iter().map(|piece| piece.pulled).max().unwrap_or_default();
        pending.pieces.sort_unstable_by_key(|piece| piece.first_row);
        let mut parts: Vec<Vec<Tensor>> = pending.pieces.drain(..).filter_map(|piece| piece.outputs).collect();
        if let Some(way) = way {
            self.ways.add(model, way, pulled);
        }
        if expires.is_some_and(|expires| now > expires) {
            return self.complete(request, Err(Failure::Expired));
        }
        let late = due.is_some_and(|due| now > due);
        let joined = match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => check_joinable(&parts).map(|()| join(&parts)),
        };
        let answer = joined.map(|outputs| JobOutput { outputs, late, ..answered }).map_err(Failure::Failed);
        self.complete(request, answer)
    }

    /// Registers a backend's connection.
    pub(super) fn on_backend_connected(&mut self, connection: u64) {
        self.connections.push(connection);
    }

    /// Handles the end of a backend's connection. Returns the requests that only waited for its
    /// outputs.
    pub(super) fn on_backend_lost(&mut self, connection: u64) -> Vec<CompletedRequest> {
        self.connections.retain(|&other| other != connection);
        self.complete_where(|pending| {
            (pending.ended.is_some() && pending.outstanding().any(|by| by == connection)).then(|| outage(BACKEND_LOST))
        })
    }

    /// Fails the requests that no scheduler has reported on, since no scheduler has come back.
    pub(super) fn fail_without_scheduler(&mut self) -> Vec<CompletedRequest> {
        self.complete_where(|pending| pending.ended.is_none().then(|| outage("the scheduler was lost")))
    }

    /// Removes the requests that are past their deadline or have waited too long for outputs.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<CompletedRequest> {
        self.complete_where(|pending| match (&pending.ended, pending.limits.expires) {
            (Some((_, since)), _) if now > *since + OUTPUT_TIMEOUT => Some(outage(BACKEND_LOST)),
            (None, Some(expires)) if now > expires + EXPIRY_GRACE => Some(Failure::Expired),
            _ => None,
        })
    }

    /// Fails all requests because of shutdown.
    pub(super) fn fail_all(&mut self) -> Vec<CompletedRequest> {
        self.complete_where(|_| Some(Failure::ShuttingDown))
    }

    fn complete_where(&mut self, why: impl Fn(&PendingRequest) -> Option<Failure>) -> Vec<CompletedRequest> {
        let mut due = Vec::new();
        if self.len() == 0 {
            return due;
        }
        for (at, slot) in (0..).zip(&mut self.slots) {
            if let Some(failure) = slot.pending.as_ref().and_then(|pending| why(pending))
                && let Some(pending) = slot.pending.take()
            {
                self.free.push(at);
                due.push(CompletedRequest(pending, Err(failure)));
            }
        }
        due
    }
}

/// Returns the result of a request whose scheduler was lost; its times are unknown.
fn output_of_orphan() -> JobOutput {
    JobOutput { outputs: Vec::new(), queued: Nanos::ZERO, executed: Nanos::ZERO, batch: 1, late: false }
}

fn outage(cause: &str) -> Failure {
    Failure::Outage { cause: cause.to_owned(), retry_after: RETRY_AFTER }
}

#[cfg(test)]
mod tests;
