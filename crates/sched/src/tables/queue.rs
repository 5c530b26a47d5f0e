//! The queue of a model for whole batches: waiting requests, passed-over requests, drops, and the
//! batch that can be gathered.

use super::requests::{RequestState, Requests};
use crate::{Outbox, Request, Why};
use ripieno_base::{List, Nanos, Time};
use ripieno_model::DropRule;

/// Waiting requests of one model, in two lists. One holds, in the queue's order, the requests that
/// may still be punctual. The other holds by deadline the requests that were passed over. Of these
/// some are late but kept by the drop rule, and some can still be in time.
///
/// Insertion searches from the tail: O(1) where all requests have the same SLO, which is the normal
/// case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue {
    /// Requests that may be punctual, in the queue's order.
    waiting: List,
    /// Rows of the waiting requests.
    rows: u64,
    /// Number of waiting requests with more than one row.
    wide: usize,
    /// Requests that were passed over, by deadline.
    overdue: List,
}

/// The order of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOrder {
    /// The earlier deadline, then the earlier arrival.
    Deadline,
    /// The earlier arrival, then the earlier deadline.
    Arrival,
}

impl Queue {
    /// Returns the slot of the first request.
    pub fn head(&self) -> Option<u32> {
        self.waiting.front()
    }

    /// Returns the slot of the last request.
    pub fn last(&self) -> Option<u32> {
        self.waiting.back()
    }

    /// Returns the waiting rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the waiting rows that are due before or with a newcomer; searches from the tail.
    pub fn rows_before(&self, requests: &Requests, deadline: Time) -> u64 {
        let (mut rows, mut next) = (self.rows, self.last());
        while let Some(request) = next.map(|slot| requests.get(slot)).filter(|request| request.deadline > deadline) {
            rows -= u64::from(request.rows);
            next = requests.links.prev(request.slot.0);
        }
        rows
    }

    /// Returns the first request that was passed over.
    pub fn overdue(&self) -> Option<u32> {
        self.overdue.front()
    }

    /// Returns any request of the queue, punctual ones first.
    pub fn any(&self) -> Option<u32> {
        self.head().or(self.overdue())
    }

    /// Inserts a request at its place in this order.
    pub fn push(&mut self, requests: &mut Requests, slot: u32, order: QueueOrder) {
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
    pub fn push_overdue(&mut self, requests: &mut Requests, slot: u32) {
        requests.set_state(slot, RequestState::Overdue);
        // A wide request is overdue long before its deadline, and must not hide others behind it.
        let (links, request) = requests.split();
        self.overdue.insert_by_key(links, slot, |slot| request(slot).deadline);
    }

    /// Removes a request, which then runs, is pushed again, or ends.
    pub fn remove(&mut self, requests: &mut Requests, slot: u32) {
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

    /// Rejects all requests.
    pub fn reject_all(&mut self, requests: &mut Requests, why: Why, out: &mut Outbox) {
        while let Some(slot) = self.any() {
            self.remove(requests, slot);
            requests.reject(slot, why, out);
        }
    }

    /// Removes a request that will not be punctual from the order, and applies the drop rule to it.
    pub fn pass_over(&mut self, requests: &mut Requests, now: Time, slot: u32, drop: DropRule, out: &mut Outbox) {
        self.remove(requests, slot);
        let expired = requests.get(slot).deadline <= now;
        match drop {
            DropRule::Hopeless | DropRule::Expired if expired => requests.reject(slot, Why::Expired, out),
            DropRule::Hopeless => requests.reject(slot, Why::Hopeless, out),
            DropRule::Expired | DropRule::Never => self.push_overdue(requests, slot),
        }
    }

    /// Drops passed-over requests that are too late by the drop rule; `alone` returns the latency
    /// of a number of rows. Returns the dropped rows.
    pub fn expire(
        &mut self,
        requests: &mut Requests,
        now: Time,
        drop: DropRule,
        alone: impl Fn(u32) -> Nanos,
        out: &mut Outbox,
    ) -> usize {
        let mut dropped = 0;
        while self.next_expiry(requests, drop, &alone) <= now {
            let slot = self.overdue.front().expect("a request expires");
            self.remove(requests, slot);
            dropped += requests.get(slot).rows as usize;
            let why = if drop == DropRule::Hopeless { Why::Hopeless } else { Why::Expired };
            requests.reject(slot, why, out);
        }
        dropped
    }

    /// Returns the time at which the first passed-over request is to be dropped.
    pub fn next_expiry(&self, requests: &Requests, drop: DropRule, alone: impl Fn(u32) -> Nanos) -> Time {
        let Some(first) = self.overdue.front().map(|slot| requests.get(slot)) else { return Time::NEVER };
        match drop {
            DropRule::Never => Time::NEVER,
            DropRule::Expired => first.deadline,
            DropRule::Hopeless => (first.deadline - alone(first.rows)).next(),
        }
    }

    /// Returns the batch that begins with `first`, or with a later request if passing over heads
    /// lets the batch reach its `target`. A target of 0 passes over none. `left` is the number of
    /// rows from `first` to the end of the queue, and `room` returns the largest batch that a head
    /// allows.
    ///
    /// Returns the first request of the batch, its rows, and whether the next request does not fit.
    pub fn gather(
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

    /// Passes over as few requests from `first` on as let the batch reach its target. If no head
    /// allows the target, the largest size that one allows takes its place. `left` is the number of
    /// rows from `first` to the end of the queue, `room` the largest batch that a head allows.
    /// Returns the first request kept and the rows from it on.
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
            // No later head allows more once all remaining rows fit.
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

    /// Returns the number of the `left` rows from `first` on that fit into `room` rows without
    /// splitting a request.
    pub fn fill(&self, requests: &Requests, first: u32, room: usize, left: u64) -> usize {
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

    /// Moves a batch of `rows` rows that begins with `first` out of the queue, and passes over the
    /// requests before it.
    pub fn take(
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

    /// Moves the oldest requests out of the queue, overdue ones first: at least one, and more up to
    /// `room` rows. Returns their rows.
    pub fn take_oldest(&mut self, requests: &mut Requests, room: usize, mut member: impl FnMut(&Request)) -> usize {
        let mut rows = 0;
        while let Some(slot) = self.overdue().or(self.head()) {
            let more = requests.get(slot).rows as usize;
            if rows > 0 && rows + more > room {
                break;
            }
            self.remove(requests, slot);
            rows += more;
            member(requests.get(slot));
        }
        rows
    }

    /// Moves the first overdue requests out of the queue, up to `room` rows; returns their rows.
    pub fn take_overdue(&mut self, requests: &mut Requests, room: usize, mut member: impl FnMut(&Request)) -> usize {
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
