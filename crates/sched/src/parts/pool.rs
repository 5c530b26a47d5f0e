//! Models, live requests and their queues, for policies that place whole batches by themselves.
//!
//! A request waits in one of a fixed number of queues, which the policy names: one a model where a scheduler decides for
//! all devices, one a model and device where requests are routed on arrival. Each queue holds requests of one model in
//! the order of their deadlines, and beside them those that cannot be punctual any more, if the drop rule keeps them.
//! Expired requests leave from the head: the head has the earliest deadline, so that none can hide behind a live one.

use super::requests::{Requests, State};
use crate::{Action, Limits, Outbox, Request, Why};
use ripieno_base::{BlockId, IndexedHeap, Links, List, ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{DropRule, Model, Profile};

/// A model in service.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) model: Model,
    /// ℓ(b) of the whole walk.
    pub(crate) profile: Profile,
    pub(crate) terms: Terms,
    /// Whether it accepts no further requests.
    pub(crate) retired: bool,
    /// Batches that run or are committed to a device.
    pub(crate) in_flight: usize,
}

/// What the policy's options say about a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) drop: DropRule,
    /// The most rows in a batch; a wider request runs alone.
    pub(crate) max_batch: usize,
    /// How long before its deadline the policy wants a request to be answered.
    pub(crate) margin: Nanos,
    /// Whether an expired head stays, and blocks the queue, as long as the last request is alive.
    pub(crate) head_blocks: bool,
}

/// What a batch aims at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    /// Heads are passed over until so many rows are reached, or no later head allows more; 0 = none is.
    pub(crate) target: usize,
    /// The most rows.
    pub(crate) cap: usize,
}

/// The best punctual batch of a queue for one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The first member; requests before it are passed over.
    pub(crate) first: u32,
    pub(crate) rows: usize,
    /// In time if started by this moment on a device that runs as profiled.
    pub(crate) latest: Time,
}

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    waiting: List,
    rows: u64,
    /// How many waiting requests have more than one row.
    wide: usize,
    overdue: List,
}

/// All models, requests and queues.
#[derive(Debug)]
pub(crate) struct Pool {
    models: Vec<Option<Served>>,
    requests: Requests,
    links: Links,
    /// By slot, the queue of a waiting request.
    home: Vec<u32>,
    queues: Vec<Queue>,
    /// When each queue must be looked at although nothing happens.
    wakeups: IndexedHeap<Time>,
    /// Queues with overdue requests, by the arrival of the first.
    overdue: IndexedHeap<Time>,
}

impl Pool {
    pub(crate) fn new(limits: &Limits, queues: usize) -> Pool {
        Pool {
            models: (0..limits.models).map(|_| None).collect(),
            requests: Requests::new(limits.requests),
            links: Links::new(limits.requests),
            home: vec![0; limits.requests],
            queues: vec![Queue::default(); queues],
            wakeups: IndexedHeap::new(queues),
            overdue: IndexedHeap::new(queues),
        }
    }

    pub(crate) fn load(&mut self, id: ModelId, model: Model, terms: Terms) {
        let place = &mut self.models[id.index()];
        assert!(
            place.as_ref().is_none_or(|served| served.retired),
            "the driver reused the id of a loaded model: {id:?}"
        );
        assert!(model.profile().max_batch() >= model.max_batch, "the profile ends before max_batch: {model:?}");
        *place = Some(Served { profile: model.profile(), model, terms, retired: false, in_flight: 0 });
    }

    /// Takes a model out of service: what waits is rejected.
    pub(crate) fn retire(&mut self, now: Time, id: ModelId, out: &mut Outbox) {
        self.served_mut(id).retired = true;
        for queue in 0..self.queues.len() {
            if self.model_of(queue) != Some(id) {
                continue;
            }
            while let Some(slot) = self.take_front(queue) {
                self.reject(slot, Why::Unloaded, out);
            }
            self.rearm(now, queue, out);
        }
    }

    pub(crate) fn replace_profile(&mut self, id: ModelId, block: BlockId, profile: Profile) {
        let served = self.served_mut(id);
        served.model.blocks[block.index()].replace_profile(profile);
        served.profile = served.model.profile();
    }

    pub(crate) fn served(&self, id: ModelId) -> &Served {
        self.models[id.index()].as_ref().expect("the model is loaded")
    }

    pub(crate) fn served_mut(&mut self, id: ModelId) -> &mut Served {
        self.models[id.index()].as_mut().expect("the model is loaded")
    }

    /// The models that accept requests.
    pub(crate) fn in_service(&self) -> impl Iterator<Item = (ModelId, &Served)> {
        let served = self.models.iter().zip(0..).filter_map(|(served, id)| Some((ModelId(id), served.as_ref()?)));
        served.filter(|(_, served)| !served.retired)
    }

    /// Whether one more batch of this model may run.
    pub(crate) fn has_instance(&self, id: ModelId) -> bool {
        let served = self.served(id);
        served.in_flight < served.model.instances.max(1)
    }

    pub(crate) fn request(&self, slot: u32) -> &Request {
        self.requests.get(slot)
    }

    /// The model whose requests a queue holds.
    pub(crate) fn model_of(&self, queue: usize) -> Option<ModelId> {
        let Queue { waiting, overdue, .. } = &self.queues[queue];
        waiting.front().or(overdue.front()).map(|slot| self.requests.get(slot).model)
    }

    /// Takes note of a request that has arrived; [`Pool::push`] is to follow.
    pub(crate) fn accept(&mut self, request: &Request) {
        let served = self.models[request.model.index()].as_ref().filter(|served| !served.retired);
        let served = served.expect("the driver sends requests of loaded models only");
        let rows = request.rows as usize;
        assert!(rows >= 1 && rows <= served.model.max_batch, "the driver splits large requests: {request:?}");
        let deadline = request.deadline - served.terms.margin;
        self.requests.insert(&Request { deadline, ..*request }, State::Waiting);
    }

    /// Puts a request into a queue, by its deadline. The queue is looked at in the next [`Pool::wake`].
    pub(crate) fn push(&mut self, queue: usize, slot: u32) {
        self.requests.set_state(RequestSlot(slot), State::Waiting);
        self.home[slot as usize] = queue as u32;
        let key = |slot: u32| (self.requests.get(slot).deadline, self.requests.get(slot).arrived);
        let list = &mut self.queues[queue];
        let mut before = list.waiting.back();
        while before.is_some_and(|other| key(other) > key(slot)) {
            before = before.and_then(|other| self.links.prev(other));
        }
        list.waiting.insert_after(&mut self.links, before, slot);
        let rows = self.requests.get(slot).rows;
        list.rows += u64::from(rows);
        list.wide += usize::from(rows > 1);
        if before.is_none() {
            let sooner = self.wakeups.get(queue).unwrap_or(Time::NEVER).min(self.leaves_after(slot).next());
            self.wakeups.set(queue, sooner);
        }
    }

    /// Puts back a request that was overdue.
    pub(crate) fn push_overdue(&mut self, queue: usize, slot: u32) {
        self.requests.set_state(RequestSlot(slot), State::Overdue);
        self.home[slot as usize] = queue as u32;
        self.queues[queue].overdue.push_back(&mut self.links, slot);
        self.note_overdue(queue);
        let Request { deadline, model, .. } = *self.requests.get(slot);
        if self.served(model).terms.drop == DropRule::Expired {
            let sooner = self.wakeups.get(queue).unwrap_or(Time::NEVER).min(deadline);
            self.wakeups.set(queue, sooner);
        }
    }

    /// Whether the model of a request that runs is still in service; otherwise the request is rejected.
    pub(crate) fn may_return(&mut self, slot: RequestSlot, out: &mut Outbox) -> bool {
        let retired = self.served(self.requests.get(slot.0).model).retired;
        if retired {
            self.reject(slot.0, Why::Unloaded, out);
        }
        !retired
    }

    /// Withdraws a request if it still waits; the queue that it stood in.
    pub(crate) fn cancel(&mut self, now: Time, slot: RequestSlot, out: &mut Outbox) -> Option<usize> {
        let queue = self.home[slot.index()] as usize;
        match self.requests.state(slot) {
            State::Waiting => self.unlink(queue, slot.0),
            State::Overdue => self.queues[queue].overdue.remove(&mut self.links, slot.0),
            State::Running | State::Free => return None,
        }
        self.reject(slot.0, Why::Cancelled, out);
        self.rearm(now, queue, out);
        Some(queue)
    }

    /// Ends a request whose walk is complete.
    pub(crate) fn finish(&mut self, slot: RequestSlot, out: &mut Outbox) {
        self.requests.set_state(slot, State::Free);
        out.push(Action::Finish { request: slot });
    }

    /// Ends a request without an answer.
    pub(crate) fn reject(&mut self, slot: u32, why: Why, out: &mut Outbox) {
        self.requests.set_state(RequestSlot(slot), State::Free);
        out.push(Action::Reject { request: RequestSlot(slot), why });
    }

    /// Takes all requests out of a queue, one a call, waiting ones first; none when it is empty.
    pub(crate) fn take_front(&mut self, queue: usize) -> Option<u32> {
        if let Some(slot) = self.queues[queue].waiting.front() {
            self.unlink(queue, slot);
            return Some(slot);
        }
        let slot = self.queues[queue].overdue.pop_front(&mut self.links);
        if slot.is_none() {
            self.wakeups.remove(queue);
            self.overdue.remove(queue);
        }
        slot
    }

    pub(crate) fn is_overdue(&self, slot: u32) -> bool {
        self.requests.state(RequestSlot(slot)) == State::Overdue
    }

    fn unlink(&mut self, queue: usize, slot: u32) {
        let list = &mut self.queues[queue];
        list.waiting.remove(&mut self.links, slot);
        let rows = self.requests.get(slot).rows;
        list.rows -= u64::from(rows);
        list.wide -= usize::from(rows > 1);
    }

    /// The last moment at which a request can be punctual, run alone.
    fn leaves_after(&self, slot: u32) -> Time {
        let request = self.requests.get(slot);
        request.deadline - self.served(request.model).profile.latency(request.rows as usize)
    }

    /// The next queue whose time has come, its hopeless requests dealt with.
    pub(crate) fn wake(&mut self, now: Time, out: &mut Outbox) -> Option<usize> {
        let (_, queue) = self.wakeups.peek().filter(|&(at, _)| at <= now)?;
        self.rearm(now, queue, out);
        Some(queue)
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.wakeups.peek().map_or(Time::NEVER, |(at, _)| at)
    }

    /// Drops what cannot stay in a queue and sets its timer anew.
    fn rearm(&mut self, now: Time, queue: usize, out: &mut Outbox) {
        let mut at = Time::NEVER;
        while let Some(head) = self.queues[queue].waiting.front() {
            let leaves_after = self.leaves_after(head);
            if now <= leaves_after {
                at = leaves_after.next();
                break;
            }
            if let Some(last) = self.blocked_until(queue).filter(|&last| now <= last) {
                at = last.next();
                break;
            }
            self.pass_over(now, queue, head, out);
        }
        while let Some(slot) = self.queues[queue].overdue.front() {
            let Request { deadline, model, .. } = *self.requests.get(slot);
            if self.served(model).terms.drop != DropRule::Expired {
                break;
            }
            if deadline > now {
                at = at.min(deadline);
                break;
            }
            self.queues[queue].overdue.remove(&mut self.links, slot);
            self.reject(slot, Why::Expired, out);
        }
        match at {
            Time::NEVER => self.wakeups.remove(queue),
            at => self.wakeups.set(queue, at),
        }
        self.note_overdue(queue);
    }

    /// Until when an expired head stays, if it does.
    fn blocked_until(&self, queue: usize) -> Option<Time> {
        let last = self.queues[queue].waiting.back()?;
        let blocks = self.served(self.requests.get(last).model).terms.head_blocks;
        blocks.then(|| self.leaves_after(last))
    }

    fn note_overdue(&mut self, queue: usize) {
        match self.queues[queue].overdue.front() {
            Some(slot) => self.overdue.set(queue, self.requests.get(slot).arrived),
            None => self.overdue.remove(queue),
        }
    }

    /// Takes a request out of a queue that will not be punctual, as the drop rule says.
    fn pass_over(&mut self, now: Time, queue: usize, slot: u32, out: &mut Outbox) {
        self.unlink(queue, slot);
        let Request { deadline, model, .. } = *self.requests.get(slot);
        match self.served(model).terms.drop {
            DropRule::Hopeless | DropRule::Expired if deadline <= now => self.reject(slot, Why::Expired, out),
            DropRule::Hopeless => self.reject(slot, Why::Hopeless, out),
            DropRule::Expired | DropRule::Never => {
                self.requests.set_state(RequestSlot(slot), State::Overdue);
                self.queues[queue].overdue.push_back(&mut self.links, slot);
            }
        }
    }

    /// The best batch that could start at `at` on a device that needs `percent` % of the profile.
    pub(crate) fn gather(&self, queue: usize, at: Time, percent: u32, aim: Aim) -> Option<Candidate> {
        let (mut first, mut left) = (self.queues[queue].waiting.front()?, self.queues[queue].rows);
        // What cannot even run alone from then on is in nobody's way.
        while at > self.leaves_after(first) {
            if self.served(self.requests.get(first).model).terms.head_blocks {
                return None;
            }
            left -= u64::from(self.requests.get(first).rows);
            first = self.links.next(first)?;
        }
        let profile = &self.served(self.requests.get(first).model).profile;
        let room = |slot: u32| {
            let request = self.requests.get(slot);
            let span = (request.deadline - at).scale(100, u64::from(percent));
            // A request that is wider than the limit runs alone.
            profile.largest_within(span).min(aim.cap.max(request.rows as usize))
        };
        (first, left) = self.skip(first, left, aim.target, room);
        let rows = self.fill(queue, first, room(first), left);
        let latest = self.requests.get(first).deadline - profile.latency(rows.max(1));
        (rows > 0).then_some(Candidate { first, rows, latest })
    }

    /// Passes over the fewest heads that let the batch reach its target, or the largest size that any later head
    /// allows. Returns the first request kept and the rows from it to the end of the queue.
    fn skip(&self, head: u32, rows: u64, target: usize, room: impl Fn(u32) -> usize) -> (u32, u64) {
        let size = |first: u32, left: u64| match room(first) {
            room if room < self.requests.get(first).rows as usize => 0,
            room => left.min(room as u64),
        };
        let (mut first, mut left) = (head, rows);
        let mut best = (first, left);
        while size(best.0, best.1) < target as u64 {
            // No later head allows more once everything left fits.
            if room(first) as u64 >= left {
                break;
            }
            left -= u64::from(self.requests.get(first).rows);
            let Some(next) = self.links.next(first) else { break };
            first = next;
            if size(first, left) > size(best.0, best.1) {
                best = (first, left);
            }
        }
        best
    }

    /// How many of the `left` rows from `first` on fit into `room` rows without splitting a request.
    fn fill(&self, queue: usize, first: u32, room: usize, left: u64) -> usize {
        if left <= room as u64 {
            return left as usize;
        }
        if self.queues[queue].wide == 0 {
            return room;
        }
        let (mut rows, mut next) = (0, Some(first));
        while let Some(slot) = next {
            let more = self.requests.get(slot).rows as usize;
            if rows + more > room {
                break;
            }
            rows += more;
            next = self.links.next(slot);
        }
        rows
    }

    /// Moves a candidate's members out of the queue and passes over who stood before them.
    pub(crate) fn take(
        &mut self,
        now: Time,
        queue: usize,
        candidate: Candidate,
        out: &mut Outbox,
        mut member: impl FnMut(RequestSlot),
    ) {
        while let Some(head) = self.queues[queue].waiting.front().filter(|&head| head != candidate.first) {
            self.pass_over(now, queue, head, out);
        }
        let mut rows = 0;
        while rows < candidate.rows {
            let slot = self.queues[queue].waiting.front().expect("the candidate was gathered from this queue");
            self.unlink(queue, slot);
            rows += self.run(slot, &mut member);
        }
        self.rearm(now, queue, out);
    }

    /// The queue with the oldest overdue request among those that `may` run.
    pub(crate) fn oldest_overdue(&self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let queues = self.overdue.keys().filter(|&queue| may(queue));
        queues.min_by_key(|&queue| (self.overdue.get(queue), queue))
    }

    pub(crate) fn has_overdue(&self, queue: usize) -> bool {
        self.overdue.contains(queue)
    }

    /// Moves the oldest overdue requests out of a queue, up to `cap` rows; returns their rows.
    pub(crate) fn take_overdue(
        &mut self,
        now: Time,
        queue: usize,
        cap: usize,
        out: &mut Outbox,
        mut member: impl FnMut(RequestSlot),
    ) -> usize {
        let mut rows = 0;
        while let Some(slot) = self.queues[queue].overdue.front() {
            let more = self.requests.get(slot).rows as usize;
            if rows > 0 && rows + more > cap {
                break;
            }
            self.queues[queue].overdue.remove(&mut self.links, slot);
            rows += self.run(slot, &mut member);
        }
        self.rearm(now, queue, out);
        rows
    }

    /// Hands a request to a batch; returns its rows.
    fn run(&mut self, slot: u32, member: &mut impl FnMut(RequestSlot)) -> usize {
        self.requests.set_state(RequestSlot(slot), State::Running);
        member(RequestSlot(slot));
        self.requests.get(slot).rows as usize
    }

    /// ℓ of the blocks from `block` on, for `rows` rows.
    pub(crate) fn remaining(&self, id: ModelId, block: BlockId, rows: usize) -> Nanos {
        let served = self.served(id);
        if block == BlockId(0) {
            return served.profile.latency(rows);
        }
        served.model.blocks[block.index()..].iter().map(|block| block.profile.latency(rows)).sum()
    }
}
