//! The queues of the models of one shard: which requests are dropped, and which form a batch.

use super::cut::Others;
use super::model_queue::{Demand, ModelQueue, Served};
use super::scarcity::{Scarcity, Terms, WHOLE};
use super::{Candidates, Class, Gather, Grant, Price, Rules, Start};
use crate::parts::models::Models;
use crate::parts::requests::{Requests, State};
use crate::parts::tasks::{Task, Tasks};
use crate::{Limits, Outbox, Request, Why};
use ripieno_base::{BlockId, DeviceId, IndexedHeap, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model, Profile};

/// How much device time the models need, as far as it is known.
#[derive(Debug)]
struct Loads {
    /// By model: the load in thousandths of a device, in batches of its target size, and the latency of such a batch.
    loads: Vec<(u64, Nanos)>,
    /// The number of models with a load, the sum of their loads, and the sum of each load times its batch's latency in microseconds.
    asking: u64,
    total: u64,
    weighted: u64,
    /// The model whose load is brought up to date next.
    turn: usize,
    /// By model: its demand now; and the sum of all demands.
    demands: Vec<Demand>,
    demanded: Demand,
    /// How long each model with requests can wait for a device, and the two that can wait least.
    patience: Vec<Nanos>,
    tightest: [(Nanos, usize); 2],
}

/// An entry of [`Loads::tightest`] without a model.
const ANY: (Nanos, usize) = (Nanos::MAX, usize::MAX);

impl Loads {
    fn new(models: usize) -> Loads {
        let (demands, demanded) = (vec![Demand::default(); models], Demand::default());
        Loads {
            loads: vec![(0, Nanos::ZERO); models],
            asking: 0,
            total: 0,
            weighted: 0,
            turn: 0,
            demands,
            demanded,
            patience: vec![Nanos::MAX; models],
            tightest: [ANY; 2],
        }
    }

    fn set(&mut self, id: ModelId, load: (u64, Nanos)) {
        let weight = |(load, batch): (u64, Nanos)| load * (batch.0 / 1_000) as u64;
        let old = std::mem::replace(&mut self.loads[id.index()], load);
        self.asking = self.asking - u64::from(old.0 > 0) + u64::from(load.0 > 0);
        self.total = self.total - old.0 + load.0;
        self.weighted = self.weighted - weight(old) + weight(load);
    }

    fn next(&mut self) -> ModelId {
        self.turn = (self.turn + 1) % self.loads.len();
        ModelId(self.turn as u16)
    }

    /// Whether a model's load is below half of the mean.
    fn is_light(&self, id: ModelId) -> bool {
        2 * self.loads[id.index()].0 * self.asking < self.total
    }

    fn note_demand(&mut self, id: ModelId, demand: Demand) {
        let old = std::mem::replace(&mut self.demands[id.index()], demand);
        let all = &mut self.demanded;
        all.rows = all.rows - old.rows + demand.rows;
        all.work = all.work - old.work + demand.work;
        all.rate = all.rate - old.rate + demand.rate;
        all.busy = all.busy - old.busy + demand.busy;
        all.held = all.held - old.held + demand.held;
    }

    /// What the other models leave of so many devices.
    fn others(&self, id: ModelId, devices: usize, idle: usize) -> Others {
        let (all, own) = (&self.demanded, &self.demands[id.index()]);
        Others {
            room: (1_000 * devices as u64).saturating_sub(all.busy - own.busy),
            rows: all.rows - own.rows,
            work: all.work - own.work,
            rate: all.rate - own.rate,
            idle,
            patience: Nanos(self.tightest_but(id).0.saturating_mul(devices.max(1) as i64)),
        }
    }

    /// The longest wait of a batch that is started after everything that waits of other models: until a device falls free
    /// twice, and while their batches run.
    fn behind(&self, id: ModelId, devices: usize) -> Nanos {
        let (all, own) = (&self.demanded, &self.demands[id.index()]);
        if self.asking <= 1 {
            return Nanos::ZERO;
        }
        let free = Nanos::from_micros((2 * all.held / all.busy.max(1)) as i64);
        Nanos((free + all.work - own.work).0 / devices.max(1) as i64)
    }

    /// Notes how long a model can wait for a device, if it has requests.
    fn note_patience(&mut self, id: ModelId, patience: Nanos) {
        let patience = if self.loads[id.index()].0 > 0 { patience } else { Nanos::MAX };
        if self.patience[id.index()] == patience {
            return;
        }
        self.patience[id.index()] = patience;
        self.tightest = [ANY; 2];
        for (at, &patience) in self.patience.iter().enumerate() {
            if patience < self.tightest[0].0 {
                self.tightest = [(patience, at), self.tightest[0]];
            } else if patience < self.tightest[1].0 {
                self.tightest[1] = (patience, at);
            }
        }
    }

    /// The shortest time that any other model can wait.
    fn tightest_but(&self, id: ModelId) -> Nanos {
        let [first, second] = self.tightest;
        if first.1 == id.index() { second.0 } else { first.0 }
    }

    /// Twice the time in which a device falls free, of the devices that run batches of other models.
    fn guard(&self, id: ModelId, devices: usize) -> Nanos {
        let (load, batch) = self.loads[id.index()];
        let others = self.weighted - load * (batch.0 / 1_000) as u64;
        Nanos::from_micros((2 * others / self.total.max(1)) as i64 / devices.max(1) as i64)
    }
}

/// The queues of the models of one shard.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(super) requests: Requests,
    pub(super) models: Models<ModelQueue>,
    rules: Rules,
    /// When each model must be looked at again.
    wakeups: IndexedHeap<Time>,
    /// Models whose offer may have changed.
    changed: Vec<ModelId>,
    is_changed: Vec<bool>,
    loads: Loads,
    scarcity: Scarcity,
    /// When devices that run batches of these models are thought to fall free, where batches are started by price.
    pub(super) ends: IndexedHeap<Time>,
    /// The latest moment of each model's candidate, where it may preempt others.
    pub(super) latest: IndexedHeap<Time>,
}

impl Queues {
    pub(crate) fn new(limits: &Limits, rules: Rules) -> Queues {
        Queues {
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
        }
    }

    pub(crate) fn load_model(&mut self, id: ModelId, model: Model) {
        assert!(model.profile().max_batch() >= model.max_batch, "the profile ends before max_batch: {model:?}");
        let rules = &self.rules;
        self.models.load(id, model, |model, max_batch| ModelQueue::new(model, max_batch, rules.of(model)));
    }

    /// Takes a model out of service: what waits is rejected.
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

    /// How long a task takes to reach its device, and how long its block takes there. Later blocks are there already.
    pub(crate) fn way_and_cost(&self, task: &Task, rows: usize) -> (Nanos, Nanos) {
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

    /// Puts a request back that was in a task; it keeps its place by deadline.
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

    /// Withdraws a request if it still waits; one that runs does not run again.
    pub(crate) fn cancel(&mut self, slot: RequestSlot, out: &mut Outbox) {
        if !matches!(self.requests.state(slot.0), State::Waiting | State::Overdue) {
            return self.requests.disown(slot.0);
        }
        let id = self.requests.get(slot.0).model;
        self.models.get_mut(id).queue.remove(&mut self.requests, slot.0);
        self.requests.reject(slot.0, Why::Cancelled, out);
        self.mark(id);
    }

    /// A task of this model has started.
    pub(crate) fn note_start(&mut self, id: ModelId, block: BlockId, members: &[RequestSlot]) {
        let rows = self.requests.rows(members);
        self.models.get_mut(id).reach.on_start(block, rows);
    }

    /// A batch of this model has ended on a device.
    pub(crate) fn note_end(&mut self, now: Time, id: ModelId, device: DeviceId) {
        self.ends.remove(device.index());
        self.scarcity.note_activity(now, self.models.get(id).target_cost());
    }

    /// The demand of a model may have changed.
    pub(crate) fn mark(&mut self, id: ModelId) {
        if !std::mem::replace(&mut self.is_changed[id.index()], true) {
            self.changed.push(id);
        }
    }

    /// The demands of all models are to be announced again.
    pub(crate) fn mark_all(&mut self) {
        let known: Vec<ModelId> = self.models.iter().map(|(id, _)| id).collect();
        known.into_iter().for_each(|id| self.mark(id));
    }

    /// The models, and how many batches of each may run at once.
    pub(crate) fn instances(&self) -> impl Iterator<Item = (ModelId, usize)> {
        self.models.iter().map(|(id, served)| (id, served.model.instances))
    }

    /// Marks the models whose time has come. Call before taking [`Queues::next_changed`].
    pub(crate) fn wake(&mut self, now: Time) {
        while let Some((_, model)) = self.wakeups.peek().filter(|&(at, _)| at <= now) {
            self.wakeups.remove(model);
            self.mark(ModelId(model as u16));
        }
    }

    /// A model whose offer may have changed.
    pub(crate) fn next_changed(&mut self) -> Option<ModelId> {
        let id = self.changed.pop()?;
        self.is_changed[id.index()] = false;
        Some(id)
    }

    pub(crate) fn next_wakeup(&self) -> Time {
        self.wakeups.peek().map_or(Time::NEVER, |(at, _)| at)
    }

    /// Drops what cannot stay and says what the model asks for now. `devices` of the cluster are there to share.
    pub(crate) fn candidates(&mut self, now: Time, id: ModelId, devices: usize, out: &mut Outbox) -> Candidates {
        self.shed(now, id, out);
        let terms = self.terms(now, id, devices);
        let queue = self.models.get_mut(id);
        let round_trip = queue.rule.network.round_trip;
        let formed = now + round_trip;
        let candidate = queue.gather(&self.requests, formed, 100);
        let window =
            candidate.map(|candidate| queue.window(&self.requests, formed, candidate, &terms).sooner(round_trip));
        let exec = window.map_or(Time::NEVER, |window| window.exec);
        let mut wakeup = queue.wakeup(&self.requests, window);
        if let (Start::Priced(Price::Measured), Some(window)) = (queue.rule.start, window) {
            // If nothing happens, the price falls by then.
            wakeup = if exec > now { wakeup.min(now + queue.target_cost()) } else { wakeup };
            let urgent = queue.urgent_from(window.latest, &terms);
            wakeup = if urgent > exec && terms.behind > Nanos::ZERO { wakeup.min(urgent) } else { wakeup };
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

    /// The price that candidates of this model are compared by. Published rules have none.
    fn terms(&mut self, now: Time, id: ModelId, devices: usize) -> Terms {
        let queue = self.models.get_mut(id);
        let (cost, rule) = (queue.target_cost(), queue.rule);
        if rule.gather != Gather::Spare && !rule.start.is_priced() {
            return Terms::default();
        }
        self.loads.set(id, queue.load(now));
        self.loads.note_demand(id, queue.demand(now));
        self.loads.note_patience(id, queue.patience());
        // The load of a model without requests falls, and no event tells; so each time one further model is brought up to date.
        let other = self.loads.next();
        if let Some(served) = self.models.find_mut(other) {
            self.loads.set(other, served.load(now));
            self.loads.note_patience(other, served.patience());
        }
        let guard = self.loads.guard(id, devices);
        let ahead = if self.loads.is_light(id) { guard } else { Nanos::ZERO };
        let queue = self.models.get_mut(id);
        let others = self.loads.others(id, devices, 0);
        queue.note_load(self.loads.total, others.room, devices);
        let behind = self.loads.behind(id, devices);
        let (price, spacing) = match rule.start {
            Start::Priced(Price::Measured) => {
                let price = self.scarcity.price(now, cost);
                (price, queue.spacing(devices, price))
            }
            _ => (WHOLE, Nanos::ZERO),
        };
        Terms { price, guard, ahead, behind, spacing, free: self.frees(now, devices) }
    }

    /// When the next device is free, and the one after it; one that is idle is so now. What other shards run is not known here: a device
    /// that they have counts as idle.
    fn frees(&self, now: Time, devices: usize) -> [Time; 2] {
        let first = self.ends.peek().map_or(Time::NEVER, |(end, _)| end.max(now));
        match devices.saturating_sub(self.ends.len()) {
            0 => [first, self.ends.second().map_or(Time::NEVER, |(end, _)| end.max(now))],
            1 => [now, first],
            _ => [now; 2],
        }
    }

    /// Moves hopeless heads out of the queue, and rejects what the drop rule says.
    fn shed(&mut self, now: Time, id: ModelId, out: &mut Outbox) {
        let Queues { requests, models, scarcity, .. } = self;
        let served = models.get_mut(id);
        while let Some(head) = served.hopeless_head(requests, now) {
            let rows = requests.get(head).rows as usize;
            scarcity.observe(rows, true);
            served.lost.observe(rows, true);
            served.own.queue.pass_over(requests, now, head, served.drop, out);
        }
        let Served { own: ModelQueue { queue, profile, lost, .. }, drop, .. } = served;
        if queue.overdue().is_some() {
            let rows = queue.expire(requests, now, *drop, |rows| profile.latency(rows as usize), out);
            lost.observe(rows, true);
        }
    }

    /// Forms the batch of a grant as a task. None if the device is too slow for anything that waits.
    pub(crate) fn form(
        &mut self,
        now: Time,
        grant: &Grant,
        devices: usize,
        tasks: &mut Tasks,
        out: &mut Outbox,
    ) -> Option<TaskId> {
        // The matchmaker forgot the model's candidates when it granted; they are announced again, whatever comes of the grant.
        self.mark(grant.model);
        match grant.class {
            Class::Punctual => self.form_punctual(now, grant, devices, tasks, out),
            Class::Overdue { until } => self.form_overdue(now, until - now, grant, tasks),
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
        let Queues { requests, models, scarcity, loads, .. } = self;
        let served = models.get_mut(grant.model);
        let batch = served.target_cost();
        scarcity.note_activity(now, batch);
        let candidate = served.gather(requests, now, grant.percent)?;
        let others = loads.others(grant.model, devices, grant.idle);
        let rows = served.cut(requests, now, candidate, scarcity.price(now, batch), &others);
        let task = tasks.open(grant.model, BlockId(0), grant.device(), LaneId(0));
        let priced = served.rule.start.is_priced();
        let takes = self.fill(now, (grant.model, candidate.first, rows), task, tasks, out);
        if priced {
            self.ends.set(grant.device().index(), now + takes.scale(u64::from(grant.percent), 100));
        }
        Some(task)
    }

    /// Fills a batch with so many rows of a model, beginning with the request `first`; how long it takes on average.
    pub(super) fn fill(
        &mut self,
        now: Time,
        (model, first, rows): (ModelId, u32, usize),
        task: TaskId,
        tasks: &mut Tasks,
        out: &mut Outbox,
    ) -> Nanos {
        let Queues { requests, models, scarcity, .. } = self;
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

    /// A batch of overdue requests that takes at most `span`.
    fn form_overdue(&mut self, now: Time, span: Nanos, grant: &Grant, tasks: &mut Tasks) -> Option<TaskId> {
        let Queues { requests, models, ends, .. } = self;
        let served = models.get_mut(grant.model);
        let head = requests.get(served.queue.overdue()?);
        // Where hopeless requests are dropped, one that is here was only passed over, and must meet its deadline.
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
            ends.set(grant.device().index(), now + served.reach.latency(rows).scale(u64::from(grant.percent), 100));
        }
        Some(task)
    }
}
