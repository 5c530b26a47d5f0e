//! "lazy" and "lazy-oracle": newcomers catch up with a running batch, as long as nobody's SLO is at stake.
//!
//! Source: "LazyBatching: An SLA-aware Batching System for Cloud Machine Learning Inference", section IV.
//!
//! 1. Requests wait in the inference queue of their model (InfQ), in the order of arrival.
//! 2. Each device has a BatchTable: a stack of sub-batches, each at one node (a block). The top one runs, one node at a time.
//! 3. At a node border newcomers are pushed as a sub-batch of their own if no request in the table, nor a newcomer, is
//!    predicted to miss its deadline: the batch below is preempted, its tensors stay where they are.
//! 4. When the two topmost sub-batches of a model are at the same node they become one: same layer, whatever the timestep.
//! 5. The slack of a request is its SLO less its wait, less the times of all requests in the table as though each ran alone
//!    (Equation 2), summed over nodes by Algorithm 1: static nodes once, encoder nodes once an element, decoder nodes
//!    `dec_timesteps` times. The oracle reckons with the cost of the batches that would really run.
//!
//! State: a queue a model, a stack a device, a counter of steps a request. It ignores arrivals to come and where devices
//! stand; each has its own table, and whichever has a border first may admit.
//!
//! Choices where the paper leaves freedom. Newcomers are admitted as the longest prefix of one model's queue that passes, the
//! model whose head came first being asked first; a table never holds more rows of a model than the largest batch that each of
//! its nodes allows, so that every merge fits. A request that is late already lets nobody preempt it. An empty table takes as many as fit, late or not
//! (`issue = "all"`). T_wait and the times of Equation 2 are those at first issue (`estimator = "equation"`); `"remaining"`
//! counts what has passed and what is left. In an encoder the sub-batch waits for its longest member; in the last block each
//! leaves at its own end. Requests that cannot be punctual run unless `drop` says otherwise, as in the paper.
//!
//! One addition of ours, `preempt = "gain"`: with slack alone newcomers preempt as long as there is any, also a batch that is
//! almost done, until the slack of all is used up. So they also have to pay: the stack is played to its end with them on
//! top and without, as the oracle does, and they preempt if that brings the sum of all answers forward. `"slack"` is the paper.

mod slack;
mod table;
#[cfg(test)]
mod tests;

use super::{DROP, MAX_BATCH, drop_rule};
use crate::catalogue::{BuildError, Chains, Form, Knob, Knobs, Needs, Policy};
use crate::shard::PerModel;
use crate::{Action, Control, Outbox, Outcome, Prediction, Request, Scheduler, Setup, TaskDone, Why};
use ripieno_base::{BlockId, DeviceId, IndexedHeap, LaneId, Links, List, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model, Walk};
use slack::{Estimator, Predictor, Scene};
use table::{Step, Table};

const WALKS: &[Walk] =
    &[Walk::Whole, Walk::Chain, Walk::Repeat, Walk::Stacked, Walk::Bidirectional, Walk::EncodeDecode];

const KNOBS: &[Knob] = &[DEC_TIMESTEPS, ISSUE, PREEMPT, MAX_BATCH, Knob { default: "never", ..DROP }];

pub(crate) const LAZY: Policy = Policy {
    name: "lazy",
    source: "LazyBatching, section IV",
    summary: "newcomers catch up with a running batch node by node while no SLO is at stake by a conservative estimate",
    walks: WALKS,
    chains: Chains::EqualLengths,
    knobs: &[KNOBS[0], KNOBS[1], KNOBS[2], KNOBS[3], KNOBS[4], ESTIMATOR],
    needs: |_| Needs::ONE_TASK,
    form: Form::OnePiece(build_lazy),
};

pub(crate) const ORACLE: Policy = Policy {
    name: "lazy-oracle",
    source: "LazyBatching, section VI (Oracle)",
    summary: "as \"lazy\", but the prediction uses the exact cost of the batches that would run",
    walks: WALKS,
    chains: Chains::EqualLengths,
    knobs: KNOBS,
    needs: |_| Needs::ONE_TASK,
    form: Form::OnePiece(build_oracle),
};

const DEC_TIMESTEPS: Knob = Knob {
    name: "dec_timesteps",
    default: "the model's length profile; without one, the most that the request allows",
    help: "how many steps a decoder is predicted to take: the output length that covers most requests (the paper: 90 %); \
           less predicts more slack and risks late answers",
};

const ISSUE: Knob = Knob {
    name: "issue",
    default: "all",
    help: "what an empty table takes: \"all\" that fit into a batch, or \"gated\" = only as many as no SLO forbids, at \
           least one",
};

const PREEMPT: Knob = Knob {
    name: "preempt",
    default: "gain",
    help: "when newcomers preempt: \"slack\" = whenever no SLO is at stake (the paper), \"gain\" = only if besides all that \
           are there, newcomers included, are answered sooner on average by the profiled costs of the batches",
};

const ESTIMATOR: Knob = Knob {
    name: "estimator",
    default: "equation",
    help: "how slack is reckoned: \"equation\" = wait until first issue and whole single-input times (Equation 2), \
           \"remaining\" = time passed and times that are left",
};

fn build_lazy(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let choices = [("equation", Estimator::Equation), ("remaining", Estimator::Remaining)];
    let estimator = knobs.choice(ESTIMATOR.name, &choices, Estimator::Equation)?;
    build_with(setup, knobs, estimator)
}

fn build_oracle(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    build_with(setup, knobs, Estimator::Oracle)
}

fn build_with(setup: &Setup, knobs: &Knobs<'_>, estimator: Estimator) -> Result<Box<dyn Scheduler>, BuildError> {
    let gated = knobs.choice(ISSUE.name, &[("all", false), ("gated", true)], false)?;
    let gain = knobs.choice(PREEMPT.name, &[("slack", false), ("gain", true)], true)?;
    let rules = Rules {
        drop: drop_rule(knobs, DropRule::Never)?,
        max_batch: PerModel::read(&setup.models, |model| knobs.count(MAX_BATCH.name, model))?,
        dec_timesteps: PerModel::read(&setup.models, |model| knobs.count(DEC_TIMESTEPS.name, model))?,
        gated,
        gain,
    };
    Ok(Box::new(LazyBatching::new(setup, estimator, rules)))
}

/// What the options say.
struct Rules {
    drop: DropRule,
    max_batch: PerModel<Option<usize>>,
    dec_timesteps: PerModel<Option<usize>>,
    gated: bool,
    gain: bool,
}

/// A model that is served.
#[derive(Debug)]
struct Served {
    model: Model,
    drop: DropRule,
    max_batch: usize,
    dec_timesteps: Option<u32>,
    /// The InfQ.
    waiting: List,
    retired: bool,
    /// Tables that hold some of its requests.
    tables: usize,
}

/// A live request.
#[derive(Clone, Copy, Debug)]
struct Member {
    request: Request,
    /// When it was first issued.
    issued: Time,
    /// How long it was then predicted to take.
    predicted: Nanos,
    /// Steps of the present block that have run.
    step: u32,
    /// Whether the present block is over for it, or it has skipped it.
    rests: bool,
    /// While it rests, the block that it goes on with.
    next: BlockId,
    waits: bool,
}

impl Member {
    fn new(request: Request) -> Member {
        Member {
            request,
            issued: Time::NEVER,
            predicted: Nanos::ZERO,
            step: 0,
            rests: false,
            next: BlockId(0),
            waits: false,
        }
    }
}

struct LazyBatching {
    rules: Rules,
    predictor: Predictor,
    models: Vec<Option<Served>>,
    members: Vec<Member>,
    /// Links of queues and sub-batches.
    links: Links,
    tables: Vec<Table>,
    present: Vec<bool>,
    /// When waiting requests are to be dropped.
    timers: IndexedHeap<Time>,
    /// Answers since the last settle.
    pending: Vec<Action>,
}

impl LazyBatching {
    fn new(setup: &Setup, estimator: Estimator, rules: Rules) -> LazyBatching {
        let limits = &setup.limits;
        let mut lazy = LazyBatching {
            rules,
            predictor: Predictor::new(estimator, limits),
            models: (0..limits.models).map(|_| None).collect(),
            members: vec![Member::new(Request::NONE); limits.requests],
            links: Links::new(limits.requests),
            tables: (0..limits.devices).map(|_| Table::new(limits)).collect(),
            present: (0..limits.devices).map(|device| device < setup.devices).collect(),
            timers: IndexedHeap::new(limits.requests),
            pending: Vec::with_capacity(limits.requests),
        };
        for (model, id) in setup.models.iter().zip(0..) {
            lazy.load(ModelId(id), model.clone());
        }
        lazy
    }

    fn load(&mut self, id: ModelId, model: Model) {
        let own = self.rules.dec_timesteps.of(&model).map(|steps| u32::try_from(steps).unwrap_or(u32::MAX));
        let place = &mut self.models[id.index()];
        assert!(place.as_ref().is_none_or(|served| served.retired), "the id of a loaded model was reused: {id:?}");
        let max_batch = self.rules.max_batch.of(&model).unwrap_or(usize::MAX).min(fitting_everywhere(&model));
        *place = Some(Served {
            drop: model.drop.unwrap_or(self.rules.drop),
            max_batch,
            dec_timesteps: own.or(model.dec_timesteps),
            model,
            waiting: List::default(),
            retired: false,
            tables: 0,
        });
    }

    fn served(&mut self, id: ModelId) -> &mut Served {
        self.models[id.index()].as_mut().expect("the model is loaded")
    }

    /// Puts a request into its queue, by arrival; one that was lost on a device stands before those that came later.
    fn enqueue(&mut self, slot: RequestSlot) {
        let request = self.members[slot.index()].request;
        let served = self.models[request.model.index()].as_mut().expect("the model is loaded");
        let member = &mut self.members[slot.index()];
        (member.step, member.rests, member.waits) = (0, false, true);
        let mut before = served.waiting.back();
        while before.is_some_and(|other| self.members[other as usize].request.arrived > request.arrived) {
            before = before.and_then(|other| self.links.prev(other));
        }
        served.waiting.insert_after(&mut self.links, before, slot.0);
        let at = match served.drop {
            DropRule::Never => return,
            DropRule::Expired => request.deadline,
            DropRule::Hopeless => (request.deadline - slack::single(served, &request)).next(),
        };
        self.timers.set(slot.index(), at);
    }

    /// Takes a waiting request out of its queue.
    fn dequeue(&mut self, slot: RequestSlot) {
        let member = &mut self.members[slot.index()];
        member.waits = false;
        let served = self.models[member.request.model.index()].as_mut().expect("the model is loaded");
        served.waiting.remove(&mut self.links, slot.0);
        self.timers.remove(slot.index());
    }

    fn reject(&mut self, slot: RequestSlot, why: Why) {
        self.pending.push(Action::Reject { request: slot, why });
    }

    fn drop_late(&mut self, now: Time) {
        while let Some((_, slot)) = self.timers.peek().filter(|&(at, _)| at <= now) {
            let slot = RequestSlot(slot as u32);
            self.dequeue(slot);
            let expired = self.members[slot.index()].request.deadline <= now;
            self.reject(slot, if expired { Why::Expired } else { Why::Hopeless });
        }
    }

    /// What a task did: each member takes its step; then the sub-batch moves on, or waits for its longest member.
    fn finish_node(&mut self, device: usize, done: &TaskDone<'_>) {
        let LazyBatching { tables, members, models, links, pending, .. } = self;
        let table = &mut tables[device];
        let model = table.top().model;
        let served = models[model.index()].as_mut().expect("a model stays while its requests live");
        table.end_node(&served.model, members, links, done, |slot| {
            pending.push(Action::Finish { request: slot });
        });
        table.settle_top(links, members);
        if !table.holds(model) {
            served.tables -= 1;
        }
    }

    /// Rejects the members of the task; those who rested in the sub-batch go on.
    fn fail_node(&mut self, device: usize) {
        let LazyBatching { tables, models, links, members, pending, .. } = self;
        let table = &mut tables[device];
        let model = table.top().model;
        table.drop_running(links, members, |slot| pending.push(Action::Reject { request: slot, why: Why::Failed }));
        table.move_on(members, links);
        table.settle_top(links, members);
        let served = models[model.index()].as_mut().expect("a model stays while its requests live");
        if !table.holds(model) {
            served.tables -= 1;
        }
    }

    /// The device has gone with all that it held: its requests start over elsewhere.
    fn abandon(&mut self, device: usize) {
        while let Some(slot) = self.tables[device].pop_member(&mut self.links, &self.members) {
            let model = self.members[slot.index()].request.model;
            let gone = !self.tables[device].holds(model);
            let served = self.served(model);
            served.tables -= usize::from(gone);
            if served.retired {
                self.reject(slot, Why::Unloaded);
            } else {
                self.enqueue(slot);
            }
        }
    }

    /// Admits newcomers on a device at a node border: of the first model, by the arrival of its head, that may.
    fn admit(&mut self, now: Time, device: usize) {
        let empty = self.tables[device].is_empty();
        let mut after = None;
        while let Some((key, id)) = self.next_queue(device, after) {
            let count = self.admissible(now, device, id, empty);
            if count > 0 {
                return self.push(now, device, id, count);
            }
            after = Some((key, id));
        }
    }

    /// The model with the earliest head after that of `after`, among those that may run on the device.
    fn next_queue(&self, device: usize, after: Option<(Time, ModelId)>) -> Option<(Time, ModelId)> {
        let queues = self.models.iter().zip(0..).filter_map(|(served, id)| {
            let (served, id) = (served.as_ref()?, ModelId(id));
            let room = served.tables < served.model.instances || self.tables[device].holds(id);
            let head = served.waiting.front().filter(|_| room)?;
            Some((self.members[head as usize].request.arrived, id))
        });
        queues.filter(|&key| after.is_none_or(|after| key > after)).min()
    }

    /// How many of the first requests of a queue may join the table.
    fn admissible(&mut self, now: Time, device: usize, id: ModelId, empty: bool) -> usize {
        let fits = self.fitting(device, id);
        if empty && !self.rules.gated {
            return fits;
        }
        let LazyBatching { predictor, models, members, links, tables, rules, .. } = self;
        let scene = Scene { now, table: &tables[device], models, members, links };
        let admitted = predictor.admits(scene, id, fits);
        if empty {
            return admitted.max(fits.min(1));
        }
        let pays = admitted > 0 && (!rules.gain || predictor.gains(scene, id, admitted));
        if pays { admitted } else { 0 }
    }

    /// How many of the first requests of a queue fit beside the rows of this model in the table.
    fn fitting(&self, device: usize, id: ModelId) -> usize {
        let served = self.models[id.index()].as_ref().expect("the model is loaded");
        let held = self.tables[device].rows(id);
        let (mut rows, mut count) = (held, 0);
        let mut next = served.waiting.front();
        while let Some(slot) = next {
            rows += self.members[slot as usize].request.rows as usize;
            // A request that is wider than the limit runs alone.
            if rows > served.max_batch && !(held == 0 && count == 0) {
                break;
            }
            count += 1;
            next = self.links.next(slot);
        }
        count
    }

    /// Issues the first `count` requests of a queue as a new sub-batch.
    fn push(&mut self, now: Time, device: usize, id: ModelId, count: usize) {
        let newly = !self.tables[device].holds(id);
        self.served(id).tables += usize::from(newly);
        self.tables[device].open(id);
        for _ in 0..count {
            let slot = RequestSlot(self.served(id).waiting.front().expect("so many wait"));
            self.dequeue(slot);
            self.members[slot.index()].issued = now;
            self.tables[device].add(&mut self.links, &self.members, slot);
        }
        let LazyBatching { predictor, models, members, links, tables, .. } = self;
        predictor.note(now, &tables[device], models, members, links);
        self.tables[device].settle_top(&mut self.links, &self.members);
    }

    /// Runs the node of the top sub-batch.
    fn run_top(&mut self, now: Time, device: usize, out: &mut Outbox) {
        let LazyBatching { tables, members, links, models, .. } = self;
        let table = &mut tables[device];
        if table.is_empty() {
            return;
        }
        let top = table.top();
        let served = models[top.model.index()].as_ref().expect("a model stays while its requests live");
        let unfolds = served.model.walk.is_unfolded();
        table.run(links, members, unfolds);
        out.push(Action::Start {
            task: TaskId(device as u32),
            model: top.model,
            block: top.block,
            device: DeviceId(device as u16),
            lane: LaneId(0),
            not_before: now,
        });
    }
}

/// The most rows that every node of a model takes at once: who is in a table may meet at any of them.
fn fitting_everywhere(model: &Model) -> usize {
    model.blocks.iter().map(|block| block.max_batch()).fold(model.max_batch, usize::min)
}

impl Scheduler for LazyBatching {
    fn on_request(&mut self, _now: Time, request: &Request) {
        self.members[request.slot.index()] = Member::new(*request);
        self.enqueue(request.slot);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let device = done.task.index();
        match done.outcome {
            Outcome::Ok => self.finish_node(device, done),
            Outcome::Failed => self.fail_node(device),
            Outcome::DeviceLost | Outcome::Cancelled => {
                self.tables[device].step = Step::Idle;
                self.abandon(device);
            }
        }
        if !self.present[device] {
            self.abandon(device);
        }
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.present[device.index()] = true,
            Control::DeviceLeft(device) => {
                self.present[device.index()] = false;
                if self.tables[device.index()].step == Step::Idle {
                    self.abandon(device.index());
                }
            }
            // The prediction is the profile's.
            Control::DeviceSlowed { .. } => {}
            Control::ModelLoaded(id, model) => self.load(id, *model),
            Control::ModelUnloaded(id) => {
                self.served(id).retired = true;
                while let Some(slot) = self.served(id).waiting.front().map(RequestSlot) {
                    self.dequeue(slot);
                    self.reject(slot, Why::Unloaded);
                }
            }
            Control::ProfileReplaced { model, block, profile } => {
                let served = self.served(model);
                served.model.blocks[block.index()].replace_profile(profile);
                served.max_batch = served.max_batch.min(fitting_everywhere(&served.model));
            }
            Control::Cancelled(slot) => {
                if self.members[slot.index()].waits {
                    self.dequeue(slot);
                    self.reject(slot, Why::Cancelled);
                }
            }
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.drop_late(now);
        self.pending.drain(..).for_each(|action| out.push(action));
        for device in 0..self.tables.len() {
            if self.present[device] && self.tables[device].step == Step::Idle {
                self.admit(now, device);
                self.run_top(now, device, out);
            }
        }
    }

    fn next_wakeup(&self) -> Time {
        self.timers.peek().map_or(Time::NEVER, |(at, _)| at)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tables[task.index()].running()
    }

    fn nodes(&self, task: TaskId) -> &[u32] {
        self.tables[task.index()].nodes()
    }

    fn prediction(&self, request: RequestSlot) -> Option<Prediction> {
        let Member { issued, predicted, .. } = self.members[request.index()];
        (issued < Time::NEVER).then_some(Prediction { made: issued, remaining: predicted })
    }
}
