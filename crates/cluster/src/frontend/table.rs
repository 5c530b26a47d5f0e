//! The requests of a front end until they are answered: each exactly once, whoever speaks of it when and how often.
//!
//! A request's number is its place in the table and how often the place was taken before, so that a number never comes
//! again and what comes late meets nobody. It is answered when the scheduler has said how it ended and, if that was
//! well, all rows have come; or when who owes something is gone; or a while after its time. Whoever takes it out of the
//! table answers it, so nobody else can.
//!
//! One that had been asked of a scheduler that is gone, or not the primary now, is an orphan: the next primary is asked
//! again, and since the word of the first may be lost, it is answered as soon as all its rows are here.

use crate::handover::{Epoch, Following, Process, Sender};
use crate::plane::{Ask, Link};
use ripieno_base::Nanos;
use ripieno_executor::Tensor;
use ripieno_runtime::{Answer, Answered, Ending, Failure, ModelMetrics, ModelSnapshot, Refused, check_joinable, join};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long after its time a request is answered from here: its scheduler has not said anything.
const GRACE: Duration = Duration::from_secs(1);
/// Without a scheduler requests wait for the next one so long, and are told to come again then.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long outputs may take after the scheduler has said that they are there.
const ON_THE_WAY: Duration = Duration::from_secs(10);
/// When a client may try again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A request that waits for its answer.
pub(super) struct Pending {
    /// What its scheduler is asked, with the model's id here.
    pub(super) ask: Ask,
    pub(super) inputs: Arc<[Tensor]>,
    pub(super) came: Instant,
    /// When its client is told that it is too late.
    pub(super) expires: Option<Instant>,
    pub(super) live: Live,
    pub(super) on_answer: Box<dyn FnOnce(Answer) + Send>,
    /// Without outputs; and since when it has been known.
    pub(super) ended: Option<(Answered, Instant)>,
    /// What devices have asked for.
    pub(super) pieces: Vec<Piece>,
    /// Whoever was asked for it first is gone.
    pub(super) orphan: bool,
}

/// The numbers of a model.
pub(super) struct Counts {
    pub(super) metrics: ModelMetrics,
    live: AtomicUsize,
}

/// A request of it that waits.
pub(super) struct Live(Arc<Counts>);

impl Counts {
    pub(super) fn new() -> Arc<Counts> {
        // Batches are counted where they run.
        Arc::new(Counts { metrics: ModelMetrics::new(0), live: AtomicUsize::new(0) })
    }

    pub(super) fn enter(self: &Arc<Counts>) -> Live {
        self.live.fetch_add(1, Relaxed);
        Live(Arc::clone(self))
    }

    pub(super) fn snapshot(&self) -> ModelSnapshot {
        self.metrics.snapshot(self.live.load(Relaxed))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Relaxed);
    }
}

/// Rows that a device has asked for.
pub(super) struct Piece {
    first_row: u32,
    rows: u32,
    /// The connection that owes their outputs.
    connection: u64,
    outputs: Option<Vec<Tensor>>,
}

/// All of them.
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The primary, while it is there.
    scheduler: Option<Arc<Link>>,
    pub(super) following: Following,
    /// Since when nobody is there; none if nobody ever was.
    lost: Option<Instant>,
    /// Connections of backends that are there.
    connections: Vec<u64>,
    /// Whether nothing new is taken.
    pub(super) closed: bool,
}

#[derive(Default)]
struct Slot {
    taken: u32,
    pending: Option<Box<Pending>>,
}

/// A request that is to be answered, by whoever has it.
pub(super) struct Due(Box<Pending>, Answer);

/// What becomes of a scheduler that says that it is the primary.
pub(super) enum Followed {
    /// It is not any more: this epoch is known.
    Stale(Epoch),
    /// It is asked from now on.
    Asks {
        /// Whose outputs are here already.
        due: Vec<Due>,
        /// What else is unanswered.
        again: Vec<Ask>,
    },
}

impl Table {
    /// Of so many requests.
    pub(super) fn new(most: u32) -> Table {
        let slots = (0..most).map(|_| Slot::default()).collect();
        Table {
            slots,
            free: (0..most).rev().collect(),
            scheduler: None,
            following: Following::default(),
            lost: None,
            connections: Vec::new(),
            closed: false,
        }
    }

    /// Takes a request in: its number, and who is to be asked for it; if none now, the next primary will be.
    pub(super) fn insert(&mut self, mut pending: Pending, now: Instant) -> Result<(u64, Option<Arc<Link>>), Refused> {
        if self.closed {
            return Err(Refused::ShuttingDown);
        }
        if self.scheduler.is_none() && (self.lost.is_none() || self.is_abandoned(now)) {
            return Err(Refused::Outage { cause: "no scheduler is there".to_owned(), retry_after: RETRY_AFTER });
        }
        let bound = self.slots.len();
        let at = self.free.pop().ok_or(Refused::QueueFull { bound, retry_after: RETRY_AFTER })?;
        let slot = &mut self.slots[at as usize];
        slot.taken = slot.taken.wrapping_add(1);
        let request = u64::from(slot.taken) << 32 | u64::from(at);
        pending.ask.request = request;
        slot.pending = Some(Box::new(pending));
        Ok((request, self.scheduler.clone()))
    }

    /// The primary, while it is there.
    pub(super) fn scheduler(&self) -> Option<Arc<Link>> {
        self.scheduler.clone()
    }

    /// Whether that is who is asked.
    pub(super) fn asks(&self, link: &Arc<Link>) -> bool {
        self.scheduler.as_ref().is_some_and(|scheduler| Arc::ptr_eq(scheduler, link))
    }

    /// Whether there is no primary, and has not been for long.
    pub(super) fn is_abandoned(&self, now: Instant) -> bool {
        self.scheduler.is_none() && self.lost.is_some_and(|lost| now > lost + PATIENCE)
    }

    /// A scheduler says that it is the primary.
    pub(super) fn follow_primary(
        &mut self,
        link: &Arc<Link>,
        (epoch, process): (Epoch, Process),
        now: Instant,
    ) -> Followed {
        let another = match self.following.on_heartbeat(process, epoch) {
            Sender::Stale(epoch) => return Followed::Stale(epoch),
            Sender::NewPrimary => true,
            Sender::SamePrimary => !self.asks(link),
        };
        if !another {
            return Followed::Asks { due: Vec::new(), again: Vec::new() };
        }
        self.scheduler = Some(Arc::clone(link));
        let due = self.orphan_all();
        let unanswered = self.slots.iter().filter_map(|slot| slot.pending.as_ref()).filter(|it| it.ended.is_none());
        Followed::Asks { due, again: unanswered.map(|pending| pending.ask_at(now)).collect() }
    }

    /// A connection to a scheduler has ended. Whose outputs are here already, if that was the primary.
    pub(super) fn lose(&mut self, link: &Arc<Link>, now: Instant) -> Vec<Due> {
        if !self.asks(link) {
            return Vec::new();
        }
        self.scheduler = None;
        self.lost = Some(now);
        if let Some(primary) = self.following.primary() {
            self.following.on_lost(primary);
        }
        self.orphan_all()
    }

    /// Nobody that was asked before will say how requests end.
    fn orphan_all(&mut self) -> Vec<Due> {
        let mut here = Vec::new();
        for pending in self.slots.iter_mut().filter_map(|slot| slot.pending.as_mut()) {
            pending.orphan |= pending.ended.is_none();
            if pending.orphan && pending.rows_here() == pending.ask.rows {
                here.push(pending.ask.request);
            }
        }
        here.into_iter().filter_map(|request| self.finish(request)).collect()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn get(&mut self, request: u64) -> Option<&mut Pending> {
        let slot = self.slots.get_mut(request as u32 as usize)?;
        slot.pending.as_deref_mut().filter(|_| u64::from(slot.taken) == request >> 32)
    }

    /// Takes a request out, to be answered so.
    pub(super) fn take(&mut self, request: u64, answer: Answer) -> Option<Due> {
        self.get(request)?;
        let at = request as u32;
        let pending = self.slots[at as usize].pending.take()?;
        self.free.push(at);
        Some(Due(pending, answer))
    }

    /// The scheduler says how a request has ended.
    pub(super) fn end(&mut self, request: u64, answer: Answer, now: Instant) -> Option<Due> {
        let answered = match answer {
            Err(failure) => return self.take(request, Err(failure)),
            Ok(answered) => answered,
        };
        self.get(request)?.ended = Some((answered, now));
        let owes = |connection: &u64| !self.connections.contains(connection);
        let is_lost = self.slots[request as u32 as usize].pending.as_ref()?.owing().any(|connection| owes(&connection));
        if is_lost { self.take(request, Err(lost())) } else { self.finish(request) }
    }

    /// A device asks for rows: the inputs of the request, and how many rows it has.
    pub(super) fn pull(
        &mut self,
        request: u64,
        first_row: u32,
        rows: u32,
        connection: u64,
    ) -> Option<(Arc<[Tensor]>, u32)> {
        let pending = self.get(request)?;
        if first_row.checked_add(rows)? > pending.ask.rows || rows == 0 {
            return None;
        }
        // Who asks again does so for a device that was lost, or another scheduler, which may cut otherwise.
        let apart = |piece: &Piece| piece.first_row + piece.rows <= first_row || first_row + rows <= piece.first_row;
        pending.pieces.retain(apart);
        pending.pieces.push(Piece { first_row, rows, connection, outputs: None });
        Some((Arc::clone(&pending.inputs), pending.ask.rows))
    }

    /// Outputs of rows have come.
    pub(super) fn outputs(&mut self, request: u64, first_row: u32, rows: u32, outputs: Vec<Tensor>) -> Option<Due> {
        let pieces = &mut self.get(request)?.pieces;
        let piece = pieces.iter_mut().find(|piece| (piece.first_row, piece.rows) == (first_row, rows))?;
        piece.outputs = Some(outputs);
        self.finish(request)
    }

    fn finish(&mut self, request: u64) -> Option<Due> {
        let pending = self.get(request)?;
        if !pending.orphan && pending.ended.is_none() || pending.rows_here() < pending.ask.rows {
            return None;
        }
        let answered = match pending.ended.take() {
            Some((answered, _)) => answered,
            None => pending.orphaned(),
        };
        pending.pieces.sort_unstable_by_key(|piece| piece.first_row);
        let mut parts: Vec<Vec<Tensor>> = pending.pieces.drain(..).filter_map(|piece| piece.outputs).collect();
        let joined = match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => check_joinable(&parts).map(|()| join(&parts)),
        };
        self.take(request, joined.map(|outputs| Answered { outputs, ..answered }).map_err(Failure::Failed))
    }

    /// A backend's connection is there.
    pub(super) fn connect(&mut self, connection: u64) {
        self.connections.push(connection);
    }

    /// It has ended: who has only its outputs to wait for waits in vain.
    pub(super) fn disconnect(&mut self, connection: u64) -> Vec<Due> {
        self.connections.retain(|&other| other != connection);
        self.take_all(|pending| (pending.ended.is_some() && pending.owing().any(|owes| owes == connection)).then(lost))
    }

    /// No scheduler comes: nobody will say how these end.
    pub(super) fn give_up(&mut self) -> Vec<Due> {
        let gone = || Failure::Outage { cause: "the scheduler was lost".to_owned(), retry_after: RETRY_AFTER };
        self.take_all(|pending| pending.ended.is_none().then(gone))
    }

    /// Whose time is over, and more.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Due> {
        self.take_all(|pending| match (&pending.ended, pending.expires) {
            (Some((_, since)), _) if now > *since + ON_THE_WAY => Some(lost()),
            (None, Some(expires)) if now > expires + GRACE => Some(Failure::Expired),
            _ => None,
        })
    }

    /// Everybody.
    pub(super) fn dismiss(&mut self) -> Vec<Due> {
        self.take_all(|_| Some(Failure::ShuttingDown))
    }

    fn take_all(&mut self, why: impl Fn(&Pending) -> Option<Failure>) -> Vec<Due> {
        let mut due = Vec::new();
        if self.len() == 0 {
            return due;
        }
        for (at, slot) in (0..).zip(&mut self.slots) {
            if let Some(failure) = slot.pending.as_ref().and_then(|pending| why(pending))
                && let Some(pending) = slot.pending.take()
            {
                self.free.push(at);
                due.push(Due(pending, Err(failure)));
            }
        }
        due
    }
}

fn lost() -> Failure {
    Failure::Outage { cause: "the backend that ran it was lost".to_owned(), retry_after: RETRY_AFTER }
}

impl Pending {
    /// What the new primary is asked.
    fn ask_at(&self, now: Instant) -> Ask {
        let left = self.expires.map(|expires| expires.saturating_duration_since(now));
        Ask { left_ns: left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)), ..self.ask }
    }

    /// How many rows have come.
    fn rows_here(&self) -> u32 {
        self.pieces.iter().filter(|piece| piece.outputs.is_some()).map(|piece| piece.rows).sum()
    }

    /// How it ended, as far as is known without its scheduler.
    fn orphaned(&self) -> Answered {
        let late = self.expires.is_some_and(|expires| Instant::now() > expires);
        Answered { outputs: Vec::new(), queued: Nanos::ZERO, executed: Nanos::ZERO, batch: 1, late }
    }

    /// The connections that outputs are still to come from.
    fn owing(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.iter().filter(|piece| piece.outputs.is_none()).map(|piece| piece.connection)
    }
}

impl Due {
    /// Its number, if the primary may not know that it has ended.
    pub(super) fn orphan(&self) -> Option<u64> {
        self.0.orphan.then_some(self.0.ask.request)
    }

    /// Answers and counts it.
    pub(super) fn answer(self) {
        let Due(pending, answer) = self;
        let Pending { ask: Ask { rows, .. }, came, live, on_answer, .. } = *pending;
        let metrics = &live.0.metrics;
        let took = Nanos(i64::try_from(came.elapsed().as_nanos()).unwrap_or(i64::MAX));
        match &answer {
            Ok(Answered { queued, executed, late, .. }) => {
                metrics.on_success(*late, rows as usize, took, *queued, *executed);
            }
            Err(Failure::Refused(_)) => metrics.on_refused(),
            Err(failure) => metrics.on_failure(Ending::of(failure), took),
        }
        // Whoever has the answer does not wait any more.
        drop(live);
        on_answer(answer);
    }
}

#[cfg(test)]
mod tests;
