//! The table of live requests, by slot.

use crate::Request;
use ripieno_base::RequestSlot;

/// Where a live request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot is not in use.
    Free,
    /// In its model's queue.
    Waiting,
    /// In its model's queue of requests that cannot be punctual any more.
    Overdue,
    /// In a task.
    Running,
}

/// All live requests; one entry a slot.
#[derive(Debug)]
pub(crate) struct Requests {
    entries: Vec<(State, Request)>,
}

impl Requests {
    pub(crate) fn new(capacity: usize) -> Requests {
        Requests { entries: vec![(State::Free, Request::NONE); capacity] }
    }

    pub(crate) fn insert(&mut self, request: &Request, state: State) {
        let entry = &mut self.entries[request.slot.index()];
        assert_eq!(entry.0, State::Free, "the driver reused the slot of a live request: {request:?}");
        *entry = (state, *request);
    }

    pub(crate) fn state(&self, slot: RequestSlot) -> State {
        self.entries[slot.index()].0
    }

    pub(crate) fn set_state(&mut self, slot: RequestSlot, state: State) {
        self.entries[slot.index()].0 = state;
    }

    pub(crate) fn get(&self, slot: u32) -> &Request {
        &self.entries[slot as usize].1
    }
}
