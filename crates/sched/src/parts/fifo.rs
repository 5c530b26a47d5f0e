//! Requests that wait for their model in the order of their arrival, and leave when they are too late.
//!
//! For policies whose queues know no deadlines but for what becomes of a request that misses its own. Facts are worked in when
//! they are told, so answers are kept until the next settle.

use super::models::{BatchOptions, ModelEntry, Models};
use super::requests::{DropTimers, RequestState, Requests};
use crate::{Limits, Outbox, Outcome, Request, Why};
use ripieno_base::{Links, List, ModelId, Nanos, RequestSlot, Time};

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
        let waited = self.requests.state(slot.0) == RequestState::Waiting;
        if waited {
            self.requests.set_state(slot.0, RequestState::Running);
            let model = self.request(slot).model;
            self.queues[model.index()].remove(&mut self.requests.links, slot.0);
        }
        waited
    }

    /// A request that was set apart waits no more.
    pub(crate) fn disarm(&mut self, slot: RequestSlot) {
        self.timers.disarm(slot);
    }

    /// Takes the oldest request of a model out of its queue.
    pub(crate) fn pop(&mut self, model: ModelId) -> Option<RequestSlot> {
        let slot = self.head(model)?.slot;
        self.take(slot);
        Some(slot)
    }

    /// The oldest request of a model.
    pub(crate) fn head(&self, model: ModelId) -> Option<&Request> {
        self.queues[model.index()].front().map(|slot| self.requests.get(slot))
    }

    /// How many requests of a model wait.
    pub(crate) fn len(&self, model: ModelId) -> usize {
        self.queues[model.index()].len()
    }

    /// The requests of a model, the oldest first.
    pub(crate) fn waiting(&self, model: ModelId) -> impl Iterator<Item = &Request> + Clone {
        self.queues[model.index()].iter(self.links()).map(|slot| self.requests.get(slot))
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

    fn finish(&mut self, slot: RequestSlot) {
        self.requests.finish(slot, &mut self.pending);
    }

    /// Ends a request with the block that it ran.
    pub(crate) fn end(&mut self, slot: RequestSlot, outcome: Outcome) {
        if outcome == Outcome::Ok { self.finish(slot) } else { self.reject(slot, Why::Failed) }
    }

    pub(crate) fn reject(&mut self, slot: RequestSlot, why: Why) {
        self.requests.reject(slot.0, why, &mut self.pending);
    }

    /// The client of a request went away: rejects it if it stands in its queue; else it does not run again.
    pub(crate) fn cancel(&mut self, slot: RequestSlot) {
        if !self.withdraw(slot, Why::Cancelled) {
            self.requests.disown(slot.0);
        }
    }

    /// Rejects a request if it stands in its queue; false if it does not.
    pub(crate) fn withdraw(&mut self, slot: RequestSlot, why: Why) -> bool {
        let waited = self.take(slot);
        if waited {
            self.reject(slot, why);
        }
        waited
    }

    /// A request that waits and is too late by now.
    pub(crate) fn late(&self, now: Time) -> Option<(RequestSlot, Why)> {
        self.timers.late(now, |slot| self.request(slot).deadline)
    }

    /// Rejects those who are too late by now, where none is set apart.
    pub(crate) fn drop_late(&mut self, now: Time) {
        while let Some((slot, why)) = self.late(now) {
            assert!(self.withdraw(slot, why), "who is too late stands in a queue: {slot:?}");
        }
    }

    /// Gives the driver the answers since the last settle.
    pub(crate) fn flush(&mut self, out: &mut Outbox) {
        self.pending.move_to(out);
    }

    /// When the next request is too late.
    pub(crate) fn next_wakeup(&self) -> Time {
        self.timers.next()
    }
}

/// Models and their queues.
#[derive(Debug)]
pub(crate) struct Tables<T> {
    pub(crate) models: Models<T>,
    pub(crate) fifo: Fifo,
    /// How long a request takes at least.
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

    /// A request has arrived.
    pub(crate) fn accept(&mut self, request: &Request) {
        self.models.of_newcomer(request);
        self.fifo.requests.insert(request);
        self.enqueue(request.slot);
    }

    /// Puts a request into its queue, by arrival: one that was lost on a device stands before those that came later.
    fn enqueue(&mut self, slot: RequestSlot) {
        let Fifo { requests, queues, timers, .. } = &mut self.fifo;
        requests.set_state(slot.0, RequestState::Waiting);
        let request = *requests.get(slot.0);
        let served = self.models.get(request.model);
        let (links, request_of) = requests.split();
        queues[request.model.index()].insert_by_key(links, slot.0, |slot| request_of(slot).arrived);
        timers.arm(&request, served.drop, || (self.alone)(served, &request));
    }

    /// Takes a request back that was lost: it waits anew, if it is still wanted and its model in service.
    pub(crate) fn take_back(&mut self, slot: RequestSlot) {
        let retired = self.models.get(self.fifo.request(slot).model).retired;
        match self.fifo.requests.why_over(slot.0, retired) {
            Some(why) => self.fifo.reject(slot, why),
            None => self.enqueue(slot),
        }
    }

    /// Takes a model out of service: what waits in its queue is rejected.
    pub(crate) fn retire(&mut self, id: ModelId) {
        self.models.get_mut(id).retired = true;
        while let Some(slot) = self.fifo.pop(id) {
            self.fifo.reject(slot, Why::Unloaded);
        }
    }
}
