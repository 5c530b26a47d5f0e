//! "unified": one scheduler for models of all walks. It checks deadlines itself.
//!
//! # How it decides
//!
//! Each model has a *former*. It offers a free device its next task, and drops requests that no
//! schedule can answer in time. It also knows until when waiting for further requests pays.
//!
//! One *arbiter* chooses among the offers (`arbiter.rs`, `weight.rs`).
//!
//! # Why one task at a time
//!
//! A task is one block or one cell step, and at its end everything is decided anew. So catching up,
//! merging, preemption and turns are all the same decision.
//!
//! # Parts
//!
//! - Waiting requests are in `tables/queue.rs`, or walk in `cells/`.
//! - What all offers of a decision share: `decision.rs`.
//! - Formers: `batches.rs` for whole models and chains (`cut.rs` divides a backlog), `padded.rs`
//!   for requests of different lengths, `cells.rs` for the steps of cells. How long a batch waits:
//!   `waits_until` in `batches.rs`. Newcomers that catch up with a batch: `joining.rs`;
//!   requests that were passed over: `overdue.rs`.
//! - `forecast.rs` refuses newcomers that would be late.
//! - `load.rs` and `model_estimate.rs` hold rates and costs, which are learnt. The expected
//!   duration of a task is the profiled one, corrected by what tasks took
//!   (`estimate/occupancy.rs`).
//!
//! The rule and its measurements: `docs/internals/scheduler.md`.

mod ahead;
mod arbiter;
mod batches;
mod cells;
mod cut;
mod decision;
mod devices;
mod forecast;
mod former;
mod joining;
mod load;
mod model_estimate;
mod options;
mod overdue;
mod padded;
mod reasons;
mod starts;
mod weight;

pub use options::{KNOBS, NEEDS};

use crate::Objective;
use crate::cells::{self as cell_parts, Cells};
use crate::contract::knobs::{BuildError, Knobs};
use crate::contract::needs::OBJECTIVE;
use crate::tables::cohorts::{CohortId, Cohorts};
use crate::tables::devices::Devices;
use crate::tables::models::{BatchOptions, ModelEntry, Models};
use crate::tables::queue::{Queue, QueueOrder};
use crate::tables::requests::{RequestState, Requests};
use crate::tables::tasks::Tasks;
use crate::{Control, NetworkDelay, Outbox, Outcome, Prediction, Request, Scheduler, Setup, TaskDone, Why};
use arbiter::TaskOffer;
use devices::{TaskInFlight, UnifiedDevice};
use former::Former;
use joining::JoinForecast;
use load::LoadEstimate;
use model_estimate::ModelEstimate;
use padded::LengthGroups;
use reasons::GivenReasons;
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Graph, Model};

type UnifiedEntry = ModelEntry<UnifiedModel>;

/// State of a model.
#[derive(Debug)]
pub(super) struct UnifiedModel {
    /// Estimates of the model's load and costs.
    load: ModelEstimate,
    /// Waiting requests.
    queue: Queue,
    /// Number of devices that hold batches of the model.
    devices: usize,
    /// Start of the last batch.
    started: Time,
    /// The latest reasons, each of which is given once.
    given: GivenReasons,
    /// Waiting requests divided by length; `None` unless requests are padded.
    groups: Option<LengthGroups>,
    /// Time that a device needs to gather a batch, beside one that computes.
    gather: NetworkDelay,
}

struct UnifiedScheduler {
    /// The models.
    models: Models<UnifiedModel>,
    /// The live requests of models in batches.
    requests: Requests,
    /// Batches that have begun.
    cohorts: Cohorts<()>,
    /// State of models in cells, and the tasks in flight of all models.
    cells: Cells,
    /// The devices.
    devices: Devices<UnifiedDevice>,
    /// Largest number of tasks that a device holds.
    tasks_a_device: usize,
    /// Time that a batch needs to reach a device.
    network: NetworkDelay,
    /// Forecasts of whether newcomers catch up.
    joining: JoinForecast,
    /// Load of all models together.
    load: LoadEstimate,
    /// Answers since the last settle.
    pending: Outbox,
    /// Time of the next decision without an input.
    wakeup: Time,
    /// The forecasts with which requests were refused, by slot.
    forecasts: Vec<Option<Prediction>>,
    /// Scratch: the offers for a device.
    offers: Vec<TaskOffer>,
    /// Scratch: requests of a lost task.
    returned: Vec<RequestSlot>,
    /// Absent devices on which requests go on.
    draining: Vec<DeviceId>,
}

/// Builds the scheduler for a setup.
pub fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    cell_parts::check(setup)?;
    let options = BatchOptions::read(setup, knobs, DropRule::Hopeless)?;
    let (limits, tasks_a_device) = (&setup.limits, setup.limits.depth.min(2));
    let objectives = [Objective::Latency, Objective::Efficiency].map(|objective| (objective.name(), objective));
    let mut serving = UnifiedScheduler {
        models: Models::new(limits, options.clone()),
        requests: Requests::new(limits.requests),
        cohorts: Cohorts::new(limits.requests),
        cells: Cells::new(limits, setup.devices, options, Tasks::by_device(limits, tasks_a_device), ()),
        devices: Devices::new(limits, setup.devices, || UnifiedDevice::idle(limits)),
        tasks_a_device,
        network: NetworkDelay::read(knobs)?,
        joining: JoinForecast::new(limits),
        load: LoadEstimate::new(knobs.choice(OBJECTIVE, &objectives, Objective::Latency)?),
        pending: Outbox::new(limits),
        wakeup: Time::NEVER,
        forecasts: vec![None; limits.requests],
        offers: Vec::new(),
        returned: Vec::with_capacity(limits.requests),
        draining: Vec::with_capacity(limits.devices),
    };
    for (model, id) in setup.models.iter().zip(0..) {
        serving.load_model(ModelId(id), model.clone());
    }
    Ok(Box::new(serving))
}

impl UnifiedScheduler {
    fn load_model(&mut self, id: ModelId, model: Model) {
        let former = Former::of(&model);
        if former == Former::Cells {
            self.cells.load(id, model.clone(), false);
        }
        self.models.load(id, model, |model, max_batch| UnifiedModel {
            load: ModelEstimate::new(model, max_batch, former),
            queue: Queue::default(),
            devices: 0,
            started: Time::ORIGIN,
            given: GivenReasons::default(),
            groups: (former == Former::Padded).then(LengthGroups::new),
            gather: NetworkDelay::default(),
        });
        // A model offers each of its cell types, or each group of lengths, and overdue requests.
        let most = |(_, served): (ModelId, &UnifiedEntry)| match served.groups {
            Some(_) => padded::MOST_GROUPS + 1,
            None => served.model.blocks.len() + 1,
        };
        let offers = self.models.iter().map(most).sum();
        self.offers.reserve_exact(offers);
    }

    fn refresh(&mut self, now: Time) {
        if !self.load.is_stale(now) {
            return;
        }
        for device in self.devices.ids() {
            self.account(now, device);
        }
        let devices = self.devices.present();
        self.load.refresh(now, &mut self.models, devices);
    }

    /// Accounts for the work that a device's task did since it started, or since the last refresh.
    fn account(&mut self, now: Time, device: DeviceId) {
        let Some(TaskInFlight { model, started, best_part, .. }) = self.devices[device].running else { return };
        let time = now - started.max(self.load.refreshed);
        let needed = best_part.part_of(time);
        self.load.on_work(needed);
        self.models.get_mut(model).own.load.on_work(needed);
    }

    /// Ends the task of a device.
    fn end_task(&mut self, now: Time, device: DeviceId, done: &TaskDone<'_>) {
        self.account(now, device);
        let state = &mut self.devices[device].own;
        let running = state.running.take().expect("the device runs a task");
        assert_eq!(running.task, done.task, "a device ends its tasks in the order of their starts");
        state.running = state.ahead.take().map(|ahead| TaskInFlight { started: now, ..ahead });
        self.begin_ahead(now, device);
        let served = self.models.get_mut(running.model);
        if done.outcome == Outcome::Ok && running.profiled > Nanos::ZERO {
            let measured = self.devices[device].by_profile(now - running.started);
            served.own.load.costs.occupancy.observe(running.profiled, measured);
        }
        match running.cohort {
            None => self.cells.task_done(done),
            Some(cohort) => self.end_block(device, cohort, done),
        }
    }

    /// Ends the block of a cohort, which merges with another one that is before the same block.
    fn end_block(&mut self, device: DeviceId, cohort: CohortId, done: &TaskDone<'_>) {
        let UnifiedScheduler { cohorts, models, requests, pending, devices, returned, .. } = self;
        let (tasks, task) = (&mut self.cells.tasks, done.task);
        let id = cohorts.get(cohort).model;
        let goes_on = match done.outcome {
            Outcome::DeviceLost | Outcome::Cancelled => {
                cohorts.drain(cohort, |slot| returned.push(slot));
                false
            }
            Outcome::Ok | Outcome::Failed => {
                let ended = tasks.members(task).iter().zip(done.ended).filter(|(_, ended)| **ended);
                let left = ended.map(|(slot, _)| requests.get(slot.0).rows as usize).sum();
                let held = cohorts.get(cohort);
                models.get_mut(id).own.load.costs.reach.on_end(held.block, held.rows, left);
                cohorts.report(cohort, tasks.members(task), &models.get(id).model, done);
                cohorts.advance(cohort, |slot| match done.outcome {
                    Outcome::Ok => requests.finish(slot, pending),
                    _ => requests.reject(slot.0, Why::Failed, pending),
                })
            }
        };
        tasks.close(task);
        let mut gone = !goes_on;
        if goes_on && models.get(id).groups.is_none() {
            let block = cohorts.get(cohort).block;
            let meets = |&other: &CohortId| {
                let at = cohorts.get(other);
                other != cohort && (at.model, at.block, at.runs) == (id, block, false)
            };
            if let Some(other) = devices[device].held.iter().copied().find(meets) {
                cohorts.merge(cohort, other);
                gone = true;
            }
        }
        if gone {
            devices[device].held.retain(|&other| other != cohort);
            models.get_mut(id).own.devices -= usize::from(!devices.holds_model(cohorts, device, id));
        }
        self.take_back();
    }

    /// Puts the members of lost batches back into their queues.
    fn take_back(&mut self) {
        while let Some(slot) = self.returned.pop() {
            let model = self.requests.get(slot.0).model;
            let served = self.models.get_mut(model);
            match self.requests.why_over(slot.0, served.retired) {
                Some(why) => self.requests.reject(slot.0, why, &mut self.pending),
                None => served.own.queue.push(&mut self.requests, slot.0, QueueOrder::Deadline),
            }
        }
    }

    /// Returns the requests of a lost device that runs nothing.
    fn release(&mut self, device: DeviceId) {
        let state = &self.devices[device];
        if state.present || state.running.is_some() || self.cells.drains(device) {
            return;
        }
        while let Some(cohort) = self.devices[device].held.pop() {
            let id = self.cohorts.get(cohort).model;
            let left = self.devices.holds_model(&self.cohorts, device, id);
            self.models.get_mut(id).own.devices -= usize::from(!left);
            self.cohorts.drain(cohort, |slot| self.returned.push(slot));
        }
        self.take_back();
    }

    fn cancel(&mut self, slot: RequestSlot) {
        match self.requests.state(slot.0) {
            RequestState::Waiting | RequestState::Overdue => {
                let model = self.requests.get(slot.0).model;
                self.models.get_mut(model).own.queue.remove(&mut self.requests, slot.0);
                self.requests.reject(slot.0, Why::Cancelled, &mut self.pending);
            }
            RequestState::Running | RequestState::Unwanted => self.requests.disown(slot.0),
            // It is in no batch, so it walks through cells.
            RequestState::Free => self.cells.withdraw(slot, Why::Cancelled),
        }
    }
}

impl Scheduler for UnifiedScheduler {
    fn on_graph(&mut self, request: RequestSlot, graph: &Graph) {
        self.cells.insert_graph(request, graph);
    }

    fn on_request(&mut self, now: Time, request: &Request) {
        let served = self.models.of_newcomer(request);
        served.own.load.arrivals.rate.record(now, request.rows);
        served.own.given.forget(request.slot);
        let in_cells = served.load.former == Former::Cells;
        let work = match in_cells {
            true => self.cells.newcomer(request, 1).work,
            false => served.load.in_full_batch(served.model.slo, request.extent.length),
        };
        served.own.load.on_newcomer(work);
        let refused = self.refuses(now, request);
        match (in_cells, refused) {
            (true, true) => return self.cells.refuse(request, Why::Hopeless),
            (true, false) => return self.cells.arrive(request),
            (false, _) => self.requests.insert(request),
        }
        if refused {
            return self.requests.reject(request.slot.0, Why::Hopeless, &mut self.pending);
        }
        let served = self.models.get_mut(request.model);
        served.own.queue.push(&mut self.requests, request.slot.0, QueueOrder::Deadline);
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        let device = self.cells.tasks.get(done.task).device;
        self.end_task(now, device, done);
        self.release(device);
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => {
                self.draining.retain(|&other| other != device);
                self.devices.join(device);
                self.cells.join_device(device);
            }
            Control::DeviceLeft(device) => {
                // The second time, it is lost.
                let drains = self.devices[device].present;
                if drains {
                    self.devices.leave(device);
                    self.draining.push(device);
                }
                self.cells.leave_device(device, drains);
                self.release(device);
            }
            Control::DeviceSlowed { device, percent } => {
                self.devices.slow(device, percent);
            }
            Control::ModelLoaded(id, model) => self.load_model(id, *model),
            Control::ModelUnloaded(id) => {
                let served = self.models.get_mut(id);
                served.retired = true;
                if served.load.former == Former::Cells {
                    self.cells.retire(id);
                } else {
                    served.own.queue.reject_all(&mut self.requests, Why::Unloaded, &mut self.pending);
                }
            }
            Control::ProfileReplaced { model, block, profile } => {
                let served = self.models.replace_profile(model, block, profile.clone());
                let (of_model, max_batch, own) = (&served.model, served.max_batch, &mut served.own);
                own.load.on_new_profile(of_model, max_batch);
                self.devices.forget_profile(model);
                if own.load.former == Former::Cells {
                    self.cells.replace_profile(model, block, profile);
                }
            }
            Control::Cancelled(slot) => self.cancel(slot),
            Control::NetworkDelayed(measured) => self.network = measured,
            Control::GatherMeasured(model, measured) => self.models.get_mut(model).own.gather = measured,
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.refresh(now);
        self.drop_hopeless(now);
        let models = &mut self.models;
        self.cells.drop_late(now, |model| models.get_mut(model).own.load.on_lost(1));
        self.wakeup = Time::NEVER;
        let free = self.devices.free();
        let idle = if free > 0 { self.start_on_free(now, free, out) } else { 0 };
        if !self.draining.is_empty() {
            self.start_on_draining(now, free, out);
        }
        self.start_ahead(now, out);
        if idle < free {
            // A wide request that a batch has left at the head may be hopeless long before others.
            self.drop_hopeless(now);
        }
        self.pending.move_to(out);
        self.cells.flush(out);
    }

    fn next_wakeup(&self) -> Time {
        self.wakeup.min(self.next_drop()).min(self.cells.next_drop())
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.cells.members(task)
    }

    fn nodes(&self, task: TaskId) -> &[u32] {
        self.cells.nodes(task)
    }

    fn holds(&self, device: DeviceId) -> bool {
        self.cells.drains(device) && (self.cells.has_walks(device) || !self.devices[device].held.is_empty())
    }

    fn prediction(&self, request: RequestSlot) -> Option<Prediction> {
        self.forecasts[request.index()]
    }
}
