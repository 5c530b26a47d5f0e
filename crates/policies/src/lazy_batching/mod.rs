//! "lazy" and "lazy-oracle": newcomers catch up with a running batch, as long as no SLO is at risk.
//!
//! Source: "LazyBatching: An SLA-aware Batching System for Cloud Machine Learning Inference",
//! section IV.
//!
//! 1. Requests wait in the inference queue of their model (InfQ), in the order of arrival.
//! 2. Each device has a BatchTable: a stack of sub-batches, each at one node (a block). The top one
//!    runs, one node at a time.
//! 3. At a node border newcomers are pushed as a sub-batch of their own if no request in the table,
//!    nor a newcomer, is predicted to miss its deadline: the batch below is preempted, its tensors
//!    stay on the device.
//! 4. When the two topmost sub-batches of a model are at the same node they become one: same layer,
//!    whatever the timestep.
//! 5. The slack of a request is its SLO minus its wait, minus the times of all requests in the
//!    table as though each ran alone (Equation 2). Algorithm 1 sums these times over nodes: static
//!    nodes once, encoder nodes once per element, decoder nodes `dec_timesteps` times. The oracle
//!    uses the cost of the batches that would really run.
//!
//! State: a queue per model, a stack per device, a counter of steps per request. It ignores future
//! arrivals and the state of other devices; each device has its own table, and the first one at a
//! border may admit.
//!
//! Choices where the paper leaves freedom. Newcomers are the longest admissible prefix of one
//! model's queue, and models are tried in the order of their heads' arrival. A table never holds
//! more rows of a model than the largest batch that each of its nodes allows, so that every merge
//! fits. A request without slack by Equation 2 is not preempted. An empty table takes as many
//! requests as fit, late or not (`issue = "all"`). After a refusal the predictor is asked again at
//! the next border, where the paper lets the active batch complete uninterrupted.
//!
//! The times of Equation 2 are those at first issue. In an encoder the sub-batch waits for its
//! longest member; in the last block each member leaves at its own end. Requests that cannot be
//! punctual run unless `drop` is set, as in the paper.
//!
//! Readings of T_wait in Equation 2. With `wait = "issue"`, the default and the letter of the
//! paper, T_wait ends at first issue, so a request may be preempted again and again. With `wait =
//! "arrival"` it goes on.

mod slack;
#[cfg(test)]
mod tests;

use crate::fifo::{Fifo, Tables};
use crate::policy::{Chains, Form, Policy};
use ripieno_base::{DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model, Walk};
use ripieno_sched::Needs;
use ripieno_sched::estimate::cost;
use ripieno_sched::tables::cohorts::{CohortId, Cohorts};
use ripieno_sched::tables::devices::{DeviceState, Devices};
use ripieno_sched::tables::models::{self, BatchOptions, Models, PerModel};
use ripieno_sched::tables::tasks::Tasks;
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{Control, Limits, Outbox, Outcome, Prediction, Request, Scheduler, Setup, TaskDone};
use ripieno_sched::{DROP, MAX_BATCH};
use slack::{Estimator, LazyForecast, Predictor, Waited};

const WALKS: &[Walk] =
    &[Walk::Whole, Walk::Chain, Walk::Repeat, Walk::Stacked, Walk::Bidirectional, Walk::EncodeDecode];

const KNOBS: &[Knob] = &[DEC_TIMESTEPS, WAIT, ISSUE, MAX_BATCH, Knob { default: "never", ..DROP }];

/// The oracle forecasts the end of each request, so that T_wait is not read. It predicts decoder
/// steps as "lazy" does.
const ORACLE_KNOBS: &[Knob] = &[DEC_TIMESTEPS, ISSUE, MAX_BATCH, Knob { default: "never", ..DROP }];

pub(crate) const LAZY: Policy = Policy {
    name: "lazy",
    source: "LazyBatching, section IV",
    summary: "newcomers catch up with a running batch node by node while no SLO is at stake by a conservative estimate",
    walks: WALKS,
    chains: Chains::EqualLengths,
    knobs: KNOBS,
    needs: |_| Needs::ONE_TASK,
    form: Form::OnePiece(build_lazy),
};

pub(crate) const ORACLE: Policy = Policy {
    name: "lazy-oracle",
    source: "LazyBatching, section VI (Oracle)",
    summary: "as \"lazy\", but the prediction uses the exact cost of the batches that would run",
    walks: WALKS,
    chains: Chains::EqualLengths,
    knobs: ORACLE_KNOBS,
    needs: |_| Needs::ONE_TASK,
    form: Form::OnePiece(build_oracle),
};

const DEC_TIMESTEPS: Knob = Knob {
    name: "dec_timesteps",
    default: "the model's length profile; without one, the most that the request allows",
    help: "predicted number of decoder steps: the output length that covers most requests (the paper: 90 %); fewer \
           predict more slack and risk late answers",
};

const WAIT: Knob = Knob {
    name: "wait",
    default: "issue",
    help: "the wait in Equation 2: \"issue\" = until a request first ran, to the letter, so that it may be preempted again \
           and again, \"arrival\" = since it arrived",
};

const ISSUE: Knob = Knob {
    name: "issue",
    default: "all",
    help: "requests that an empty table takes: \"all\" = as many as fit into a batch, \"gated\" = as many as no SLO \
           forbids, at least one",
};

fn build_lazy(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let readings = [("issue", Waited::UntilIssue), ("arrival", Waited::SinceArrival)];
    let waited = knobs.choice(WAIT.name, &readings, Waited::UntilIssue)?;
    build_with(setup, knobs, Estimator::Equation(waited))
}

fn build_oracle(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    build_with(setup, knobs, Estimator::Oracle)
}

fn build_with(setup: &Setup, knobs: &Knobs<'_>, estimator: Estimator) -> Result<Box<dyn Scheduler>, BuildError> {
    let gated = knobs.choice(ISSUE.name, &[("all", false), ("gated", true)], false)?;
    let rules = LazyRules {
        options: BatchOptions::read(setup, knobs, DropRule::Never)?,
        dec_timesteps: PerModel::read(&setup.models, |model| knobs.count(DEC_TIMESTEPS.name, model))?,
        gated,
    };
    Ok(Box::new(LazyBatching::new(setup, estimator, rules)))
}

/// The options.
struct LazyRules {
    options: BatchOptions,
    dec_timesteps: PerModel<Option<usize>>,
    gated: bool,
}

type LazyModel = models::ModelEntry<LazyModelState>;

/// State of a model.
#[derive(Debug)]
struct LazyModelState {
    /// Predicted number of steps of a block that runs until its end.
    dec_timesteps: u32,
}

/// The first issue of a request, and its predicted latency at that time.
#[derive(Clone, Copy, Debug)]
struct Issue {
    at: Time,
    predicted: Nanos,
}

const NOT_ISSUED: Issue = Issue { at: Time::NEVER, predicted: Nanos::ZERO };

/// The BatchTable of a device: a stack of sub-batches, the top one last. Only the top one runs.
#[derive(Debug)]
struct BatchTable {
    stack: Vec<CohortId>,
}

impl BatchTable {
    fn new(limits: &Limits) -> BatchTable {
        // Each sub-batch has a member, and no model has more rows here than one batch.
        BatchTable { stack: Vec::with_capacity(limits.requests.min(limits.models * limits.batch)) }
    }

    /// Returns the rows of a model in the table.
    fn rows(&self, cohorts: &Cohorts<()>, model: ModelId) -> usize {
        let of_model = self.stack.iter().map(|&id| cohorts.get(id)).filter(|cohort| cohort.model == model);
        of_model.map(|cohort| cohort.rows).sum()
    }

    /// Returns whether a node is running.
    fn runs(&self, cohorts: &Cohorts<()>) -> bool {
        self.stack.last().is_some_and(|&top| cohorts.get(top).runs)
    }

    /// Merges the two topmost sub-batches as long as they are at the same node: the same layer, at
    /// any timestep.
    fn settle_top(&mut self, cohorts: &mut Cohorts<()>) {
        let node = |id: CohortId, cohorts: &Cohorts<()>| (cohorts.get(id).model, cohorts.get(id).block);
        while let [.., below, top] = *self.stack
            && node(below, cohorts) == node(top, cohorts)
        {
            cohorts.merge(top, below);
            self.stack.pop();
        }
    }
}

struct LazyBatching {
    rules: LazyRules,
    predictor: Predictor,
    queues: Tables<LazyModelState>,
    cohorts: Cohorts<()>,
    issues: Vec<Issue>,
    tasks: Tasks,
    devices: Devices<BatchTable>,
}

impl LazyBatching {
    fn new(setup: &Setup, estimator: Estimator, rules: LazyRules) -> LazyBatching {
        let limits = &setup.limits;
        let alone = |served: &LazyModel, request: &Request| cost::alone(&served.model, request, served.dec_timesteps);
        let mut lazy = LazyBatching {
            predictor: Predictor::new(estimator, limits),
            queues: Tables::new(limits, rules.options.clone(), alone),
            cohorts: Cohorts::new(limits.requests),
            issues: vec![NOT_ISSUED; limits.requests],
            tasks: Tasks::new(limits),
            devices: Devices::new(limits, setup.devices, || BatchTable::new(limits)),
            rules,
        };
        for (model, id) in setup.models.iter().zip(0..) {
            lazy.load(ModelId(id), model.clone());
        }
        lazy
    }

    fn load(&mut self, id: ModelId, model: Model) {
        let own = self.rules.dec_timesteps.of(&model).map(|steps| u32::try_from(steps).unwrap_or(u32::MAX));
        let dec_timesteps = own.or(model.dec_timesteps).unwrap_or(u32::MAX);
        self.queues.models.load(id, model, |_, _| LazyModelState { dec_timesteps });
        fit_everywhere(self.queues.models.get_mut(id));
    }

    /// Ends a node: its sub-batch advances, or waits for its longest member. Members that rested
    /// during a failed node continue.
    fn end_node(&mut self, device: DeviceId, done: &TaskDone<'_>) {
        let LazyBatching { devices, cohorts, queues: Tables { models, fifo, .. }, tasks, .. } = self;
        let table = &mut devices[device].own;
        let top = *table.stack.last().expect("a node ran");
        cohorts.report(top, tasks.members(done.task), &models.get(cohorts.get(top).model).model, done);
        if !cohorts.advance(top, |slot| fifo.end(slot, done.outcome)) {
            table.stack.pop();
        }
        table.settle_top(cohorts);
    }

    /// Returns the requests of a lost device to their queues.
    fn abandon(&mut self, device: DeviceId) {
        while let Some(id) = self.devices[device].stack.pop() {
            self.cohorts.drain(id, |slot| self.queues.take_back(slot));
        }
    }

    /// Admits newcomers on a device at a node border: of the first admissible model, by the arrival
    /// of its head.
    fn admit(&mut self, now: Time, device: DeviceId) {
        let mut after = None;
        while let Some(key) = self.queues.fifo.next_model(after) {
            if self.has_instance(device, key.1) {
                let count = self.admissible(now, device, key.1);
                if count > 0 {
                    return self.push(now, device, key.1, count);
                }
            }
            after = Some(key);
        }
    }

    /// Returns whether a model may run on a device: it runs there already, or on fewer devices than
    /// its `instances` limit.
    fn has_instance(&self, device: DeviceId, id: ModelId) -> bool {
        let instances = self.queues.models.get(id).model.instances;
        let holds = |device: &DeviceState<BatchTable>| device.rows(&self.cohorts, id) > 0;
        instances == usize::MAX
            || holds(&self.devices[device])
            || self.devices.iter().filter(|(_, device)| holds(device)).count() < instances
    }

    /// Returns the number of first requests of a queue that may join the table.
    fn admissible(&mut self, now: Time, device: DeviceId, id: ModelId) -> usize {
        let LazyBatching { predictor, queues: Tables { models, fifo, .. }, cohorts, issues, devices, rules, .. } = self;
        let device = &devices[device];
        let (empty, held) = (device.stack.is_empty(), device.rows(cohorts, id));
        // A request that is wider than the limit runs alone.
        let alone = fifo.head(id).filter(|_| held == 0).map_or(0, |head| head.rows as usize);
        let (fits, _) = fifo.fitting(id, models.get(id).max_batch.saturating_sub(held).max(alone));
        if empty && !rules.gated {
            return fits;
        }
        let forecast = forecast(now, device, models, fifo, cohorts);
        let admitted = predictor.admits(forecast, issues, id, fifo.waiting(id).take(fits));
        if empty { admitted.max(fits.min(1)) } else { admitted }
    }

    /// Issues the first `count` requests of a queue as a new sub-batch.
    fn push(&mut self, now: Time, device: DeviceId, id: ModelId, count: usize) {
        let LazyBatching { predictor, queues: Tables { models, fifo, .. }, cohorts, issues, devices, .. } = self;
        let device = &mut devices[device];
        let newcomers = cohorts.open(id, ());
        device.stack.push(newcomers);
        for _ in 0..count {
            let slot = fifo.pop(id).expect("enough requests wait");
            issues[slot.index()].at = now;
            cohorts.push(newcomers, fifo.request(slot));
        }
        predictor.note(forecast(now, device, models, fifo, cohorts), issues);
        device.settle_top(cohorts);
    }

    /// Runs the node of the top sub-batch.
    fn run_top(&mut self, now: Time, device: DeviceId, out: &mut Outbox) {
        let LazyBatching { devices, cohorts, tasks, queues: Tables { models, .. }, .. } = self;
        if let Some(&top) = devices[device].stack.last() {
            let unfolds = models.get(cohorts.get(top).model).model.walk.is_unfolded();
            let task = cohorts.run(top, tasks, (device, LaneId(0)), unfolds);
            out.push(tasks.start(task, now));
        }
    }
}

/// Returns the input of a prediction for a device.
fn forecast<'a>(
    now: Time,
    device: &'a DeviceState<BatchTable>,
    models: &'a Models<LazyModelState>,
    fifo: &'a Fifo,
    cohorts: &'a Cohorts<()>,
) -> LazyForecast<'a> {
    let (percent, stack, requests) = (device.percent, &device.own.stack[..], &fifo.requests);
    LazyForecast { now, percent, models, until_end: |own| own.dec_timesteps, requests, cohorts, stack }
}

/// Bounds batches to the smallest limit of a model's nodes, since sub-batches may merge at any of
/// them.
fn fit_everywhere(served: &mut LazyModel) {
    let most = served.model.blocks.iter().map(|block| block.max_batch()).min();
    served.max_batch = served.max_batch.min(most.unwrap_or(usize::MAX));
}

impl Scheduler for LazyBatching {
    fn on_request(&mut self, _now: Time, request: &Request) {
        self.issues[request.slot.index()] = NOT_ISSUED;
        self.queues.accept(request);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let device = self.tasks.get(done.task).device;
        let lost = matches!(done.outcome, Outcome::DeviceLost | Outcome::Cancelled);
        if !lost {
            self.end_node(device, done);
        }
        self.tasks.close(done.task);
        if lost {
            self.abandon(device);
        }
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.devices.join(device),
            Control::DeviceLeft(device) => {
                // Batches that have begun go on there, unless the device is lost.
                if self.devices[device].present {
                    self.devices.leave(device);
                } else if !self.devices[device].runs(&self.cohorts) {
                    self.abandon(device);
                }
            }
            Control::DeviceSlowed { device, percent } => self.devices.slow(device, percent),
            Control::ModelLoaded(id, model) => self.load(id, *model),
            Control::ModelUnloaded(id) => self.queues.retire(id),
            Control::ProfileReplaced { model, block, profile } => {
                fit_everywhere(self.queues.models.replace_profile(model, block, profile));
            }
            Control::Cancelled(slot) => self.queues.fifo.cancel(slot),
            Control::NetworkDelayed(_) | Control::GatherMeasured(..) => {}
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.queues.fifo.drop_late(now);
        self.queues.fifo.flush(out);
        for device in self.devices.ids() {
            if self.devices[device].runs(&self.cohorts) {
                continue;
            }
            if self.devices[device].present {
                self.admit(now, device);
            }
            self.run_top(now, device, out);
        }
    }

    fn next_wakeup(&self) -> Time {
        self.queues.fifo.next_wakeup()
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(task)
    }

    fn nodes(&self, task: TaskId) -> &[u32] {
        self.tasks.nodes(task)
    }

    fn holds(&self, device: DeviceId) -> bool {
        let state = &self.devices[device];
        !state.present && !state.stack.is_empty()
    }

    fn prediction(&self, request: RequestSlot) -> Option<Prediction> {
        let Issue { at, predicted } = self.issues[request.index()];
        (at < Time::NEVER).then_some(Prediction { made: at, remaining: predicted })
    }
}
