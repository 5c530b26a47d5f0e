//! The queue of a model for whole batches: who waits, who is passed over, who is dropped, and which batch can be gathered.

use super::requests::{RequestState, Requests};
use crate::{Outbox, Request, Why};
use ripieno_base::{List, Nanos, Time};
use ripieno_model::DropRule;

/// Requests of one model: those that may still be punctual, in an order, and beside them those that were passed over, by
/// deadline: who cannot be punctual any more, as far as the drop rule keeps them, and a second class that still can.
///
/// Insertion walks from the tail: O(1) where all requests have the same SLO, which is the normal case.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queue {
    waiting: List,
    rows: u64,
    /// How many waiting requests have more than one row.
    wide: usize,
    overdue: List,
}

/// Who stands before whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueOrder {
    /// The earlier deadline, then the earlier arrival.
    Deadline,
    /// The earlier arrival, then the earlier deadline.
    Arrival,
}

impl Queue {
    pub(crate) fn head(&self) -> Option<u32> {
        self.waiting.front()
    }

    pub(crate) fn last(&self) -> Option<u32> {
        self.waiting.back()
    }

    /// Rows that wait.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The first of those that were passed over.
    pub(crate) fn overdue(&self) -> Option<u32> {
        self.overdue.front()
    }

    /// Any request that stands here, punctual ones first.
    pub(crate) fn any(&self) -> Option<u32> {
        self.head().or(self.overdue())
    }

    pub(crate) fn push(&mut self, requests: &mut Requests, slot: u32, order: QueueOrder) {
        requests.set_state(slot, RequestState::Waiting);
        let rows = requests.get(slot).rows;
        let (links, request) = requests.split();
        self.waiting.insert_by_key(links, slot, |slot| {
            let (arrived, deadline) = (request(slot).arrived, request(slot).deadline);
            if order == QueueOrder::Deadline { (deadline, arrived) } else { (arrived, deadline) }
        });
        self.rows += u64::from(rows);
        self.wide += usize::from(rows > 1);
    }

    /// Adds a request that was passed over.
    pub(crate) fn push_overdue(&mut self, requests: &mut Requests, slot: u32) {
        requests.set_state(slot, RequestState::Overdue);
        // Who is wide is overdue long before the deadline, and must not hide those behind.
        let (links, request) = requests.split();
        self.overdue.insert_by_key(links, slot, |slot| request(slot).deadline);
    }

    /// Takes a request out; it runs from now on, or is pushed again, or ends.
    pub(crate) fn remove(&mut self, requests: &mut Requests, slot: u32) {
        if requests.state(slot) == RequestState::Overdue {
            self.overdue.remove(&mut requests.links, slot);
        } else {
            self.waiting.remove(&mut requests.links, slot);
            let rows = requests.get(slot).rows;
            self.rows -= u64::from(rows);
            self.wide -= usize::from(rows > 1);
        }
        requests.set_state(slot, RequestState::Running);
    }

    /// Ends all that stand here.
    pub(crate) fn reject_all(&mut self, requests: &mut Requests, why: Why, out: &mut Outbox) {
        while let Some(slot) = self.any() {
            self.remove(requests, slot);
            requests.reject(slot, why, out);
        }
    }

    /// Takes a request out of the order that will not be punctual: what becomes of it says the drop rule.
    pub(crate) fn pass_over(
        &mut self,
        requests: &mut Requests,
        now: Time,
        slot: u32,
        drop: DropRule,
        out: &mut Outbox,
    ) {
        self.remove(requests, slot);
        let expired = requests.get(slot).deadline <= now;
        match drop {
            DropRule::Hopeless | DropRule::Expired if expired => requests.reject(slot, Why::Expired, out),
            DropRule::Hopeless => requests.reject(slot, Why::Hopeless, out),
            DropRule::Expired | DropRule::Never => self.push_overdue(requests, slot),
        }
    }

    /// Drops those among the passed over who are too late by the drop rule; `alone` is how long so many rows take. Returns
    /// the rows dropped.
    pub(crate) fn expire(
        &mut self,
        requests: &mut Requests,
        now: Time,
        drop: DropRule,
        alone: impl Fn(u32) -> Nanos,
        out: &mut Outbox,
    ) -> usize {
        let mut dropped = 0;
        while self.next_expiry(requests, drop, &alone) <= now {
            let slot = self.overdue.front().expect("somebody expires");
            self.remove(requests, slot);
            dropped += requests.get(slot).rows as usize;
            let why = if drop == DropRule::Hopeless { Why::Hopeless } else { Why::Expired };
            requests.reject(slot, why, out);
        }
        dropped
    }

    /// When the first of the passed over is to be dropped.
    pub(crate) fn next_expiry(&self, requests: &Requests, drop: DropRule, alone: impl Fn(u32) -> Nanos) -> Time {
        let Some(first) = self.overdue.front().map(|slot| requests.get(slot)) else { return Time::NEVER };
        match drop {
            DropRule::Never => Time::NEVER,
            DropRule::Expired => first.deadline,
            DropRule::Hopeless => (first.deadline - alone(first.rows)).next(),
        }
    }

    /// The batch that begins with `first`, who has `left` rows from there to the end of the queue, or with who comes after those
    /// that are passed over for it: the fewest that let it reach its `target`; 0 passes over nobody. `room` is the largest batch
    /// that a head allows. Returns its first request, its rows, and whether the next request does not fit.
    pub(crate) fn gather(
        &self,
        requests: &Requests,
        from: (u32, u64),
        target: usize,
        room: impl Fn(u32) -> usize,
    ) -> Option<(u32, usize, bool)> {
        let (first, left) = self.skip(requests, from, target, &room);
        let rows = self.fill(requests, first, room(first), left);
        (rows > 0).then_some((first, rows, (rows as u64) < left))
    }

    /// Passes over the fewest from `first` on, who has `left` rows from there to the end of the queue, that let the batch
    /// reach its target, or the largest size that any later head allows if that is smaller. `room` is the largest batch
    /// that a head allows. Returns the first request kept and the rows from it on.
    fn skip(
        &self,
        requests: &Requests,
        (mut first, mut left): (u32, u64),
        target: usize,
        room: impl Fn(u32) -> usize,
    ) -> (u32, u64) {
        let size = |first: u32, left: u64| match room(first) {
            room if room < requests.get(first).rows as usize => 0,
            room => left.min(room as u64),
        };
        let mut best = (first, left);
        while size(best.0, best.1) < target as u64 {
            // No later head allows more once everything left fits.
            if room(first) as u64 >= left {
                break;
            }
            left -= u64::from(requests.get(first).rows);
            let Some(next) = requests.links.next(first) else {
                break;
            };
            first = next;
            if size(first, left) > size(best.0, best.1) {
                best = (first, left);
            }
        }
        best
    }

    /// How many of the `left` rows from `first` on fit into `room` rows without splitting a request.
    pub(crate) fn fill(&self, requests: &Requests, first: u32, room: usize, left: u64) -> usize {
        if left <= room as u64 {
            return left as usize;
        }
        if self.wide == 0 {
            return room;
        }
        let (mut rows, mut next) = (0, Some(first));
        while let Some(slot) = next {
            let more = requests.get(slot).rows as usize;
            if rows + more > room {
                break;
            }
            rows += more;
            next = requests.links.next(slot);
        }
        rows
    }

    /// Moves a batch of `rows` rows that begins with `first` out of the queue, and passes over who stands before it.
    pub(crate) fn take(
        &mut self,
        requests: &mut Requests,
        now: Time,
        (first, rows): (u32, usize),
        drop: DropRule,
        out: &mut Outbox,
        mut member: impl FnMut(&Request),
    ) {
        while let Some(head) = self.head().filter(|&head| head != first) {
            self.pass_over(requests, now, head, drop, out);
        }
        let mut taken = 0;
        while taken < rows {
            let slot = self.head().expect("the batch was gathered from this queue");
            self.remove(requests, slot);
            let request = requests.get(slot);
            taken += request.rows as usize;
            member(request);
        }
    }

    /// Moves the first of the overdue out of the queue, up to `room` rows; returns their rows.
    pub(crate) fn take_overdue(
        &mut self,
        requests: &mut Requests,
        room: usize,
        mut member: impl FnMut(&Request),
    ) -> usize {
        let mut rows = 0;
        while let Some(slot) = self.overdue() {
            let more = requests.get(slot).rows as usize;
            if rows + more > room {
                break;
            }
            self.remove(requests, slot);
            rows += more;
            member(requests.get(slot));
        }
        rows
    }
}
