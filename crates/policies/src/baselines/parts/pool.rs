//! Models, live requests and their queues, for policies that place whole batches themselves.
//!
//! A request waits in one of a fixed number of queues, which the policy chooses: one per model if a
//! scheduler decides for all devices, one per model and device if requests are routed on arrival.
//! Each queue holds requests of one model in the order of their deadlines, and separately those
//! that cannot be punctual any more, if the drop rule keeps them. Expired requests leave from the
//! head, which has the earliest deadline, so no expired request is hidden behind a live one.

use ripieno_base::{BlockId, IndexedHeap, ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{DropRule, Model, Profile};
use ripieno_sched::tables::models::{self, BatchOptions, Models};
use ripieno_sched::tables::queue::{Queue, QueueOrder};
use ripieno_sched::tables::requests::{RequestState, Requests};
use ripieno_sched::{Limits, Outbox, Request, Why};

/// A loaded model.
pub(crate) type PoolModel = models::ModelEntry<PoolModelState>;

/// State of a model.
#[derive(Debug)]
pub(crate) struct PoolModelState {
    /// ℓ(b) of the whole walk.
    pub(crate) profile: Profile,
    /// Batches that run or are committed to a device.
    pub(crate) in_flight: usize,
}

/// The policy's options.
#[derive(Clone, Debug)]
pub(crate) struct PoolRules {
    /// Drop rule and largest batches.
    pub(crate) options: BatchOptions,
    /// Lead before a request's deadline at which the policy aims to answer it.
    pub(crate) margin: Nanos,
    /// True if an expired head stays, and blocks the queue, as long as the last request is alive.
    pub(crate) head_blocks: bool,
}

/// Target and upper bound of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    /// Rows below which heads are passed over, unless no later head allows more; 0 passes over
    /// none.
    pub(crate) target: usize,
    /// The largest number of rows.
    pub(crate) cap: usize,
}

/// The best punctual batch of a queue for one start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolCandidate {
    /// The first member; requests before it are passed over.
    pub(crate) first: u32,
    /// Rows of the batch.
    pub(crate) rows: usize,
    /// Latest start that is in time on a device that runs as profiled.
    pub(crate) latest: Time,
}

/// All models, requests and queues.
#[derive(Debug)]
pub(crate) struct BatchPool {
    /// The models.
    models: Models<PoolModelState>,
    /// The live requests.
    pub(crate) requests: Requests,
    /// Lead before a request's deadline at which the policy aims to answer it.
    margin: Nanos,
    /// True if an expired head stays, and blocks the queue, as long as the last request is alive.
    head_blocks: bool,
    /// Per slot, the queue of a waiting request.
    queue_of: Vec<u32>,
    /// The queues.
    queues: Vec<Queue>,
    /// Time of the next check of each queue.
    wakeups: IndexedHeap<Time>,
    /// Queues with overdue requests, by the arrival of the first.
    overdue: IndexedHeap<Time>,
}

impl BatchPool {
    pub(crate) fn new(limits: &Limits, queues: usize, rules: PoolRules) -> BatchPool {
        let PoolRules { options, margin, head_blocks } = rules;
        BatchPool {
            models: Models::new(limits, options),
            requests: Requests::new(limits.requests),
            margin,
            head_blocks,
            queue_of: vec![0; limits.requests],
            queues: vec![Queue::default(); queues],
            wakeups: IndexedHeap::new(queues),
            overdue: IndexedHeap::new(queues),
        }
    }

    pub(crate) fn load(&mut self, id: ModelId, model: Model) {
        assert!(model.profile().max_batch() >= model.max_batch, "the profile ends before max_batch: {model:?}");
        self.models.load(id, model, |model, _| PoolModelState { profile: model.profile(), in_flight: 0 });
    }

    /// Unloads a model: waiting requests are rejected.
    pub(crate) fn retire(&mut self, now: Time, id: ModelId, out: &mut Outbox) {
        self.served_mut(id).retired = true;
        for queue in 0..self.queues.len() {
            if self.model_of(queue) == Some(id) {
                self.queues[queue].reject_all(&mut self.requests, Why::Unloaded, out);
                self.rearm(now, queue, out);
            }
        }
    }

    pub(crate) fn replace_profile(&mut self, id: ModelId, block: BlockId, profile: Profile) {
        let served = self.models.replace_profile(id, block, profile);
        served.profile = served.model.profile();
    }

    pub(crate) fn served(&self, id: ModelId) -> &PoolModel {
        self.models.get(id)
    }

    pub(crate) fn served_mut(&mut self, id: ModelId) -> &mut PoolModel {
        self.models.get_mut(id)
    }

    /// Returns the models that accept requests.
    pub(crate) fn in_service(&self) -> impl Iterator<Item = (ModelId, &PoolModel)> {
        self.models.iter().filter(|(_, served)| !served.retired)
    }

    /// Returns whether one more batch of this model may run.
    pub(crate) fn has_instance(&self, id: ModelId) -> bool {
        let served = self.served(id);
        served.in_flight < served.model.instances.max(1)
    }

    pub(crate) fn request(&self, slot: u32) -> &Request {
        self.requests.get(slot)
    }

    /// Returns the model whose requests a queue holds.
    pub(crate) fn model_of(&self, queue: usize) -> Option<ModelId> {
        self.queues[queue].any().map(|slot| self.requests.get(slot).model)
    }

    /// Adds a request that has arrived; [`BatchPool::push`] must follow.
    pub(crate) fn accept(&mut self, request: &Request) {
        self.models.of_newcomer(request);
        self.requests.insert(&Request { deadline: request.deadline - self.margin, ..*request });
    }

    /// Puts a request into a queue, by its deadline. The next [`BatchPool::wake`] checks the queue.
    pub(crate) fn push(&mut self, queue: usize, slot: u32) {
        self.queue_of[slot as usize] = queue as u32;
        self.queues[queue].push(&mut self.requests, slot, QueueOrder::Deadline);
        if self.queues[queue].head() == Some(slot) {
            let sooner = self.wakeups.get(queue).unwrap_or(Time::NEVER).min(self.leaves_after(slot).next());
            self.wakeups.set(queue, sooner);
        }
    }

    /// Puts back a request that was overdue.
    pub(crate) fn push_overdue(&mut self, queue: usize, slot: u32) {
        self.queue_of[slot as usize] = queue as u32;
        self.queues[queue].push_overdue(&mut self.requests, slot);
        self.note_overdue(queue);
        let Request { deadline, model, .. } = *self.requests.get(slot);
        if self.served(model).drop == DropRule::Expired {
            let sooner = self.wakeups.get(queue).unwrap_or(Time::NEVER).min(deadline);
            self.wakeups.set(queue, sooner);
        }
    }

    /// Returns whether a running request may wait again; otherwise it was withdrawn or its model
    /// unloaded, and it is rejected.
    pub(crate) fn may_return(&mut self, slot: RequestSlot, out: &mut Outbox) -> bool {
        let retired = self.served(self.requests.get(slot.0).model).retired;
        let over = self.requests.why_over(slot.0, retired);
        if let Some(why) = over {
            self.requests.reject(slot.0, why, out);
        }
        over.is_none()
    }

    /// Withdraws a request if it still waits; returns its queue.
    pub(crate) fn cancel(&mut self, now: Time, slot: RequestSlot, out: &mut Outbox) -> Option<usize> {
        if !matches!(self.requests.state(slot.0), RequestState::Waiting | RequestState::Overdue) {
            self.requests.disown(slot.0);
            return None;
        }
        let queue = self.queue_of[slot.index()] as usize;
        self.queues[queue].remove(&mut self.requests, slot.0);
        self.requests.reject(slot.0, Why::Cancelled, out);
        self.rearm(now, queue, out);
        Some(queue)
    }

    /// Removes one request from a queue, waiting ones first; returns it and whether it is overdue.
    /// None if the queue is empty.
    pub(crate) fn take_front(&mut self, queue: usize) -> Option<(u32, bool)> {
        let Some(slot) = self.queues[queue].any() else {
            self.wakeups.remove(queue);
            self.overdue.remove(queue);
            return None;
        };
        let overdue = self.requests.state(slot) == RequestState::Overdue;
        self.queues[queue].remove(&mut self.requests, slot);
        Some((slot, overdue))
    }

    /// Returns the latest start at which a request can be punctual, run alone.
    fn leaves_after(&self, slot: u32) -> Time {
        let request = self.requests.get(slot);
        request.deadline - self.served(request.model).profile.latency(request.rows as usize)
    }

    /// Returns the next queue whose wakeup is due, after dropping its hopeless requests.
    pub(crate) fn wake(&mut self, now: Time, out: &mut Outbox) -> Option<usize> {
        let (_, queue) = self.wakeups.peek().filter(|&(at, _)| at <= now)?;
        self.rearm(now, queue, out);
        Some(queue)
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.wakeups.peek().map_or(Time::NEVER, |(at, _)| at)
    }

    /// Drops requests that cannot stay in a queue and resets its timer.
    fn rearm(&mut self, now: Time, queue: usize, out: &mut Outbox) {
        let mut at = Time::NEVER;
        while let Some(head) = self.queues[queue].head() {
            let leaves_after = self.leaves_after(head);
            if now <= leaves_after {
                at = leaves_after.next();
                break;
            }
            if let Some(last) = self.blocked_until(queue).filter(|&last| now <= last) {
                at = last.next();
                break;
            }
            let drop = self.served(self.requests.get(head).model).drop;
            self.queues[queue].pass_over(&mut self.requests, now, head, drop, out);
        }
        if let Some(first) = self.queues[queue].overdue() {
            let BatchPool { queues, requests, models, .. } = self;
            let served = models.get(requests.get(first).model);
            let alone = |rows: u32| served.profile.latency(rows as usize);
            queues[queue].expire(requests, now, served.drop, alone, out);
            at = at.min(queues[queue].next_expiry(requests, served.drop, alone));
        }
        match at {
            Time::NEVER => self.wakeups.remove(queue),
            at => self.wakeups.set(queue, at),
        }
        self.note_overdue(queue);
    }

    /// Returns the time until which an expired head stays, if it does.
    fn blocked_until(&self, queue: usize) -> Option<Time> {
        let last = self.queues[queue].last().filter(|_| self.head_blocks)?;
        Some(self.leaves_after(last))
    }

    fn note_overdue(&mut self, queue: usize) {
        match self.queues[queue].overdue() {
            Some(slot) => self.overdue.set(queue, self.requests.get(slot).arrived),
            None => self.overdue.remove(queue),
        }
    }

    /// Returns the best batch that could start at `at` on a device that needs `percent` % of the
    /// profile.
    pub(crate) fn gather(&self, queue: usize, at: Time, percent: u32, aim: Aim) -> Option<PoolCandidate> {
        let (mut first, mut left) = (self.queues[queue].head()?, self.queues[queue].rows());
        // Requests that cannot even run alone from then on do not limit the batch.
        while at > self.leaves_after(first) {
            if self.head_blocks {
                return None;
            }
            left -= u64::from(self.requests.get(first).rows);
            first = self.requests.links.next(first)?;
        }
        let profile = &self.served(self.requests.get(first).model).profile;
        let room = |slot: u32| {
            let request = self.requests.get(slot);
            let span = (request.deadline - at).scale(100, u64::from(percent));
            // A request that is wider than the limit runs alone.
            profile.largest_within(span).min(aim.cap.max(request.rows as usize))
        };
        let (first, rows, _) = self.queues[queue].gather(&self.requests, (first, left), aim.target, room)?;
        Some(PoolCandidate { first, rows, latest: self.requests.get(first).deadline - profile.latency(rows) })
    }

    /// Moves a candidate's members out of the queue and passes over the requests before them.
    pub(crate) fn take(
        &mut self,
        now: Time,
        queue: usize,
        candidate: PoolCandidate,
        out: &mut Outbox,
        member: impl FnMut(&Request),
    ) {
        let drop = self.served(self.requests.get(candidate.first).model).drop;
        let BatchPool { queues, requests, .. } = self;
        queues[queue].take(requests, now, (candidate.first, candidate.rows), drop, out, member);
        self.rearm(now, queue, out);
    }

    /// Returns the queue with the oldest overdue request among those that `may` run.
    pub(crate) fn oldest_overdue(&self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let queues = self.overdue.keys().filter(|&queue| may(queue));
        queues.min_by_key(|&queue| (self.overdue.get(queue), queue))
    }

    pub(crate) fn has_overdue(&self, queue: usize) -> bool {
        self.overdue.contains(queue)
    }

    /// Moves a batch of the oldest overdue requests out of a queue; returns its rows.
    pub(crate) fn take_overdue(
        &mut self,
        now: Time,
        queue: usize,
        out: &mut Outbox,
        member: impl FnMut(&Request),
    ) -> usize {
        let Some(first) = self.queues[queue].overdue() else {
            return 0;
        };
        let Request { model, rows, .. } = *self.requests.get(first);
        let room = self.served(model).max_batch.max(rows as usize);
        let rows = self.queues[queue].take_overdue(&mut self.requests, room, member);
        self.rearm(now, queue, out);
        rows
    }

    /// Returns ℓ of the blocks from `block` on, for `rows` rows.
    pub(crate) fn remaining(&self, id: ModelId, block: BlockId, rows: usize) -> Nanos {
        let served = self.served(id);
        if block == BlockId(0) {
            return served.profile.latency(rows);
        }
        served.model.blocks[block.index()..].iter().map(|block| block.profile.latency(rows)).sum()
    }
}
