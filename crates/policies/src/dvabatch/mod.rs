//! "dva": batches that newcomers join, that are split, and that run in parallel, as the model's
//! profiles suggest.
//!
//! Source: "DVABatch: Diversity-aware Multi-Entry Multi-Exit Batching for Efficient Processing of
//! DNN Services on GPUs", sections 5 to 7.
//!
//! 1. *new*: waiting requests of a model become a batch when a lane of a device is free, and the
//!    batch runs stage by stage on this lane. With `executors = "stage"` they become a batch when
//!    the executor of the first stage is free, and the batch passes through the executors of the
//!    other stages.
//! 2. Policy I, for models whose cost depends on the length of requests: waiting requests are
//!    divided into a few groups by length, with the least padding, and the groups run in parallel,
//!    or the shortest first.
//! 3. Policy II, where stages prefer different batch sizes: before a stage, a batch is split in
//!    halves, recursively, if the remaining stages take a batch at least twice as long as a half.
//!    The parts run one after the other to the end.
//! 4. Policy III: newcomers join the latest batch at a border between stages, unless it is about to
//!    be split or began longer ago than a fixed time: it waits until they have caught up, and they
//!    are one batch from there on.
//! 5. A batch starts beside others only if their profiled shares fit on the device. It does not
//!    start in parts if these would not keep up with arrivals, or have exceeded their forecast. Nor
//!    does it if the total wait, of expected arrivals too, would be smaller if all began together
//!    once the device is free.
//!
//! A request waits until its batch begins: in a formed batch it can still be cancelled, dropped or
//! unloaded.
//!
//! State: a queue per model; the batch table, which is [`Cohorts`]; stage executors and the order
//! of batches per model and device. It ignores deadlines except for `drop`, and future arrivals
//! except for their rate in rule 5.
//!
//! Choices where the paper leaves freedom. The fixed time of rule 4 is half of what a batch of 8
//! takes. The number of groups: for each number the division with the least padding is found, and
//! of these the one with the least total wait by the profiles is taken. So requests that use a part
//! of the device together are not separated, and where batching gains nothing, nearly each length
//! runs by itself. If more requests wait than one batch holds, the oldest are grouped. There is no
//! window, since a batch starts as soon as it fits beside the running ones; the paper's is `window
//! = "first-stage"`. Members of a batch that skip a stage continue as a batch of their own. A
//! model's rows on a device are at most its largest batch. No request overtakes the oldest one
//! because it happens to fit beside running ones. Requests that cannot be punctual run unless
//! `drop` is set.

mod clusters;
mod devices;
mod forming;
mod options;
mod pipeline;
mod rules;
mod stage_executors;
#[cfg(test)]
mod tests;

pub(crate) use options::POLICY;

use crate::fifo::Tables;
use clusters::Clusters;
use devices::{DeviceLanes, Lane, LaneDevice};
use options::DvaOptions;
use pipeline::{Pipeline, PipelineBatch, PipelineContext};
use ripieno_base::{DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::Model;
use ripieno_sched::estimate::rate::RateMeter;
use ripieno_sched::tables::cohorts::{Cohort, Cohorts};
use ripieno_sched::tables::devices::Devices;
use ripieno_sched::tables::models;
use ripieno_sched::tables::tasks::{Task, Tasks};
use ripieno_sched::{Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use rules::{Executors, SplitPlan};

type DvaModel = models::ModelEntry<DvaModelState>;

/// State of a model.
#[derive(Debug)]
struct DvaModelState {
    plan: SplitPlan,
    /// Arrival of the last request covered by the latest forecast of parts, and the time by which
    /// all of them should have begun.
    forecast_of_parts: Option<(Time, Time)>,
    /// Arrival rate.
    meter: RateMeter,
    /// Pipelines by device.
    pipelines: Vec<Pipeline>,
}

struct DvaBatch {
    options: DvaOptions,
    queues: Tables<DvaModelState>,
    /// The batch table, of all models and devices.
    cohorts: Cohorts<PipelineBatch>,
    tasks: Tasks,
    devices: Devices<LaneDevice>,
    clusters: Clusters,
    /// Requests that a device has lost.
    lost: Vec<RequestSlot>,
    /// End of the next window after which a batch could start.
    window_ends: Time,
}

impl DvaBatch {
    fn new(setup: &Setup, options: DvaOptions) -> DvaBatch {
        let limits = &setup.limits;
        let device = || LaneDevice { lost: false, lanes: vec![Lane::default(); options.lanes] };
        let alone = |served: &DvaModel, request: &Request| served.plan.alone(&served.model, request);
        let mut dva = DvaBatch {
            queues: Tables::new(limits, options.batches.clone(), alone),
            cohorts: Cohorts::new(limits.requests),
            tasks: Tasks::new(limits),
            devices: Devices::new(limits, setup.devices, device),
            clusters: Clusters::new(limits.batch, options.terms.groups),
            lost: Vec::with_capacity(limits.requests),
            window_ends: Time::NEVER,
            options,
        };
        for (model, id) in setup.models.iter().zip(0..) {
            dva.load(ModelId(id), model.clone());
        }
        dva
    }

    fn load(&mut self, id: ModelId, model: Model) {
        let DvaBatch { options, devices, queues, .. } = self;
        queues.models.load(id, model, |model, max_batch| {
            let queries = model.max_batch.min(usize::from(u16::MAX) - 1);
            let pipeline = |_| Pipeline::new(model.blocks.len(), options.executors, queries);
            let plan = SplitPlan::new(model, max_batch, &options.terms(model));
            DvaModelState {
                plan,
                forecast_of_parts: None,
                meter: RateMeter::new(),
                pipelines: devices.ids().map(pipeline).collect(),
            }
        });
    }

    fn served(&self, id: ModelId) -> &DvaModel {
        self.queues.models.get(id)
    }

    /// Rejects a waiting request, in its queue or in a batch that has not begun; returns false if
    /// it does not wait.
    fn withdraw(&mut self, slot: RequestSlot, why: Why) -> bool {
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } =
            models.get_mut(fifo.request(slot).model);
        let mut context = PipelineContext { cohorts, fifo, model, plan };
        let waited =
            context.fifo.take(slot) || pipelines.iter_mut().any(|pipeline| pipeline.withdraw(&mut context, slot));
        if waited {
            fifo.reject(slot, why);
        }
        waited
    }

    /// Returns a request of a model that waits in a batch that has not begun.
    fn formed(&self, id: ModelId) -> Option<RequestSlot> {
        let in_batch = |pipeline: &Pipeline| self.cohorts.members(pipeline.formed(&self.cohorts)?).next();
        self.served(id).pipelines.iter().find_map(in_batch)
    }

    /// Returns the requests of a device that has lost its tasks or leaves to their queues.
    fn abandon(&mut self, device: DeviceId) {
        let DvaBatch { queues, cohorts, devices, lost, .. } = self;
        devices[device].lost = false;
        devices[device].lanes.iter_mut().for_each(|lane| (lane.owner, lane.run) = (None, None));
        for (_, served) in queues.models.iter_mut() {
            served.pipelines[device.index()].clear(cohorts, lost);
        }
        lost.drain(..).for_each(|slot| queues.take_back(slot));
    }

    /// Ends a stage of a lane's batch.
    fn finish_stage(&mut self, Task { device, lane: on, .. }: Task, done: &TaskDone<'_>) {
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, devices, tasks, .. } = self;
        let lane = &mut devices[device].lanes[on.index()];
        let run = lane.run.take().expect("the driver reports tasks that were started");
        let owner = lane.owner.expect("a lane that runs has an owner");
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get_mut(owner);
        let pipeline = &mut pipelines[device.index()];
        pipeline.end(&mut PipelineContext { cohorts, fifo, model, plan }, run, tasks.members(done.task), done);
        if !pipeline.uses(cohorts, on) {
            lane.owner = None;
        }
    }

    /// Forms and starts batches on idle devices, then continues running ones, then fills free
    /// lanes.
    fn place(&mut self, now: Time, out: &mut Outbox) {
        for device in self.devices.ids() {
            if self.devices[device].is_open() && self.has_no_batch(device) {
                self.fill(now, device, out);
            }
        }
        for device in self.devices.ids() {
            if !self.devices[device].is_open() {
                continue;
            }
            match self.options.executors {
                Executors::Lanes(_) => self.continue_lanes(now, device, out),
                Executors::Stages(_) => self.continue_stages(now, device, out),
            }
            self.fill(now, device, out);
        }
    }

    /// Returns whether a device has no batch at all: with one executor per stage, a batch between
    /// stages is on no lane.
    fn has_no_batch(&self, device: DeviceId) -> bool {
        let goes_on = |served: &DvaModel| served.pipelines[device.index()].goes_on(&self.cohorts);
        self.devices[device].is_idle() && !self.queues.models.iter().any(|(_, served)| goes_on(served))
    }

    /// Continues the batches of the lanes.
    fn continue_lanes(&mut self, now: Time, device: DeviceId, out: &mut Outbox) {
        for lane in (0..self.options.lanes as u16).map(LaneId) {
            let Lane { run, owner, .. } = self.devices[device].lanes[lane.index()];
            if let Some(owner) = owner.filter(|_| run.is_none()) {
                self.stretch(now, device, lane, owner);
                self.run_next(now, device, lane, owner, out);
            }
        }
    }

    /// Continues the batches that are before a free stage executor, each on a free lane.
    fn continue_stages(&mut self, now: Time, device: DeviceId, out: &mut Outbox) {
        for id in (0..self.queues.models.capacity() as u16).map(ModelId) {
            if self.queues.models.find(id).is_none_or(|served| served.pipelines[device.index()].is_empty()) {
                continue;
            }
            let Some(lane) = self.devices[device].free_lane() else { return };
            self.stretch(now, device, lane, id);
            while let Some(lane) = self.devices[device].free_lane() {
                if !self.run_next(now, device, lane, id, out) {
                    break;
                }
            }
        }
    }

    /// Starts batches on the free lanes of a device as long as they fit beside the running ones.
    fn fill(&mut self, now: Time, device: DeviceId, out: &mut Outbox) {
        while let Some(lane) = self.devices[device].free_lane() {
            if !self.begin_formed(now, device, lane, out) && !self.form(now, device) {
                break;
            }
        }
    }

    /// Starts a formed batch that waits for its turn; returns whether there was one.
    fn begin_formed(&mut self, now: Time, device: DeviceId, lane: LaneId, out: &mut Outbox) -> bool {
        if self.devices[device].is_idle() && !self.has_formed(device) {
            self.take_over(device);
        }
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, devices, .. } = self;
        let formed = |(id, served): (ModelId, &DvaModel)| Some((served.pipelines[device.index()].formed(cohorts)?, id));
        let Some((batch, id)) = models.iter().find_map(formed) else {
            return false;
        };
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get_mut(id);
        let pipeline = &mut pipelines[device.index()];
        let &Cohort { rows, length, .. } = cohorts.get(batch);
        let room = devices[device].has_room(plan.share(model, 0, rows, length));
        let Some(pair) = pipeline.entry(lane).filter(|_| room) else {
            return false;
        };
        pipeline.begin(&mut PipelineContext { cohorts, fifo, model, plan }, now, batch, pair);
        devices[device].lanes[lane.index()].owner = Some(id);
        self.run_next(now, device, lane, id, out);
        true
    }

    /// Takes over a formed batch that waits for its turn on another device, if there is one.
    fn take_over(&mut self, device: DeviceId) {
        let DvaBatch { queues: Tables { models, .. }, cohorts, devices, .. } = self;
        for (_, DvaModel { model, own: DvaModelState { pipelines, .. }, .. }) in models.iter_mut() {
            let in_use = pipelines.iter().filter(|pipeline| !pipeline.is_empty()).count();
            let formed = |other: DeviceId| pipelines[other.index()].formed(cohorts);
            let Some((other, batch)) = devices.ids().find_map(|other| Some((other, formed(other)?))) else {
                continue;
            };
            if in_use < model.instances.max(1) {
                pipelines[other.index()].remove(batch);
                pipelines[device.index()].take_over(cohorts, batch);
                return;
            }
        }
    }

    /// Policy III: lets newcomers join the batch at a border before a free lane.
    fn stretch(&mut self, now: Time, device: DeviceId, lane: LaneId, id: ModelId) {
        if self.queues.fifo.next_model(None).is_none_or(|(_, oldest)| oldest != id) || self.has_formed(device) {
            return;
        }
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get(id);
        let pipeline = &pipelines[device.index()];
        let Some(batch) = pipeline.stretchable(cohorts, lane).filter(|_| plan.stretches) else {
            return;
        };
        let (newcomers, new_rows) = fifo.fitting(id, plan.max_batch.saturating_sub(pipeline.rows(cohorts)));
        let &Cohort { block, rows, own: PipelineBatch { begun, .. }, .. } = cohorts.get(batch);
        if newcomers == 0 || now - begun > plan.comp_wait {
            return;
        }
        let sealed = plan.will_split(model, block.index(), rows + new_rows, 1);
        let pipeline = &mut models.get_mut(id).pipelines[device.index()];
        let joining = pipeline.stretch(cohorts, batch, sealed);
        for _ in 0..newcomers {
            let slot = fifo.pop(id).expect("enough requests wait");
            cohorts.push(joining, fifo.request(slot));
        }
    }

    /// Starts the next stage of a model's batches on a free lane; returns whether there is one.
    fn run_next(&mut self, now: Time, device: DeviceId, lane: LaneId, owner: ModelId, out: &mut Outbox) -> bool {
        let DvaBatch { queues: Tables { models, .. }, cohorts, devices, tasks, .. } = self;
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get_mut(owner);
        let Some(run) = pipelines[device.index()].next(cohorts, lane) else {
            return false;
        };
        let &Cohort { block, rows, length, .. } = cohorts.get(run.batch);
        let (stage, task) = (block.index(), cohorts.run(run.batch, tasks, (device, lane), false));
        let ends = now + devices[device].takes(plan.remaining(model, stage, rows, length));
        let share = plan.share(model, stage, rows, length);
        let mean_share = plan.mean_share(model, stage, rows, length);
        devices[device].lanes[lane.index()] =
            Lane { owner: Some(owner), run: Some(run), share, mean_share, rows, ends };
        out.push(tasks.start(task, Time::ORIGIN));
        true
    }
}

impl Scheduler for DvaBatch {
    fn on_request(&mut self, now: Time, request: &Request) {
        self.queues.accept(request);
        self.queues.models.get_mut(request.model).own.meter.record(now, request.rows);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let task = self.tasks.get(done.task);
        let Task { device, lane, .. } = task;
        match done.outcome {
            Outcome::Ok | Outcome::Failed => self.finish_stage(task, done),
            Outcome::DeviceLost | Outcome::Cancelled => {
                self.devices[device].lanes[lane.index()].run = None;
                self.devices[device].lost = true;
            }
        }
        self.tasks.close(done.task);
        let state = &self.devices[device];
        if !state.is_open() && !state.runs() {
            self.abandon(device);
        }
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.devices.join(device),
            Control::DeviceLeft(device) => {
                self.devices.leave(device);
                if !self.devices[device].runs() {
                    self.abandon(device);
                }
            }
            // Most rules compare shares of a device or costs on it, whatever its speed.
            Control::DeviceSlowed { device, percent } => self.devices.slow(device, percent),
            Control::ModelLoaded(id, model) => self.load(id, *model),
            Control::ModelUnloaded(id) => {
                while let Some(slot) = self.formed(id) {
                    assert!(self.withdraw(slot, Why::Unloaded), "a waiting request is found: {slot:?}");
                }
                self.queues.retire(id);
            }
            Control::ProfileReplaced { model, block, profile } => {
                let served = self.queues.models.replace_profile(model, block, profile);
                served.own.plan = SplitPlan::new(&served.model, served.max_batch, &self.options.terms(&served.model));
            }
            Control::Cancelled(slot) => {
                if !self.withdraw(slot, Why::Cancelled) {
                    self.queues.fifo.requests.disown(slot.0);
                }
            }
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        while let Some((slot, why)) = self.queues.fifo.late(now) {
            assert!(self.withdraw(slot, why), "a late request waits: {slot:?}");
        }
        self.queues.fifo.flush(out);
        self.window_ends = Time::NEVER;
        self.place(now, out);
    }

    fn next_wakeup(&self) -> Time {
        self.queues.fifo.next_wakeup().min(self.window_ends)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(task)
    }
}
