//! "dva": batches that newcomers join, that are split, and that run in parallel, as the model's
//! profiles suggest.
//!
//! Source: "DVABatch: Diversity-aware Multi-Entry Multi-Exit Batching for Efficient Processing of
//! DNN Services on GPUs", sections 5 to 7.
//!
//! 1. *new*: once the executor of the first stage has a legitimate buffer pair, the waiting
//!    requests of a model become a batch. The batch passes through the executors of all stages, of
//!    which each has one, while later batches follow it (sections 5.2 and 6).
//! 2. Policy I, for models whose cost depends on the length of requests: waiting requests are
//!    divided into groups by length, each a batch. Their window is the duration of the first stage
//!    at the largest batch, which also bounds the requests in all stages.
//! 3. Policy II, where stages prefer different batch sizes: before a stage, a batch is *split* in
//!    halves, recursively, if the remaining stages take a batch at least twice as long as a half.
//!    The parts run one after the other to the end.
//! 4. Policy III: newcomers join the latest batch (*stretch*), unless it is about to be split or
//!    began longer than `T_comp_wait` ago. They run the first stages while the batch ends its
//!    present stage. The batch waits for them at the next border, and from there on they are one
//!    batch.
//!
//! A request waits until its batch begins: in a formed batch it can still be cancelled, dropped or
//! unloaded.
//!
//! State: a queue per model; the batch table, which is [`Cohorts`]; stage executors and the order
//! of batches per model and device. It ignores deadlines except for `drop`, and future arrivals.
//!
//! Choices where the paper leaves freedom. The paper gives no `T_comp_wait`, only the purpose: no
//! violation of the QoS. So it is the longest time without a violation by the profiles: the SLO
//! less the duration of the largest batch.
//!
//! The paper does not say how many groups there are. Two are usual for its Bert, and two are the
//! default; the cut with the least padding is taken. The first stage, whose duration is the window,
//! counts with the length of the oldest waiting request. Preferred batch sizes differ if they do
//! among 1, 2, 4, …, which are the sizes that the paper profiles.
//!
//! A batch is open until its first stage can begin. One batch of newcomers catches up at a time.
//! Members of a batch that skip a stage continue as a batch of their own. Requests that cannot be
//! punctual run unless `drop` is set.

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
use devices::{DeviceLanes, LaneDevice};
use options::DvaOptions;
use pipeline::{Pipeline, PipelineBatch, PipelineContext};
use ripieno_base::{DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::Model;
use ripieno_sched::tables::cohorts::Cohorts;
use ripieno_sched::tables::devices::Devices;
use ripieno_sched::tables::models;
use ripieno_sched::tables::tasks::{Task, Tasks};
use ripieno_sched::{Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use rules::SplitPlan;

type DvaModel = models::ModelEntry<DvaModelState>;

/// State of a model.
#[derive(Debug)]
struct DvaModelState {
    plan: SplitPlan,
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
    /// Upper bound on the live requests.
    requests: usize,
    /// End of the next window after which a batch could start.
    window_ends: Time,
}

impl DvaBatch {
    fn new(setup: &Setup, options: DvaOptions) -> DvaBatch {
        let limits = &setup.limits;
        let device = || LaneDevice { lost: false, lanes: vec![None; options.lanes] };
        let alone = |served: &DvaModel, request: &Request| served.plan.alone(&served.model, request);
        let mut dva = DvaBatch {
            queues: Tables::new(limits, options.batches.clone(), alone),
            cohorts: Cohorts::new(limits.requests),
            tasks: Tasks::new(limits),
            devices: Devices::new(limits, setup.devices, device),
            clusters: Clusters::new(limits.batch, options.terms.groups),
            lost: Vec::with_capacity(limits.requests),
            requests: limits.requests,
            window_ends: Time::NEVER,
            options,
        };
        for (model, id) in setup.models.iter().zip(0..) {
            dva.load(ModelId(id), model.clone());
        }
        dva
    }

    fn load(&mut self, id: ModelId, model: Model) {
        let DvaBatch { options, devices, queues, requests, .. } = self;
        queues.models.load(id, model, |model, max_batch| {
            // Each border of each pair holds one batch or its parts; one more is being formed.
            let batches = (model.blocks.len() + 1) * options.buffers + 1;
            let queries = (*requests).min(model.max_batch * batches);
            let pipeline = |_| Pipeline::new(model.blocks.len(), options.buffers, queries);
            let plan = SplitPlan::new(model, max_batch, &options.terms(model));
            DvaModelState { plan, pipelines: devices.ids().map(pipeline).collect() }
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
        devices[device].lanes.fill(None);
        for (_, served) in queues.models.iter_mut() {
            served.pipelines[device.index()].clear(cohorts, lost);
        }
        lost.drain(..).for_each(|slot| queues.take_back(slot));
    }

    /// Ends a stage of a batch on a lane.
    fn finish_stage(&mut self, Task { device, lane, .. }: Task, done: &TaskDone<'_>) {
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, devices, tasks, .. } = self;
        let (id, run) = devices[device].lanes[lane.index()].take().expect("the driver reports tasks that were started");
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get_mut(id);
        let mut context = PipelineContext { cohorts, fifo, model, plan };
        pipelines[device.index()].end(&mut context, run, tasks.members(done.task), done);
    }

    /// Forms and starts batches on idle devices, then continues running ones, then begins others
    /// where executors are free.
    fn place(&mut self, now: Time, out: &mut Outbox) {
        for device in self.devices.ids() {
            if self.devices[device].is_open() && self.has_no_batch(device) {
                self.fill(now, device, out);
            }
        }
        for device in self.devices.ids() {
            if self.devices[device].is_open() {
                self.continue_stages(now, device, out);
                self.fill(now, device, out);
            }
        }
    }

    /// Returns whether a device has no batch at all: a batch between stages is on no lane.
    fn has_no_batch(&self, device: DeviceId) -> bool {
        let goes_on = |served: &DvaModel| served.pipelines[device.index()].goes_on(&self.cohorts);
        !self.devices[device].runs() && !self.queues.models.iter().any(|(_, served)| goes_on(served))
    }

    /// Stretches the latest batches, and continues those that are before a free executor, each on a
    /// free lane.
    fn continue_stages(&mut self, now: Time, device: DeviceId, out: &mut Outbox) {
        for id in (0..self.queues.models.capacity() as u16).map(ModelId) {
            if self.queues.models.find(id).is_none_or(|served| served.pipelines[device.index()].is_empty()) {
                continue;
            }
            self.stretch(now, device, id);
            while let Some(lane) = self.devices[device].free_lane() {
                if !self.run_next(device, lane, id, out) {
                    break;
                }
            }
        }
    }

    /// Begins batches on the free lanes of a device as long as executors of first stages are free.
    fn fill(&mut self, now: Time, device: DeviceId, out: &mut Outbox) {
        while let Some(lane) = self.devices[device].free_lane() {
            if !self.begin_formed(now, device, lane, out) && !self.form(now, device) {
                break;
            }
        }
    }

    /// Begins a formed batch; returns whether there was one that could.
    fn begin_formed(&mut self, now: Time, device: DeviceId, lane: LaneId, out: &mut Outbox) -> bool {
        if self.has_no_batch(device) && !self.has_formed(device) {
            self.take_over(device);
        }
        let DvaBatch { queues: Tables { models, fifo, .. }, cohorts, .. } = self;
        let can_begin = |(id, served): (ModelId, &DvaModel)| {
            let pipeline = &served.pipelines[device.index()];
            Some((pipeline.formed(cohorts)?, pipeline.entry(None)?, id))
        };
        let Some((batch, pair, id)) = models.iter().find_map(can_begin) else {
            return false;
        };
        let DvaModel { model, own: DvaModelState { plan, pipelines, .. }, .. } = models.get_mut(id);
        let mut context = PipelineContext { cohorts, fifo, model, plan };
        pipelines[device.index()].begin(&mut context, now, batch, pair);
        self.run_next(device, lane, id, out);
        true
    }

    /// Returns whether a formed batch waits on a device.
    fn has_formed(&self, device: DeviceId) -> bool {
        let formed = |served: &DvaModel| served.pipelines[device.index()].formed(&self.cohorts).is_some();
        self.queues.models.iter().any(|(_, served)| formed(served))
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

    /// Starts the next stage of a model's batches on a free lane; returns whether there is one.
    fn run_next(&mut self, device: DeviceId, lane: LaneId, id: ModelId, out: &mut Outbox) -> bool {
        let DvaBatch { queues: Tables { models, .. }, cohorts, devices, tasks, .. } = self;
        let Some(run) = models.get_mut(id).pipelines[device.index()].next(cohorts) else {
            return false;
        };
        let task = cohorts.run(run.batch, tasks, (device, lane), false);
        devices[device].lanes[lane.index()] = Some((id, run));
        out.push(tasks.start(task, Time::ORIGIN));
        true
    }
}

impl Scheduler for DvaBatch {
    fn on_request(&mut self, _now: Time, request: &Request) {
        self.queues.accept(request);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let task = self.tasks.get(done.task);
        let Task { device, lane, .. } = task;
        match done.outcome {
            Outcome::Ok | Outcome::Failed => self.finish_stage(task, done),
            Outcome::DeviceLost | Outcome::Cancelled => {
                self.devices[device].lanes[lane.index()] = None;
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
            // The rules compare costs on one device, whatever its speed.
            Control::DeviceSlowed { .. } | Control::NetworkDelayed(_) | Control::GatherMeasured(..) => {}
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
