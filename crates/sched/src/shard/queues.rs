//! The queues of the models of one shard: which requests are dropped, and which form a batch.

use super::cut::Others;
use super::model_queue::{ModelDemand, ModelQueue, ShardModel};
use super::scarcity::{PriceTerms, Scarcity, WHOLE};
use super::{Candidates, Gather, Grant, GrantClass, Price, Rules, StartRule};
use crate::parts::models::Models;
use crate::parts::requests::{RequestState, Requests};
use crate::parts::tasks::{Task, Tasks};
use crate::{Limits, Outbox, Request, Why};
use ripieno_base::{BlockId, DeviceId, IndexedHeap, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model, Profile};

/// The known demand of all models for device time.
#[derive(Debug)]
struct Loads {
    /// Per model: its load in thousandths of a device, in batches of its target size, and the
    /// latency of such a batch.
    loads: Vec<(u64, Nanos)>,
    /// The number of models with a load, the sum of their loads, and the sum of each load times its
    /// batch's latency in microseconds.
    loaded_models: u64,
    total: u64,
    weighted: u64,
    /// The model whose load is updated next.
    turn: usize,
    /// Per model its current demand; and the sum of all demands.
    demands: Vec<ModelDemand>,
    demanded: ModelDemand,
    /// Longest wait for a device of each model with requests, and the two shortest of these with
    /// their models.
    max_wait: Vec<Nanos>,
    shortest_waits: [(Nanos, usize); 2],
}

/// An entry of [`Loads::shortest_waits`] without a model.
const NO_MODEL: (Nanos, usize) = (Nanos::MAX, usize::MAX);

impl Loads {
    fn new(models: usize) -> Loads {
        let (demands, demanded) = (vec![ModelDemand::default(); models], ModelDemand::default());
        Loads {
            loads: vec![(0, Nanos::ZERO); models],
            loaded_models: 0,
            total: 0,
            weighted: 0,
            turn: 0,
            demands,
            demanded,
            max_wait: vec![Nanos::MAX; models],
            shortest_waits: [NO_MODEL; 2],
        }
    }

    fn set(&mut self, id: ModelId, load: (u64, Nanos)) {
        let weight = |(load, batch): (u64, Nanos)| load * (batch.0 / 1_000) as u64;
        let old = std::mem::replace(&mut self.loads[id.index()], load);
        self.loaded_models = self.loaded_models - u64::from(old.0 > 0) + u64::from(load.0 > 0);
        self.total = self.total - old.0 + load.0;
        self.weighted = self.weighted - weight(old) + weight(load);
    }

    fn next(&mut self) -> ModelId {
        self.turn = (self.turn + 1) % self.loads.len();
        ModelId(self.turn as u16)
    }

    /// Returns whether a model's load is below half of the mean.
    fn is_light(&self, id: ModelId) -> bool {
        2 * self.loads[id.index()].0 * self.loaded_models < self.total
    }

    fn note_demand(&mut self, id: ModelId, demand: ModelDemand) {
        let old = std::mem::replace(&mut self.demands[id.index()], demand);
        let all = &mut self.demanded;
        all.rows = all.rows - old.rows + demand.rows;
        all.work = all.work - old.work + demand.work;
        all.rate = all.rate - old.rate + demand.rate;
        all.busy = all.busy - old.busy + demand.busy;
        all.held = all.held - old.held + demand.held;
    }

    /// Returns the demand of the other models, and what they leave of `devices` devices.
    fn others(&self, id: ModelId, devices: usize, idle: usize) -> Others {
        let (all, own) = (&self.demanded, &self.demands[id.index()]);
        Others {
            spare: (1_000 * devices as u64).saturating_sub(all.busy - own.busy),
            rows: all.rows - own.rows,
            work: all.work - own.work,
            rate: all.rate - own.rate,
            idle,
            max_wait: Nanos(self.shortest_wait_but(id).0.saturating_mul(devices.max(1) as i64)),
        }
    }

    /// Returns the longest wait of a batch that starts after the backlog of all other models: twice
    /// the time until a device becomes free, plus the run time of their batches.
    fn backlog_wait(&self, id: ModelId, devices: usize) -> Nanos {
        let (all, own) = (&self.demanded, &self.demands[id.index()]);
        if self.loaded_models <= 1 {
            return Nanos::ZERO;
        }
        let free = Nanos::from_micros((2 * all.held / all.busy.max(1)) as i64);
        Nanos((free + all.work - own.work).0 / devices.max(1) as i64)
    }

    /// Stores the longest wait of a model, if it has requests.
    fn note_max_wait(&mut self, id: ModelId, max_wait: Nanos) {
        let max_wait = if self.loads[id.index()].0 > 0 { max_wait } else { Nanos::MAX };
        if self.max_wait[id.index()] == max_wait {
            return;
        }
        self.max_wait[id.index()] = max_wait;
        self.shortest_waits = [NO_MODEL; 2];
        for (at, &max_wait) in self.max_wait.iter().enumerate() {
            if max_wait < self.shortest_waits[0].0 {
                self.shortest_waits = [(max_wait, at), self.shortest_waits[0]];
            } else if max_wait < self.shortest_waits[1].0 {
                self.shortest_waits[1] = (max_wait, at);
            }
        }
    }

    /// Returns the shortest of the longest waits of the other models.
    fn shortest_wait_but(&self, id: ModelId) -> Nanos {
        let [first, second] = self.shortest_waits;
        if first.1 == id.index() { second.0 } else { first.0 }
    }

    /// Returns twice the mean time until a device becomes free, of the devices that run batches of
    /// other models.
    fn blocking(&self, id: ModelId, devices: usize) -> Nanos {
        let (load, batch) = self.loads[id.index()];
        let others = self.weighted - load * (batch.0 / 1_000) as u64;
        Nanos::from_micros((2 * others / self.total.max(1)) as i64 / devices.max(1) as i64)
    }
}

/// The queues of the models of one shard.
#[derive(Debug)]
pub(crate) struct ShardQueues {
    pub(super) requests: Requests,
    pub(super) models: Models<ModelQueue>,
    rules: Rules,
    /// Time of the next check of each model.
    wakeups: IndexedHeap<Time>,
    /// Models whose offer may have changed.
    changed: Vec<ModelId>,
    is_changed: Vec<bool>,
    loads: Loads,
    scarcity: Scarcity,
    /// Expected times at which devices that run batches of these models become free, where batches
    /// are started by price.
    pub(super) ends: IndexedHeap<Time>,
    /// The latest start of each model's candidate, where it may preempt others.
    pub(super) latest: IndexedHeap<Time>,
    /// Per device, the batch that runs alone on it.
    pub(super) running: Vec<Option<Begun>>,
}

/// Rows of a model that form a batch, from the request `first` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchRows {
    pub(super) model: ModelId,
    pub(super) first: u32,
    pub(super) rows: usize,
}

/// A batch that has begun on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    at: Time,
    /// Expected mean duration of such a batch on a device of profiled speed.
    expected: Nanos,
    /// Device time relative to the profile, in percent.
    percent: u32,
}

impl ShardQueues {
    pub(crate) fn new(limits: &Limits, rules: Rules) -> ShardQueues {
        ShardQueues {
            requests: Requests::new(limits.requests),
            models: Models::new(limits, rules.options.clone()),
            rules,
            wakeups: IndexedHeap::new(limits.models),
            changed: Vec::with_capacity(limits.models),
            is_changed: vec![false; limits.models],
            loads: Loads::new(limits.models),
            scarcity: Scarcity::default(),
            ends: IndexedHeap::new(limits.devices),
            latest: IndexedHeap::new(limits.models),
            running: vec![None; limits.devices],
        }
    }

    pub(crate) fn load_model(&mut self, id: ModelId, model: Model) {
        assert!(model.profile().max_batch() >= model.max_batch, "the profile ends before max_batch: {model:?}");
        let rules = &self.rules;
        self.models.load(id, model, |model, max_batch| ModelQueue::new(model, max_batch, rules.of(model)));
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
        let lead = if task.block == BlockId(0) { queue.rule.network.lead(rows) } else { Nanos::ZERO };
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

    /// Records the start of a task of this model.
    pub(crate) fn note_start(&mut self, id: ModelId, block: BlockId, members: &[RequestSlot]) {
        let rows = self.requests.rows(members);
        self.models.get_mut(id).reach.on_start(block, rows);
    }

    /// Records the end of a batch of this model on a device; `ok` if it ran to its end.
    pub(crate) fn note_end(&mut self, now: Time, id: ModelId, device: DeviceId, ok: bool) {
        self.ends.remove(device.index());
        if let Some(Begun { at, expected, percent }) = self.running[device.index()].take().filter(|_| ok) {
            let took = (now - at).scale(100, u64::from(percent.max(1)));
            self.models.get_mut(id).note_occupancy(took, expected);
        }
        self.scarcity.note_activity(now, self.models.get(id).target_cost());
    }

    /// Marks a model whose demand may have changed.
    pub(crate) fn mark(&mut self, id: ModelId) {
        if !std::mem::replace(&mut self.is_changed[id.index()], true) {
            self.changed.push(id);
        }
    }

    /// Marks all models, so that their demands are announced again.
    pub(crate) fn mark_all(&mut self) {
        let known: Vec<ModelId> = self.models.iter().map(|(id, _)| id).collect();
        known.into_iter().for_each(|id| self.mark(id));
    }

    /// Returns the models, with the number of batches of each that may run concurrently.
    pub(crate) fn instances(&self) -> impl Iterator<Item = (ModelId, usize)> {
        self.models.iter().map(|(id, served)| (id, served.model.instances))
    }

    /// Marks the models whose wakeup is due. Call before [`ShardQueues::next_changed`].
    pub(crate) fn wake(&mut self, now: Time) {
        while let Some((_, model)) = self.wakeups.peek().filter(|&(at, _)| at <= now) {
            self.wakeups.remove(model);
            self.mark(ModelId(model as u16));
        }
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

    /// Drops requests that cannot stay and returns the model's candidates. `devices` is the number
    /// of devices in the cluster.
    pub(crate) fn candidates(&mut self, now: Time, id: ModelId, devices: usize, out: &mut Outbox) -> Candidates {
        self.shed(now, id, out);
        let terms = self.terms(now, id, devices);
        let queue = self.models.get_mut(id);
        let round_trip = queue.rule.network.round_trip;
        let formed = now + round_trip;
        if queue.serves_late(&self.requests, formed) {
            return self.late_candidates(now, id);
        }
        let candidate = queue.gather(&self.requests, formed, 100);
        let window =
            candidate.map(|candidate| queue.window(&self.requests, formed, candidate, &terms).sooner(round_trip));
        let exec = window.map_or(Time::NEVER, |window| window.exec);
        let mut wakeup = queue.wakeup(&self.requests, window);
        if let (StartRule::Priced(Price::Measured), Some(window)) = (queue.rule.start, window) {
            // The price falls by then if no event comes before.
            wakeup = if exec > now { wakeup.min(now + queue.target_cost()) } else { wakeup };
            let urgent = queue.urgent_from(window.latest, &terms);
            wakeup = if urgent > exec && terms.backlog_wait > Nanos::ZERO { wakeup.min(urgent) } else { wakeup };
        }
        match window.filter(|_| queue.rule.start.is_priced()) {
            Some(window) => self.latest.set(id.index(), window.latest),
            None => self.latest.remove(id.index()),
        }
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
        self.latest.remove(id.index());
        match queue.wakeup(&self.requests, None) {
            Time::NEVER => self.wakeups.remove(id.index()),
            at => self.wakeups.set(id.index(), at),
        }
        Candidates { punctual: Some(queue.late_window(now)), overdue_since: None }
    }

    /// Returns the terms that weigh the candidates of this model. Published rules have none.
    fn terms(&mut self, now: Time, id: ModelId, devices: usize) -> PriceTerms {
        let queue = self.models.get_mut(id);
        let (cost, rule) = (queue.target_cost(), queue.rule);
        if rule.gather != Gather::Spare && !rule.start.is_priced() {
            return PriceTerms::default();
        }
        self.loads.set(id, queue.load(now));
        self.loads.note_demand(id, queue.demand(now));
        self.loads.note_max_wait(id, queue.max_wait());
        // The load of a model without requests falls without an event, so each call also updates
        // one other model.
        let other = self.loads.next();
        if let Some(served) = self.models.find_mut(other) {
            self.loads.set(other, served.load(now));
            self.loads.note_max_wait(other, served.max_wait());
        }
        let blocking = self.loads.blocking(id, devices);
        let head_start = if self.loads.is_light(id) { blocking } else { Nanos::ZERO };
        let queue = self.models.get_mut(id);
        let others = self.loads.others(id, devices, 0);
        queue.note_load(self.loads.total, others.spare, devices);
        let backlog_wait = self.loads.backlog_wait(id, devices);
        let (price, spacing) = match rule.start {
            StartRule::Priced(Price::Measured) => {
                let price = self.scarcity.price(now, cost);
                (price, queue.spacing(devices, price))
            }
            _ => (WHOLE, Nanos::ZERO),
        };
        PriceTerms { price, blocking, head_start, backlog_wait, spacing, free: self.next_free(now, devices) }
    }

    /// Returns the times at which the next device and the one after it are free; an idle one is
    /// free now. Devices in use by other shards count as idle, since their use is not known here.
    fn next_free(&self, now: Time, devices: usize) -> [Time; 2] {
        let first = self.ends.peek().map_or(Time::NEVER, |(end, _)| end.max(now));
        match devices.saturating_sub(self.ends.len()) {
            0 => [first, self.ends.second().map_or(Time::NEVER, |(end, _)| end.max(now))],
            1 => [now, first],
            _ => [now; 2],
        }
    }

    /// Moves hopeless heads out of the queue, and rejects requests by the drop rule.
    fn shed(&mut self, now: Time, id: ModelId, out: &mut Outbox) {
        let ShardQueues { requests, models, scarcity, .. } = self;
        let served = models.get_mut(id);
        while let Some(head) = served.hopeless_head(requests, now) {
            let rows = requests.get(head).rows as usize;
            scarcity.observe(rows, true);
            served.lost.observe(rows, true);
            served.own.queue.pass_over(requests, now, head, served.drop, out);
        }
        let ShardModel { own: ModelQueue { queue, profile, lost, .. }, drop, .. } = served;
        if queue.overdue().is_some() {
            let rows = queue.expire(requests, now, *drop, |rows| profile.latency(rows as usize), out);
            lost.observe(rows, true);
        }
    }

    /// Forms the batch of a grant as a task. Returns none if the device is too slow for all waiting
    /// requests.
    pub(crate) fn form(
        &mut self,
        now: Time,
        grant: &Grant,
        devices: usize,
        tasks: &mut Tasks,
        out: &mut Outbox,
    ) -> Option<TaskId> {
        // The matchmaker dropped the model's candidates when it granted; they are announced again
        // in any case.
        self.mark(grant.model);
        match grant.class {
            GrantClass::Punctual => self.form_punctual(now, grant, devices, tasks, out),
            GrantClass::Overdue { until } => self.form_overdue(now, until - now, grant, tasks),
        }
    }

    fn form_punctual(
        &mut self,
        now: Time,
        grant: &Grant,
        devices: usize,
        tasks: &mut Tasks,
        out: &mut Outbox,
    ) -> Option<TaskId> {
        let ShardQueues { requests, models, scarcity, loads, .. } = self;
        let served = models.get_mut(grant.model);
        let batch = served.target_cost();
        scarcity.note_activity(now, batch);
        if served.serves_late(requests, now) {
            return Some(self.form_oldest(now, grant, tasks));
        }
        let candidate = served.gather(requests, now, grant.percent)?;
        let others = loads.others(grant.model, devices, grant.idle);
        let rows = served.cut(requests, now, candidate, scarcity.price(now, batch), &others);
        let task = tasks.open(grant.model, BlockId(0), grant.device(), LaneId(0));
        let takes = self.fill(now, BatchRows { model: grant.model, first: candidate.first, rows }, task, tasks, out);
        self.note_begun(now, grant, takes);
        Some(task)
    }

    /// Records that a batch of this mean duration begins on a device.
    fn note_begun(&mut self, now: Time, grant: &Grant, takes: Nanos) {
        let (device, percent) = (grant.device().index(), grant.percent);
        self.running[device] = Some(Begun { at: now, expected: takes, percent });
        if self.models.get(grant.model).rule.start.is_priced() {
            self.ends.set(device, now + takes.scale(u64::from(percent), 100));
        }
    }

    /// Forms a batch of the oldest requests, late or not.
    fn form_oldest(&mut self, now: Time, grant: &Grant, tasks: &mut Tasks) -> TaskId {
        let ShardQueues { requests, models, scarcity, .. } = self;
        let served = models.get_mut(grant.model);
        let task = tasks.open(grant.model, BlockId(0), grant.device(), LaneId(0));
        let push = |request: &Request| tasks.push(task, request.slot, request.extent.length);
        let room = served.late_batch();
        let rows = served.queue.take_oldest(requests, room, push);
        scarcity.observe(rows, false);
        served.lost.observe(rows, false);
        let takes = served.note_batch(now, rows);
        self.note_begun(now, grant, takes);
        task
    }

    /// Fills a batch with rows of a model. Returns its mean duration.
    pub(super) fn fill(
        &mut self,
        now: Time,
        BatchRows { model, first, rows }: BatchRows,
        task: TaskId,
        tasks: &mut Tasks,
        out: &mut Outbox,
    ) -> Nanos {
        let ShardQueues { requests, models, scarcity, .. } = self;
        let served = models.get_mut(model);
        scarcity.observe(rows, false);
        served.lost.observe(rows, false);
        let takes = served.note_batch(now, rows);
        let push = |request: &Request| tasks.push(task, request.slot, request.extent.length);
        let (drop, waited) = (served.drop_of_passed(), served.queue.rows());
        served.own.queue.take(requests, now, (first, rows), drop, out, push);
        let passed = (waited - served.queue.rows()) as usize - rows;
        scarcity.observe(passed, true);
        takes
    }

    /// Forms a batch of overdue requests that takes at most `span`.
    fn form_overdue(&mut self, now: Time, span: Nanos, grant: &Grant, tasks: &mut Tasks) -> Option<TaskId> {
        let ShardQueues { requests, models, ends, .. } = self;
        let served = models.get_mut(grant.model);
        let head = requests.get(served.queue.overdue()?);
        // Where hopeless requests are dropped, an overdue one was only passed over and must meet
        // its deadline.
        let span = if served.drop == DropRule::Hopeless { span.min(head.deadline - now) } else { span };
        let room = served.largest_within(span.scale(100, u64::from(grant.percent)));
        let first = head.rows as usize;
        if first > room {
            return None;
        }
        let limit = room.min(served.max_batch.max(first));
        let task = tasks.open(grant.model, BlockId(0), grant.device(), LaneId(0));
        let push = |request: &Request| tasks.push(task, request.slot, request.extent.length);
        let rows = served.queue.take_overdue(requests, limit, push);
        served.lost.observe(rows, false);
        if served.rule.start.is_priced() {
            ends.set(grant.device().index(), now + served.cost(rows).scale(u64::from(grant.percent), 100));
        }
        Some(task)
    }
}
