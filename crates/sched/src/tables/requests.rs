//! The table of live requests, by slot, and the links of the queues in which they wait.
//!
//! A request is in one list at a time: a queue, or a batch that a policy keeps as a list. One table
//! of links therefore serves all lists, and any request leaves its list in O(1).

use crate::{Action, Outbox, Request, Why};
use ripieno_base::{IndexedHeap, Links, Nanos, RequestSlot, Time};
use ripieno_model::DropRule;

/// The state of a live request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// The slot is not in use.
    Free,
    /// In its model's queue.
    Waiting,
    /// In its model's queue of passed-over requests, most of which cannot be punctual any more.
    Overdue,
    /// In a task.
    Running,
    /// In a task, but withdrawn: if the task is lost, the request does not run again.
    Unwanted,
}

/// All live requests; one entry per slot.
#[derive(Debug)]
pub struct Requests {
    /// State and content of the request in each slot.
    entries: Vec<(RequestState, Request)>,
    /// Links of the lists that hold requests.
    pub links: Links,
}

impl Requests {
    /// Creates a table for slots below `capacity`.
    pub fn new(capacity: usize) -> Requests {
        Requests { entries: vec![(RequestState::Free, Request::NONE); capacity], links: Links::new(capacity) }
    }

    /// Adds a request that has arrived.
    pub fn insert(&mut self, request: &Request) {
        let entry = &mut self.entries[request.slot.index()];
        assert_eq!(entry.0, RequestState::Free, "the driver reused the slot of a live request: {request:?}");
        *entry = (RequestState::Waiting, *request);
    }

    /// Returns the state of a slot.
    pub fn state(&self, slot: u32) -> RequestState {
        self.entries[slot as usize].0
    }

    /// Sets the state of a slot.
    pub fn set_state(&mut self, slot: u32, state: RequestState) {
        self.entries[slot as usize].0 = state;
    }

    /// Returns the request of a slot.
    pub fn get(&self, slot: u32) -> &Request {
        &self.entries[slot as usize].1
    }

    /// Returns the links, and access to each request.
    pub fn split<'a>(&'a mut self) -> (&'a mut Links, impl Fn(u32) -> &'a Request) {
        let Requests { entries, links } = self;
        (links, |slot: u32| &entries[slot as usize].1)
    }

    /// Returns the total rows of these requests.
    pub fn rows(&self, members: &[RequestSlot]) -> usize {
        members.iter().map(|slot| self.get(slot.0).rows as usize).sum()
    }

    /// Marks a running request as withdrawn.
    pub fn disown(&mut self, slot: u32) {
        let state = &mut self.entries[slot as usize].0;
        if *state == RequestState::Running {
            *state = RequestState::Unwanted;
        }
    }

    /// Returns the reason for which a request whose task was lost does not run again, if there is
    /// one.
    pub fn why_over(&self, slot: u32, retired: bool) -> Option<Why> {
        match self.state(slot) {
            RequestState::Unwanted => Some(Why::Cancelled),
            _ => retired.then_some(Why::Unloaded),
        }
    }

    /// Ends a request whose walk is complete.
    pub fn finish(&mut self, slot: RequestSlot, out: &mut Outbox) {
        self.set_state(slot.0, RequestState::Free);
        out.push(Action::Finish { request: slot });
    }

    /// Ends a request without an answer.
    pub fn reject(&mut self, slot: u32, why: Why, out: &mut Outbox) {
        self.set_state(slot, RequestState::Free);
        out.push(Action::Reject { request: RequestSlot(slot), why });
    }
}

/// Drop times of waiting requests, by slot.
#[derive(Debug)]
pub struct DropTimers(IndexedHeap<Time>);

impl DropTimers {
    /// Creates timers for slots below `capacity`.
    pub fn new(capacity: usize) -> DropTimers {
        DropTimers(IndexedHeap::new(capacity))
    }

    /// Sets the timer of a waiting request; `alone` returns its latency alone.
    pub fn arm(&mut self, request: &Request, drop: DropRule, alone: impl FnOnce() -> Nanos) {
        match drop {
            DropRule::Never => {}
            DropRule::Expired => self.0.set(request.slot.index(), request.deadline),
            DropRule::Hopeless => self.0.set(request.slot.index(), (request.deadline - alone()).next()),
        }
    }

    /// Stops the timer of a request.
    pub fn disarm(&mut self, slot: RequestSlot) {
        self.0.remove(slot.index());
    }

    /// Returns a waiting request that is too late now, and the reason.
    pub fn late(&self, now: Time, deadline: impl Fn(RequestSlot) -> Time) -> Option<(RequestSlot, Why)> {
        let (_, slot) = self.0.peek().filter(|&(at, _)| at <= now)?;
        let slot = RequestSlot(slot as u32);
        Some((slot, if deadline(slot) <= now { Why::Expired } else { Why::Hopeless }))
    }

    /// Returns the time at which the next request is too late.
    pub fn next(&self) -> Time {
        self.0.peek().map_or(Time::NEVER, |(at, _)| at)
    }
}
