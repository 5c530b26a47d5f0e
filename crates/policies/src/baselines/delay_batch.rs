//! "delay-batch": a batch holds the requests that arrive within a window; with a window of 0 it is
//! ZeroBatch.
//!
//! Source: the baselines of "DVABatch: Diversity-aware Multi-Entry Multi-Exit Batching for
//! Efficient Processing of DNN Services on GPUs", section 8.1, which are Triton's dynamic batcher
//! without and with a delay.
//!
//! 1. The first waiting request of a model opens a window. When the window ends, or as many
//!    requests wait as fit, they may be dispatched.
//! 2. A batch holds the oldest requests, regardless of lengths and deadlines; it runs the whole
//!    model.
//! 3. With `dispatch = "free"` a batch is formed when a device is free. This is "timeout" with
//!    `gather = "fifo"`, which runs it.
//! 4. With `dispatch = "start"` a running device takes one batch ahead. So the next batch is formed
//!    when the previous one starts, and later requests are not in it. The paper does not say which
//!    of the two it measured, and the difference is large.
//!
//! State: a queue per model; a running batch and one ahead per device. It ignores deadlines, except
//! for `drop`, and the cost of batches. No known deviations.

use crate::fifo::Tables;
use crate::policy::{Chains, Form, Policy};
use crate::symphony::{DeviceChoice, Fused, Gather, Rules, StartBy, Ways};
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model};
use ripieno_sched::Needs;
use ripieno_sched::estimate::cost;
use ripieno_sched::tables::cohorts::{CohortId, Cohorts};
use ripieno_sched::tables::devices::Devices;
use ripieno_sched::tables::models::{BatchOptions, PerModel};
use ripieno_sched::tables::tasks::Tasks;
use ripieno_sched::{BuildError, Knob, Knobs};
use ripieno_sched::{Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone};
use ripieno_sched::{DROP, MAX_BATCH};

pub(crate) const POLICY: Policy = Policy {
    name: "delay-batch",
    source: "DVABatch, section 8.1 (DelayBatch, ZeroBatch)",
    summary: "what has come within a window runs as one batch, the whole model in one go; with a window of 0, ZeroBatch",
    walks: crate::options::WHOLE,
    chains: Chains::Any,
    knobs: &[
        Knob {
            name: "window_ms",
            default: "0",
            help: "longest wait of the first request of a batch for others, in ms; 0 = ZeroBatch",
        },
        Knob {
            name: "dispatch",
            default: "free",
            help: "time at which the next batch is formed: \"free\" = when a device is free, \"start\" = when the \
                   previous batch starts, which it then follows",
        },
        MAX_BATCH,
        Knob { default: "never", ..DROP },
    ],
    needs: |_| Needs::ONE_TASK,
    form: Form::OnePiece(build),
};

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let window = |model: Option<&str>| Ok(Nanos::from_millis_f64(knobs.number("window_ms", model)?.unwrap_or(0.0)));
    let options = BatchOptions::read(setup, knobs, DropRule::Never)?;
    if knobs.choice("dispatch", &[("free", false), ("start", true)], false)? {
        return Ok(Box::new(DelayBatch::new(setup, options, PerModel::read(&setup.models, window)?)));
    }
    let start = PerModel::read(&setup.models, |model| Ok(StartBy::after(window(model)?)))?;
    let ways = Ways::default();
    let rules = Rules { start, options, gather: Gather::Fifo, drops_passed: false, single: false, ways };
    Ok(Box::new(Fused::new(setup, DeviceChoice::SmallestId, rules)))
}

/// State of a model.
struct DelayModelState {
    window: Nanos,
    /// Batches on devices, including those ahead.
    batches: usize,
}

/// State of a device.
#[derive(Default)]
struct StageDevice {
    /// The batch that runs, or is before its next block.
    batch: Option<CohortId>,
    /// The batch that follows.
    ahead: Option<CohortId>,
}

/// The scheduler that forms batches ahead.
struct DelayBatch {
    /// Window of each model.
    window: PerModel<Nanos>,
    /// Models, requests and queues.
    tables: Tables<DelayModelState>,
    /// Batches that have begun.
    cohorts: Cohorts<()>,
    /// Tasks in flight.
    tasks: Tasks,
    /// The devices.
    devices: Devices<StageDevice>,
    /// Requests whose batch was lost.
    returned: Vec<RequestSlot>,
    /// Earliest end of a window of waiting requests.
    window_ends: Time,
}

impl DelayBatch {
    fn new(setup: &Setup, options: BatchOptions, window: PerModel<Nanos>) -> DelayBatch {
        let limits = &setup.limits;
        let mut batcher = DelayBatch {
            window,
            tables: Tables::new(limits, options, |served, request| {
                cost::of_blocks(&served.model, BlockId(0), request.rows as usize, request.extent.length)
            }),
            cohorts: Cohorts::new(limits.requests),
            tasks: Tasks::new(limits),
            devices: Devices::new(limits, setup.devices, StageDevice::default),
            returned: Vec::with_capacity(limits.requests),
            window_ends: Time::NEVER,
        };
        for (model, id) in setup.models.iter().zip(0..) {
            batcher.load(ModelId(id), model.clone());
        }
        batcher
    }

    fn load(&mut self, id: ModelId, model: Model) {
        let window = self.window.of(&model);
        self.tables.models.load(id, model, |_, _| DelayModelState { window, batches: 0 });
    }

    /// Puts the members of lost batches back into their queues.
    fn take_back(&mut self) {
        while let Some(slot) = self.returned.pop() {
            self.tables.take_back(slot);
        }
    }

    /// Dissolves the batch that follows on a device.
    fn dissolve(&mut self, device: DeviceId) {
        if let Some(ahead) = self.devices[device].ahead.take() {
            self.tables.models.get_mut(self.cohorts.get(ahead).model).batches -= 1;
            self.cohorts.drain(ahead, |slot| self.returned.push(slot));
            self.take_back();
        }
    }

    /// Returns the model whose first request has waited longest, among those that may have a batch
    /// now, and its number of requests.
    fn due(&mut self, now: Time) -> Option<(ModelId, usize)> {
        let Tables { models, fifo, .. } = &self.tables;
        let mut after = None;
        while let Some(key) = fifo.next_model(after) {
            after = Some(key);
            let served = models.get(key.1);
            if served.batches >= served.model.instances.max(1) {
                continue;
            }
            let wide = fifo.head(key.1).map_or(1, |head| head.rows as usize);
            let (count, rows) = fifo.fitting(key.1, served.max_batch.max(wide));
            let full = rows >= served.max_batch || fifo.waiting(key.1).nth(count).is_some();
            let ends = key.0 + served.window;
            if full || ends <= now {
                return Some((key.1, count));
            }
            self.window_ends = self.window_ends.min(ends);
        }
        None
    }

    /// Forms the batch that follows on a device.
    fn form(&mut self, device: DeviceId, model: ModelId, count: usize) {
        let Tables { models, fifo, .. } = &mut self.tables;
        let ahead = self.cohorts.open(model, ());
        for _ in 0..count {
            let slot = fifo.pop(model).expect("enough requests wait");
            self.cohorts.push(ahead, fifo.request(slot));
        }
        models.get_mut(model).batches += 1;
        self.devices[device].ahead = Some(ahead);
    }

    /// Starts the next block or batch of a device that runs nothing.
    fn run(&mut self, device: DeviceId, out: &mut Outbox) {
        let StageDevice { batch, ahead } = &mut self.devices[device].own;
        *batch = batch.or_else(|| ahead.take());
        if let Some(batch) = batch.filter(|&batch| !self.cohorts.get(batch).runs) {
            let task = self.cohorts.run(batch, &mut self.tasks, (device, LaneId(0)), false);
            out.push(self.tasks.start(task, Time::ORIGIN));
        }
    }

    /// Returns a device that may take a batch: an idle one, or else one without a batch ahead.
    fn taker(&self) -> Option<DeviceId> {
        let open = || self.devices.iter().filter(|(_, device)| device.present && device.ahead.is_none());
        let idle = open().find(|(_, device)| device.batch.is_none());
        idle.or_else(|| open().next()).map(|(id, _)| id)
    }
}

impl Scheduler for DelayBatch {
    fn on_request(&mut self, _now: Time, request: &Request) {
        self.tables.accept(request);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        let DelayBatch { cohorts, tasks, tables: Tables { models, fifo, .. }, returned, devices, .. } = self;
        let device = tasks.get(done.task).device;
        let batch = devices[device].batch.expect("a batch runs");
        let id = cohorts.get(batch).model;
        let goes_on = match done.outcome {
            Outcome::DeviceLost | Outcome::Cancelled => {
                cohorts.drain(batch, |slot| returned.push(slot));
                false
            }
            Outcome::Ok | Outcome::Failed => {
                cohorts.report(batch, tasks.members(done.task), &models.get(id).model, done);
                cohorts.advance(batch, |slot| fifo.end(slot, done.outcome))
            }
        };
        tasks.close(done.task);
        if !goes_on {
            devices[device].batch = None;
            models.get_mut(id).batches -= 1;
            self.take_back();
        }
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.devices.join(device),
            Control::DeviceLeft(device) => {
                self.devices.leave(device);
                self.dissolve(device);
            }
            Control::DeviceSlowed { device, percent } => self.devices.slow(device, percent),
            Control::ModelLoaded(id, model) => self.load(id, *model),
            Control::ModelUnloaded(id) => self.tables.retire(id),
            Control::ProfileReplaced { model, block, profile } => {
                self.tables.models.replace_profile(model, block, profile);
            }
            Control::Cancelled(slot) => self.tables.fifo.cancel(slot),
            Control::NetworkDelayed(_) | Control::GatherMeasured(..) => {}
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.tables.fifo.drop_late(now);
        self.tables.fifo.flush(out);
        self.window_ends = Time::NEVER;
        self.devices.ids().for_each(|device| self.run(device, out));
        while let Some(device) = self.taker() {
            let Some((model, count)) = self.due(now) else {
                break;
            };
            self.form(device, model, count);
            self.run(device, out);
        }
    }

    fn next_wakeup(&self) -> Time {
        self.tables.fifo.next_wakeup().min(self.window_ends)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(task)
    }
}
