//! Requests that wait for their model in the order of their arrival, and leave when they are too late.
//!
//! For policies whose queues know no deadlines but for what becomes of a request that misses its own. The links serve lists
//! of running requests as well: a request that runs does not wait.

use crate::{Request, Why};
use ripieno_base::{IndexedHeap, Links, List, ModelId, Nanos, RequestSlot, Time};
use ripieno_model::DropRule;

/// The queues of all models.
#[derive(Debug)]
pub(crate) struct Fifo {
    requests: Vec<Request>,
    waits: Vec<bool>,
    pub(crate) links: Links,
    queues: Vec<List>,
    /// When waiting requests are to be dropped.
    timers: IndexedHeap<Time>,
}

impl Fifo {
    pub(crate) fn new(requests: usize, models: usize) -> Fifo {
        Fifo {
            requests: vec![Request::NONE; requests],
            waits: vec![false; requests],
            links: Links::new(requests),
            queues: vec![List::default(); models],
            timers: IndexedHeap::new(requests),
        }
    }

    pub(crate) fn request(&self, slot: RequestSlot) -> &Request {
        &self.requests[slot.index()]
    }

    /// Takes note of a request; [`Fifo::push`] is to follow.
    pub(crate) fn accept(&mut self, request: &Request) {
        self.requests[request.slot.index()] = *request;
    }

    /// Puts a request into its queue, by arrival: one that was lost on a device stands before those that came later. `alone`
    /// is how long it takes at least.
    pub(crate) fn push(&mut self, slot: RequestSlot, drop: DropRule, alone: Nanos) {
        let Request { arrived, deadline, model, .. } = *self.request(slot);
        self.waits[slot.index()] = true;
        let queue = &mut self.queues[model.index()];
        let mut before = queue.back();
        while before.is_some_and(|other| self.requests[other as usize].arrived > arrived) {
            before = before.and_then(|other| self.links.prev(other));
        }
        queue.insert_after(&mut self.links, before, slot.0);
        match drop {
            DropRule::Never => {}
            DropRule::Expired => self.timers.set(slot.index(), deadline),
            DropRule::Hopeless => self.timers.set(slot.index(), (deadline - alone).next()),
        }
    }

    /// Takes a request out of its queue; false if it does not stand there.
    pub(crate) fn take(&mut self, slot: RequestSlot) -> bool {
        let waited = self.set_apart(slot);
        if waited {
            self.disarm(slot);
        }
        waited
    }

    /// Takes a request out of its queue that goes on waiting elsewhere, and may become too late there until
    /// [`Fifo::disarm`]; false if it does not stand in its queue.
    pub(crate) fn set_apart(&mut self, slot: RequestSlot) -> bool {
        let waited = std::mem::take(&mut self.waits[slot.index()]);
        if waited {
            let model = self.request(slot).model;
            self.queues[model.index()].remove(&mut self.links, slot.0);
        }
        waited
    }

    /// A request that was set apart waits no more.
    pub(crate) fn disarm(&mut self, slot: RequestSlot) {
        self.timers.remove(slot.index());
    }

    /// The oldest request of a model.
    pub(crate) fn head(&self, model: ModelId) -> Option<&Request> {
        self.queues[model.index()].front().map(|slot| &self.requests[slot as usize])
    }

    /// How many requests of a model wait.
    pub(crate) fn len(&self, model: ModelId) -> usize {
        self.queues[model.index()].len()
    }

    /// The requests of a model, the oldest first.
    pub(crate) fn waiting(&self, model: ModelId) -> impl Iterator<Item = &Request> {
        self.queues[model.index()].iter(&self.links).map(|slot| &self.requests[slot as usize])
    }

    /// How many of the oldest requests of a model have at most `room` rows together, and how many these are.
    pub(crate) fn fitting(&self, model: ModelId, room: usize) -> (usize, usize) {
        let (mut count, mut rows) = (0, 0);
        for request in self.waiting(model) {
            if rows + request.rows as usize > room {
                break;
            }
            (count, rows) = (count + 1, rows + request.rows as usize);
        }
        (count, rows)
    }

    /// The model with the oldest head after that of `after`.
    pub(crate) fn next_model(&self, after: Option<(Time, ModelId)>) -> Option<(Time, ModelId)> {
        let heads = (0..self.queues.len() as u16).map(ModelId).filter_map(|id| Some((self.head(id)?.arrived, id)));
        heads.filter(|&key| after.is_none_or(|after| key > after)).min()
    }

    /// A request that waits and is too late by now.
    pub(crate) fn late(&self, now: Time) -> Option<(RequestSlot, Why)> {
        let (_, slot) = self.timers.peek().filter(|&(at, _)| at <= now)?;
        let slot = RequestSlot(slot as u32);
        Some((slot, if self.request(slot).deadline <= now { Why::Expired } else { Why::Hopeless }))
    }

    /// Takes out a request that is too late by now, where none is set apart.
    pub(crate) fn pop_late(&mut self, now: Time) -> Option<(RequestSlot, Why)> {
        let late = self.late(now)?;
        assert!(self.take(late.0), "who is too late stands in a queue: {late:?}");
        Some(late)
    }

    /// When the next request is too late.
    pub(crate) fn next_wakeup(&self) -> Time {
        self.timers.peek().map_or(Time::NEVER, |(at, _)| at)
    }
}
