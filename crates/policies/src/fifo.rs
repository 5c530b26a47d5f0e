//! Queues of requests in order of arrival, which are dropped when they are too late.
//!
//! The policies that use them ignore deadlines except for dropping. Inputs take effect when they
//! arrive, so answers are kept until the next settle.

use ripieno_base::{Links, List, ModelId, Nanos, RequestSlot, Time};
use ripieno_sched::tables::models::{BatchOptions, ModelEntry, Models};
use ripieno_sched::tables::requests::{DropTimers, RequestState, Requests};
use ripieno_sched::{Limits, Outbox, Outcome, Request, Why};

/// The queues of all models.
#[derive(Debug)]
pub(crate) struct Fifo {
    pub(crate) requests: Requests,
    queues: Vec<List>,
    timers: DropTimers,
    /// Answers since the last settle.
    pending: Outbox,
}

impl Fifo {
    pub(crate) fn new(limits: &Limits) -> Fifo {
        Fifo {
            requests: Requests::new(limits.requests),
            queues: vec![List::default(); limits.models],
            timers: DropTimers::new(limits.requests),
            pending: Outbox::new(limits),
        }
    }

    pub(crate) fn request(&self, slot: RequestSlot) -> &Request {
        self.requests.get(slot.0)
    }

    fn links(&self) -> &Links {
        &self.requests.links
    }

    /// Removes a request from its queue; returns false if it is not there.
    pub(crate) fn take(&mut self, slot: RequestSlot) -> bool {
        let waited = self.set_apart(slot);
        if waited {
            self.disarm(slot);
        }
        waited
    }

    /// Removes a request from its queue that continues to wait elsewhere, where it may expire until
    /// [`Fifo::disarm`]. Returns false if it is not in its queue.
    pub(crate) fn set_apart(&mut self, slot: RequestSlot) -> bool {
        let waited = self.requests.state(slot.0) == RequestState::Waiting;
        if waited {
            self.requests.set_state(slot.0, RequestState::Running);
            let model = self.request(slot).model;
            self.queues[model.index()].remove(&mut self.requests.links, slot.0);
        }
        waited
    }

    /// Stops the drop timer of a request that was set apart.
    pub(crate) fn disarm(&mut self, slot: RequestSlot) {
        self.timers.disarm(slot);
    }

    /// Removes the oldest request of a model from its queue.
    pub(crate) fn pop(&mut self, model: ModelId) -> Option<RequestSlot> {
        let slot = self.head(model)?.slot;
        self.take(slot);
        Some(slot)
    }

    /// Returns the oldest request of a model.
    pub(crate) fn head(&self, model: ModelId) -> Option<&Request> {
        self.queues[model.index()].front().map(|slot| self.requests.get(slot))
    }

    /// Returns the waiting requests of a model, the oldest first.
    pub(crate) fn waiting(&self, model: ModelId) -> impl Iterator<Item = &Request> + Clone {
        self.queues[model.index()].iter(self.links()).map(|slot| self.requests.get(slot))
    }

    /// Returns the largest number of oldest requests of a model with at most `room` rows in total,
    /// and these rows.
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

    /// Returns the model with the oldest head after the head of `after`.
    pub(crate) fn next_model(&self, after: Option<(Time, ModelId)>) -> Option<(Time, ModelId)> {
        let heads = (0..self.queues.len() as u16).map(ModelId).filter_map(|id| Some((self.head(id)?.arrived, id)));
        heads.filter(|&key| after.is_none_or(|after| key > after)).min()
    }

    fn finish(&mut self, slot: RequestSlot) {
        self.requests.finish(slot, &mut self.pending);
    }

    /// Ends a request with the outcome of its block.
    pub(crate) fn end(&mut self, slot: RequestSlot, outcome: Outcome) {
        if outcome == Outcome::Ok { self.finish(slot) } else { self.reject(slot, Why::Failed) }
    }

    pub(crate) fn reject(&mut self, slot: RequestSlot, why: Why) {
        self.requests.reject(slot.0, why, &mut self.pending);
    }

    /// Withdraws a request: rejects it if it is in its queue; otherwise it will not run again.
    pub(crate) fn cancel(&mut self, slot: RequestSlot) {
        if !self.withdraw(slot, Why::Cancelled) {
            self.requests.disown(slot.0);
        }
    }

    /// Rejects a request if it is in its queue; returns false if not.
    pub(crate) fn withdraw(&mut self, slot: RequestSlot, why: Why) -> bool {
        let waited = self.take(slot);
        if waited {
            self.reject(slot, why);
        }
        waited
    }

    /// Returns a waiting request that is too late now, and the reason.
    pub(crate) fn late(&self, now: Time) -> Option<(RequestSlot, Why)> {
        self.timers.late(now, |slot| self.request(slot).deadline)
    }

    /// Rejects all requests that are too late now. None may be set apart.
    pub(crate) fn drop_late(&mut self, now: Time) {
        while let Some((slot, why)) = self.late(now) {
            assert!(self.withdraw(slot, why), "a late request is in a queue: {slot:?}");
        }
    }

    /// Moves the answers since the last settle to `out`.
    pub(crate) fn flush(&mut self, out: &mut Outbox) {
        self.pending.move_to(out);
    }

    /// Returns the time at which the next request is too late.
    pub(crate) fn next_wakeup(&self) -> Time {
        self.timers.next()
    }
}

/// Models and their queues.
#[derive(Debug)]
pub(crate) struct Tables<T> {
    pub(crate) models: Models<T>,
    pub(crate) fifo: Fifo,
    /// Returns the shortest latency of a request.
    alone: fn(&ModelEntry<T>, &Request) -> Nanos,
}

impl<T> Tables<T> {
    pub(crate) fn new(
        limits: &Limits,
        options: BatchOptions,
        alone: fn(&ModelEntry<T>, &Request) -> Nanos,
    ) -> Tables<T> {
        Tables { models: Models::new(limits, options), fifo: Fifo::new(limits), alone }
    }

    /// Adds a request that has arrived.
    pub(crate) fn accept(&mut self, request: &Request) {
        self.models.of_newcomer(request);
        self.fifo.requests.insert(request);
        self.enqueue(request.slot);
    }

    /// Puts a request into its queue by arrival; one that was lost on a device precedes later ones.
    fn enqueue(&mut self, slot: RequestSlot) {
        let Fifo { requests, queues, timers, .. } = &mut self.fifo;
        requests.set_state(slot.0, RequestState::Waiting);
        let request = *requests.get(slot.0);
        let served = self.models.get(request.model);
        let (links, request_of) = requests.split();
        queues[request.model.index()].insert_by_key(links, slot.0, |slot| request_of(slot).arrived);
        timers.arm(&request, served.drop, || (self.alone)(served, &request));
    }

    /// Puts a lost request back into its queue, unless it was withdrawn or its model unloaded.
    pub(crate) fn take_back(&mut self, slot: RequestSlot) {
        let retired = self.models.get(self.fifo.request(slot).model).retired;
        match self.fifo.requests.why_over(slot.0, retired) {
            Some(why) => self.fifo.reject(slot, why),
            None => self.enqueue(slot),
        }
    }

    /// Unloads a model: requests in its queue are rejected.
    pub(crate) fn retire(&mut self, id: ModelId) {
        self.models.get_mut(id).retired = true;
        while let Some(slot) = self.fifo.pop(id) {
            self.fifo.reject(slot, Why::Unloaded);
        }
    }
}
