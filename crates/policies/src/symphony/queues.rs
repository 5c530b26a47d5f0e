//! The queues of the models of one shard: which requests are dropped, and which form a batch.

use super::Rules;
use super::grants::{Candidates, Grant, GrantClass};
use super::model_queue::{BatchRules, Candidate, ModelQueue, ShardModel};
use ripieno_base::{BlockId, IndexedHeap, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Model, Profile};
use ripieno_sched::tables::models::Models;
use ripieno_sched::tables::requests::{RequestState, Requests};
use ripieno_sched::tables::tasks::{Task, Tasks};
use ripieno_sched::{Limits, NetworkDelay, Outbox, Request, Why};

/// The queues of the models of one shard.
#[derive(Debug)]
pub(crate) struct ShardQueues {
    /// The live requests of the shard.
    pub(super) requests: Requests,
    /// The models of the shard.
    pub(super) models: Models<ModelQueue>,
    /// Rules of the scheduler.
    rules: Rules,
    /// The measured time to reach devices; `None`: the rules' own.
    measured: Option<NetworkDelay>,
    /// Time of the next check of each model.
    wakeups: IndexedHeap<Time>,
    /// Models whose offer may have changed.
    changed: Vec<ModelId>,
    /// True for each model in `changed`.
    is_changed: Vec<bool>,
}

impl ShardQueues {
    pub(crate) fn new(limits: &Limits, rules: Rules) -> ShardQueues {
        ShardQueues {
            requests: Requests::new(limits.requests),
            models: Models::new(limits, rules.options.clone()),
            rules,
            measured: None,
            wakeups: IndexedHeap::new(limits.models),
            changed: Vec::with_capacity(limits.models),
            is_changed: vec![false; limits.models],
        }
    }

    pub(crate) fn load_model(&mut self, id: ModelId, model: Model) {
        assert!(model.profile().max_batch() >= model.max_batch, "the profile ends before max_batch: {model:?}");
        let (rules, measured) = (&self.rules, self.measured);
        self.models.load(id, model, |model, max_batch| {
            let mut rule = rules.of(model);
            if let Some(measured) = measured {
                rule.ways.network = bounded(measured, model);
            }
            ModelQueue::new(model, max_batch, rule)
        });
    }

    /// Replaces the time to reach devices by a measured one.
    pub(crate) fn set_network(&mut self, now: Time, measured: NetworkDelay) {
        self.measured = Some(measured);
        for id in (0..self.models.capacity() as u16).map(ModelId) {
            if self.models.find(id).is_none() {
                continue;
            }
            self.refresh_network(now, id);
        }
    }

    /// Sets the measured time to gather batches of a model.
    pub(crate) fn set_gather(&mut self, now: Time, id: ModelId, measured: NetworkDelay) {
        self.models.get_mut(id).own.gather = measured;
        self.refresh_network(now, id);
    }

    fn refresh_network(&mut self, now: Time, id: ModelId) {
        let served = self.models.get_mut(id);
        let (own, model) = (&mut served.own, &served.model);
        own.rule.ways.network = match self.measured {
            Some(measured) => bounded(measured.with(own.gather), model),
            None => self.rules.ways.network.with(bounded(own.gather, model)),
        };
        served.refresh_profile(now);
        self.mark(id);
    }

    /// Returns whether a batch of a model takes time to reach its device.
    pub(crate) fn is_delayed(&self, id: ModelId) -> bool {
        !self.models.get(id).rule.ways.network.is_none()
    }

    /// Unloads a model: waiting requests are rejected.
    pub(crate) fn retire_model(&mut self, id: ModelId, out: &mut Outbox) {
        let served = self.models.get_mut(id);
        served.retired = true;
        served.queue.reject_all(&mut self.requests, Why::Unloaded, out);
        self.mark(id);
    }

    pub(crate) fn replace_profile(&mut self, now: Time, id: ModelId, block: BlockId, profile: Profile) {
        self.models.replace_profile(id, block, profile).refresh_profile(now);
        self.mark(id);
    }

    pub(crate) fn model(&self, id: ModelId) -> &Model {
        &self.models.get(id).model
    }

    /// Returns the time that a task needs to reach its device, and the duration of its block. Later
    /// blocks are at the device already.
    pub(crate) fn lead_and_cost(&self, task: &Task, rows: usize) -> (Nanos, Nanos) {
        let queue = self.models.get(task.model);
        let lead = if task.block == BlockId(0) { queue.rule.ways.network.lead(rows) } else { Nanos::ZERO };
        (lead, queue.model.blocks[task.block.index()].profile.latency(rows))
    }

    pub(crate) fn enqueue(&mut self, now: Time, request: &Request) {
        let served = self.models.of_newcomer(request);
        self.requests.insert(request);
        served.record(now, request.rows);
        let order = served.order();
        served.queue.push(&mut self.requests, request.slot.0, order);
        self.mark(request.model);
    }

    /// Puts a request of a task back; it keeps its place by deadline.
    pub(crate) fn requeue(&mut self, slot: RequestSlot, out: &mut Outbox) {
        let id = self.requests.get(slot.0).model;
        let served = self.models.get_mut(id);
        if let Some(why) = self.requests.why_over(slot.0, served.retired) {
            return self.requests.reject(slot.0, why, out);
        }
        let order = served.order();
        served.queue.push(&mut self.requests, slot.0, order);
        self.mark(id);
    }

    /// Withdraws a request if it waits; a running one will not run again.
    pub(crate) fn cancel(&mut self, slot: RequestSlot, out: &mut Outbox) {
        if !matches!(self.requests.state(slot.0), RequestState::Waiting | RequestState::Overdue) {
            return self.requests.disown(slot.0);
        }
        let id = self.requests.get(slot.0).model;
        self.models.get_mut(id).queue.remove(&mut self.requests, slot.0);
        self.requests.reject(slot.0, Why::Cancelled, out);
        self.mark(id);
    }

    /// Marks a model whose demand may have changed.
    pub(crate) fn mark(&mut self, id: ModelId) {
        if !std::mem::replace(&mut self.is_changed[id.index()], true) {
            self.changed.push(id);
        }
    }

    /// Marks the models whose wakeup is due. Call before [`ShardQueues::next_changed`].
    pub(crate) fn wake(&mut self, now: Time) {
        while let Some((_, model)) = self.wakeups.peek().filter(|&(at, _)| at <= now) {
            self.wakeups.remove(model);
            self.mark(ModelId(model as u16));
        }
    }

    /// Returns true if requests of a model wait.
    pub(crate) fn has_waiting(&self, id: ModelId) -> bool {
        self.models.get(id).queue.any().is_some()
    }

    /// Takes a model whose offer may have changed.
    pub(crate) fn next_changed(&mut self) -> Option<ModelId> {
        let id = self.changed.pop()?;
        self.is_changed[id.index()] = false;
        Some(id)
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.wakeups.peek().map_or(Time::NEVER, |(at, _)| at)
    }

    /// Drops requests that cannot stay and returns the model's candidates.
    pub(crate) fn candidates(&mut self, now: Time, id: ModelId, out: &mut Outbox) -> Candidates {
        self.shed(now, id, out);
        let queue = self.models.get_mut(id);
        let round_trip = queue.rule.ways.round_trip;
        let formed = now + round_trip;
        if queue.serves_late(&self.requests, formed) {
            return self.late_candidates(now, id);
        }
        let candidate = queue.gather(&self.requests, formed, 100);
        if let Some(Candidate { first, .. }) = candidate.filter(|_| queue.rule.drops_passed) {
            let (drop, queue) = (queue.drop, &mut queue.own.queue);
            while let Some(head) = queue.head().filter(|&head| head != first) {
                queue.pass_over(&mut self.requests, now, head, drop, out);
            }
        }
        let queue = self.models.get(id);
        let window = candidate.map(|candidate| queue.window(&self.requests, formed, candidate).sooner(round_trip));
        let wakeup = queue.wakeup(&self.requests, window);
        match wakeup {
            Time::NEVER => self.wakeups.remove(id.index()),
            at => self.wakeups.set(id.index(), at),
        }
        let overdue_since = queue.queue.overdue().map(|slot| self.requests.get(slot).arrived);
        Candidates { punctual: window, overdue_since }
    }

    /// Returns the candidates of a model whose batches take the oldest requests.
    fn late_candidates(&mut self, now: Time, id: ModelId) -> Candidates {
        let queue = self.models.get(id);
        match queue.wakeup(&self.requests, None) {
            Time::NEVER => self.wakeups.remove(id.index()),
            at => self.wakeups.set(id.index(), at),
        }
        Candidates { punctual: Some(queue.late_window(now)), overdue_since: None }
    }

    /// Moves hopeless heads out of the queue, and rejects requests by the drop rule.
    fn shed(&mut self, now: Time, id: ModelId, out: &mut Outbox) {
        let ShardQueues { requests, models, .. } = self;
        let served = models.get_mut(id);
        while let Some(head) = served.hopeless_head(requests, now) {
            served.own.queue.pass_over(requests, now, head, served.drop, out);
        }
        let ShardModel { own: ModelQueue { queue, profile, .. }, drop, .. } = served;
        if queue.overdue().is_some() {
            queue.expire(requests, now, *drop, |rows| profile.latency(rows as usize), out);
        }
    }

    /// Forms the batch of a grant as a task. Returns none if the device is too slow for all waiting
    /// requests.
    pub(crate) fn form(&mut self, now: Time, grant: &Grant, tasks: &mut Tasks, out: &mut Outbox) -> Option<TaskId> {
        // The matchmaker dropped the model's candidates when it granted; they are announced again
        // in any case.
        self.mark(grant.model);
        match grant.class {
            GrantClass::Punctual => {
                // A grant that took its time may find heads that can no longer be in time.
                self.shed(now, grant.model, out);
                self.form_punctual(now, grant, tasks, out)
            }
            GrantClass::Overdue { until } => self.form_overdue(until - now, grant, tasks),
        }
    }

    fn form_punctual(&mut self, now: Time, grant: &Grant, tasks: &mut Tasks, out: &mut Outbox) -> Option<TaskId> {
        let ShardQueues { requests, models, .. } = self;
        let served = models.get_mut(grant.model);
        if served.serves_late(requests, now) {
            return Some(self.form_oldest(now, grant, tasks));
        }
        let Candidate { first, rows, .. } = served.gather(requests, now, grant.percent)?;
        let task = tasks.open(grant.model, BlockId(0), grant.device(), LaneId(0));
        served.own.started = now;
        let push = |request: &Request| tasks.push(task, request.slot, request.extent.length);
        served.own.queue.take(requests, now, (first, rows), served.drop, out, push);
        Some(task)
    }

    /// Forms a batch of the oldest requests, late or not.
    fn form_oldest(&mut self, now: Time, grant: &Grant, tasks: &mut Tasks) -> TaskId {
        let ShardQueues { requests, models, .. } = self;
        let served = models.get_mut(grant.model);
        let task = tasks.open(grant.model, BlockId(0), grant.device(), LaneId(0));
        let push = |request: &Request| tasks.push(task, request.slot, request.extent.length);
        let room = served.late_batch();
        served.queue.take_oldest(requests, room, push);
        served.own.started = now;
        task
    }

    /// Forms a batch of overdue requests that takes at most `span`.
    fn form_overdue(&mut self, span: Nanos, grant: &Grant, tasks: &mut Tasks) -> Option<TaskId> {
        let ShardQueues { requests, models, .. } = self;
        let served = models.get_mut(grant.model);
        let first = requests.get(served.queue.overdue()?).rows as usize;
        let room = served.largest_within(span.scale(100, u64::from(grant.percent)));
        if first > room {
            return None;
        }
        let limit = room.min(served.max_batch.max(first));
        let task = tasks.open(grant.model, BlockId(0), grant.device(), LaneId(0));
        let push = |request: &Request| tasks.push(task, request.slot, request.extent.length);
        served.queue.take_overdue(requests, limit, push);
        Some(task)
    }
}

/// Returns the part of a measured delay that a model counts. It leaves half of what a lone request
/// has to spare: a model that refused all requests would never measure a shorter one.
fn bounded(measured: NetworkDelay, model: &Model) -> NetworkDelay {
    measured.within(Nanos((model.slo - model.profile().latency(1)).0 / 2), 1)
}
