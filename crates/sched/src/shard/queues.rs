//! The queues of a group of models: drops and batch building.

use super::scarcity::{Scarcity, Terms, WHOLE};
use super::{Class, Grant, ModelQueue, Price, Rule, Start, Wish};
use crate::parts::requests::{Requests, State};
use crate::parts::tasks::{Task, Tasks};
use crate::{Action, Limits, Outbox, Request, Why};
use ripieno_base::{BlockId, IndexedHeap, Links, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model, Profile};

/// What the models keep busy, as far as it is known.
#[derive(Debug)]
struct Loads {
    /// By model, thousandths of a device that its load needs in batches of its target size, and how long such a batch takes.
    loads: Vec<(u64, Nanos)>,
    /// The sum of the loads, and of each load times its batch, in microseconds.
    total: u64,
    weighted: u64,
    /// Whose load is looked at next.
    turn: usize,
}

impl Loads {
    fn new(models: usize) -> Loads {
        Loads { loads: vec![(0, Nanos::ZERO); models], total: 0, weighted: 0, turn: 0 }
    }

    fn set(&mut self, id: ModelId, load: (u64, Nanos)) {
        let weight = |(load, batch): (u64, Nanos)| load * (batch.0 / 1_000) as u64;
        let old = std::mem::replace(&mut self.loads[id.index()], load);
        self.total = self.total - old.0 + load.0;
        self.weighted = self.weighted - weight(old) + weight(load);
    }

    fn next(&mut self) -> ModelId {
        self.turn = (self.turn + 1) % self.loads.len();
        ModelId(self.turn as u16)
    }

    /// Twice the time in which a device falls free, of the devices that run batches of other models.
    fn guard(&self, id: ModelId, devices: usize) -> Nanos {
        let (load, batch) = self.loads[id.index()];
        let others = self.weighted - load * (batch.0 / 1_000) as u64;
        Nanos::from_micros((2 * others / self.total.max(1)) as i64 / devices.max(1) as i64)
    }
}

/// The queues of a group of models.
#[derive(Debug)]
pub(crate) struct Queues {
    requests: Requests,
    links: Links,
    queues: Vec<Option<ModelQueue>>,
    /// When each model must be looked at again.
    wakeups: IndexedHeap<Time>,
    /// Models whose offer may have changed.
    changed: Vec<ModelId>,
    is_changed: Vec<bool>,
    loads: Loads,
    scarcity: Scarcity,
}

impl Queues {
    pub(crate) fn new(limits: &Limits) -> Queues {
        Queues {
            requests: Requests::new(limits.requests),
            links: Links::new(limits.requests),
            queues: (0..limits.models).map(|_| None).collect(),
            wakeups: IndexedHeap::new(limits.models),
            changed: Vec::with_capacity(limits.models),
            is_changed: vec![false; limits.models],
            loads: Loads::new(limits.models),
            scarcity: Scarcity::default(),
        }
    }

    pub(crate) fn load_model(&mut self, id: ModelId, model: Model, rule: Rule) {
        let queue = &mut self.queues[id.index()];
        assert!(queue.as_ref().is_none_or(|queue| queue.retired), "the driver reused the id of a loaded model: {id:?}");
        assert!(model.profile().max_batch() >= model.max_batch, "the profile ends before max_batch: {model:?}");
        *queue = Some(ModelQueue::new(model, rule));
    }

    /// Takes a model out of service: what waits is rejected.
    pub(crate) fn retire_model(&mut self, id: ModelId, out: &mut Outbox) {
        let queue = self.queues[id.index()].as_mut().expect("the model is loaded");
        queue.retired = true;
        while let Some(slot) = queue.waiting.front() {
            queue.remove(&mut self.links, &self.requests, slot);
            reject(&mut self.requests, out, slot, Why::Unloaded);
        }
        while let Some(slot) = queue.overdue.pop_front(&mut self.links) {
            reject(&mut self.requests, out, slot, Why::Unloaded);
        }
        self.mark(id);
    }

    pub(crate) fn replace_profile(&mut self, now: Time, id: ModelId, block: usize, profile: Profile) {
        let queue = self.queues[id.index()].as_mut().expect("the model is loaded");
        queue.model.blocks[block].replace_profile(profile);
        queue.refresh_profile(now);
        self.mark(id);
    }

    pub(crate) fn model(&self, id: ModelId) -> &Model {
        &self.queues[id.index()].as_ref().expect("the model is loaded").model
    }

    /// Rows of these requests together.
    pub(crate) fn rows(&self, members: &[RequestSlot]) -> usize {
        members.iter().map(|slot| self.requests.get(slot.0).rows as usize).sum()
    }

    /// How long a task takes to reach its device, and how long its block takes there. Later blocks are there already.
    pub(crate) fn way_and_cost(&self, task: &Task, rows: usize) -> (Nanos, Nanos) {
        let queue = self.queues[task.model.index()].as_ref().expect("the model is loaded");
        let lead = if task.block == BlockId(0) { queue.rule.network.lead(rows) } else { Nanos::ZERO };
        (lead, queue.model.blocks[task.block.index()].profile.latency(rows))
    }

    pub(crate) fn enqueue(&mut self, now: Time, request: &Request) {
        let queue = self.queues[request.model.index()].as_mut().filter(|queue| !queue.retired);
        let queue = queue.expect("the driver sends requests of loaded models only");
        let rows = request.rows as usize;
        assert!(rows >= 1 && rows <= queue.model.max_batch, "the driver splits large requests: {request:?}");
        self.requests.insert(request, State::Waiting);
        queue.record(now, request.rows);
        queue.push(&mut self.links, &self.requests, request.slot.0);
        self.mark(request.model);
    }

    /// Puts a request back that was in a task; it keeps its place by deadline.
    pub(crate) fn requeue(&mut self, slot: RequestSlot, out: &mut Outbox) {
        let id = self.requests.get(slot.0).model;
        let queue = self.queues[id.index()].as_mut().expect("the model is loaded");
        if queue.retired {
            return reject(&mut self.requests, out, slot.0, Why::Unloaded);
        }
        self.requests.set_state(slot, State::Waiting);
        queue.push(&mut self.links, &self.requests, slot.0);
        self.mark(id);
    }

    /// Withdraws a request if it still waits.
    pub(crate) fn cancel(&mut self, slot: RequestSlot, out: &mut Outbox) {
        let id = self.requests.get(slot.0).model;
        let queue = self.queues[id.index()].as_mut().expect("the model is loaded");
        match self.requests.state(slot) {
            State::Waiting => queue.remove(&mut self.links, &self.requests, slot.0),
            State::Overdue => queue.overdue.remove(&mut self.links, slot.0),
            State::Running | State::Free => return,
        }
        reject(&mut self.requests, out, slot.0, Why::Cancelled);
        self.mark(id);
    }

    /// A batch of this model has ended.
    pub(crate) fn note_end(&mut self, now: Time, id: ModelId) {
        let queue = self.queues[id.index()].as_ref().expect("the model is loaded");
        self.scarcity.stir(now, queue.target_cost());
    }

    /// Ends a request whose walk is complete.
    pub(crate) fn finish(&mut self, slot: RequestSlot, out: &mut Outbox) {
        self.requests.set_state(slot, State::Free);
        out.push(Action::Finish { request: slot });
    }

    /// Ends a running request without an answer.
    pub(crate) fn fail(&mut self, slot: RequestSlot, out: &mut Outbox) {
        reject(&mut self.requests, out, slot.0, Why::Failed);
    }

    fn mark(&mut self, id: ModelId) {
        if !std::mem::replace(&mut self.is_changed[id.index()], true) {
            self.changed.push(id);
        }
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
    pub(crate) fn wish(&mut self, now: Time, id: ModelId, devices: usize, out: &mut Outbox) -> Wish {
        self.shed(now, id, out);
        let terms = self.terms(now, id, devices);
        let queue = self.queues[id.index()].as_mut().expect("the model is loaded");
        let round_trip = queue.rule.network.round_trip;
        let formed = now + round_trip;
        let candidate = queue.gather(&self.links, &self.requests, formed, 100, terms.to_skip);
        let window =
            candidate.map(|candidate| queue.window(&self.requests, formed, candidate, &terms).sooner(round_trip));
        let exec = window.map_or(Time::NEVER, |window| window.exec);
        queue.asked = if exec > now { exec } else { queue.asked.min(now) };
        let mut wakeup = queue.wakeup(&self.requests, window);
        if queue.rule.start == Start::Priced(Price::Measured) && exec > now && exec != Time::NEVER {
            // In silence the price falls by then.
            wakeup = wakeup.min(now + queue.target_cost());
        }
        match wakeup {
            Time::NEVER => self.wakeups.remove(id.index()),
            at => self.wakeups.set(id.index(), at),
        }
        let overdue_since = queue.overdue.front().map(|slot| self.requests.get(slot).arrived);
        Wish { punctual: window, overdue_since }
    }

    /// What a candidate of this model is weighed by.
    fn terms(&mut self, now: Time, id: ModelId, devices: usize) -> Terms {
        let queue = self.queues[id.index()].as_mut().expect("the model is loaded");
        let cost = queue.target_cost();
        let Start::Priced(price) = queue.rule.start else {
            return Terms { to_skip: self.scarcity.price_of_skip(now, cost), ..Terms::default() };
        };
        self.loads.set(id, queue.load(now));
        // Loads fall while nobody asks for their model, so each time another one is looked at, too.
        let other = self.loads.next();
        if let Some(queue) = &mut self.queues[other.index()] {
            self.loads.set(other, queue.load(now));
        }
        let to_start = match price {
            Price::Full => WHOLE,
            Price::Measured => self.scarcity.price_of_start(now, cost, self.loads.total, devices),
        };
        Terms { to_start, to_skip: self.scarcity.price_of_skip(now, cost), guard: self.loads.guard(id, devices) }
    }

    /// Moves hopeless heads out of the queue, and rejects what the drop rule says.
    fn shed(&mut self, now: Time, id: ModelId, out: &mut Outbox) {
        let queue = self.queues[id.index()].as_mut().expect("the model is loaded");
        while let Some(head) = queue.hopeless_head(&self.requests, now) {
            queue.remove(&mut self.links, &self.requests, head);
            self.scarcity.observe(self.requests.get(head).rows as usize, true);
            pass_over(queue, &mut self.links, &mut self.requests, now, head, out);
        }
        while let Some(slot) = queue.overdue.front() {
            if queue.rule.drop != DropRule::Expired || self.requests.get(slot).deadline > now {
                break;
            }
            queue.overdue.remove(&mut self.links, slot);
            reject(&mut self.requests, out, slot, Why::Expired);
        }
    }

    /// Forms the batch of a grant as a task. None if the device is too slow for anything that waits.
    pub(crate) fn form(&mut self, now: Time, grant: &Grant, tasks: &mut Tasks, out: &mut Outbox) -> Option<TaskId> {
        // The model asks anew whatever comes of this: the matchmaker forgot its wish with the grant.
        self.mark(grant.model);
        match grant.class {
            Class::Punctual => self.form_punctual(now, grant, tasks, out),
            Class::Overdue { until } => self.form_overdue(until - now, grant, tasks),
        }
    }

    fn form_punctual(&mut self, now: Time, grant: &Grant, tasks: &mut Tasks, out: &mut Outbox) -> Option<TaskId> {
        let Queues { requests, links, queues, scarcity, .. } = self;
        let queue = queues[grant.model.index()].as_mut().expect("the model is loaded");
        let batch = queue.target_cost();
        scarcity.stir(now, batch);
        let price = scarcity.price_of_skip(now, batch);
        let candidate = queue.gather(links, requests, now, grant.percent, price)?;
        let late = queue.is_late(requests, now);
        scarcity.observe(candidate.rows, late);
        queue.asked = Time::NEVER;
        while let Some(head) = queue.waiting.front().filter(|&head| head != candidate.first) {
            queue.remove(links, requests, head);
            pass_over(queue, links, requests, now, head, out);
        }
        let task = tasks.open(grant.model, grant.device());
        let mut rows = 0;
        while rows < candidate.rows {
            let slot = queue.waiting.front().expect("the candidate was gathered from this queue");
            queue.remove(links, requests, slot);
            rows += run(requests, tasks, task, slot);
        }
        Some(task)
    }

    /// A batch of overdue requests that takes at most `span`.
    fn form_overdue(&mut self, span: Nanos, grant: &Grant, tasks: &mut Tasks) -> Option<TaskId> {
        let Queues { requests, links, queues, .. } = self;
        let queue = queues[grant.model.index()].as_mut().expect("the model is loaded");
        let room = queue.largest_within(span.scale(100, u64::from(grant.percent)));
        let first = requests.get(queue.overdue.front()?).rows as usize;
        if first > room {
            return None;
        }
        let limit = room.min(queue.rule.max_batch.max(first));
        let task = tasks.open(grant.model, grant.device());
        let mut rows = 0;
        while let Some(slot) = queue.overdue.front() {
            if rows + requests.get(slot).rows as usize > limit {
                break;
            }
            queue.overdue.remove(links, slot);
            rows += run(requests, tasks, task, slot);
        }
        Some(task)
    }
}

/// Moves a request into a task; returns its rows.
fn run(requests: &mut Requests, tasks: &mut Tasks, task: TaskId, slot: u32) -> usize {
    requests.set_state(RequestSlot(slot), State::Running);
    tasks.push(task, RequestSlot(slot));
    requests.get(slot).rows as usize
}

/// What becomes of a request, taken out of the queue, that will not be punctual.
fn pass_over(
    queue: &mut ModelQueue,
    links: &mut Links,
    requests: &mut Requests,
    now: Time,
    slot: u32,
    out: &mut Outbox,
) {
    let expired = requests.get(slot).deadline <= now;
    match queue.rule.drop {
        DropRule::Hopeless | DropRule::Expired if expired => reject(requests, out, slot, Why::Expired),
        DropRule::Hopeless => reject(requests, out, slot, Why::Hopeless),
        DropRule::Expired | DropRule::Never => {
            requests.set_state(RequestSlot(slot), State::Overdue);
            queue.overdue.push_back(links, slot);
        }
    }
}

fn reject(requests: &mut Requests, out: &mut Outbox, slot: u32, why: Why) {
    requests.set_state(RequestSlot(slot), State::Free);
    out.push(Action::Reject { request: RequestSlot(slot), why });
}
