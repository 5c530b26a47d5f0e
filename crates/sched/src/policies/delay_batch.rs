//! "delay-batch": a batch is what has come within a window, whatever it is; with a window of 0 it is ZeroBatch.
//!
//! Source: the baselines of "DVABatch: Diversity-aware Multi-Entry Multi-Exit Batching for Efficient Processing of DNN
//! Services on GPUs", section 8.1, which are Triton's dynamic batcher without and with a delay.
//!
//! 1. The first request of a model that waits opens a window; when it ends, or as many wait as fit, they may be dispatched.
//! 2. A batch is the oldest requests, whatever their lengths or deadlines; it runs the whole model in one go.
//! 3. With `dispatch = "free"` a batch is formed when a device is free: that is "timeout" with `gather = "fifo"`, and run by it.
//! 4. With `dispatch = "start"` a device that runs takes one batch ahead, so that the next one is formed when the previous one
//!    starts; who comes later is not in it. The paper does not say which it measured, and it makes most of the difference.
//!
//! State: a queue a model; a batch that runs and one ahead a device. It ignores deadlines, but for `drop`, and what a batch
//! costs. No deviations known.

use super::{DROP, MAX_BATCH, drop_rule};
use crate::catalogue::{BuildError, Chains, Form, Knob, Knobs, Needs, Policy};
use crate::parts::fifo::Fifo;
use crate::parts::tasks::Tasks;
use crate::shard::{DeviceChoice, Fused, Gather, Network, PerModel, Rules, StartBy};
use crate::{Action, Control, Outbox, Outcome, Request, Scheduler, Setup, TaskDone, Why};
use ripieno_base::{DeviceId, LaneId, List, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{DropRule, Model};

pub(crate) const POLICY: Policy = Policy {
    name: "delay-batch",
    source: "DVABatch, section 8.1 (DelayBatch, ZeroBatch)",
    summary: "what has come within a window runs as one batch, the whole model in one go; with a window of 0, ZeroBatch",
    walks: super::WHOLE,
    chains: Chains::Any,
    knobs: &[
        Knob {
            name: "window_ms",
            default: "0",
            help: "how long the first request of a batch waits for others, in ms; 0 = ZeroBatch",
        },
        Knob {
            name: "dispatch",
            default: "free",
            help: "when the next batch is formed: \"free\" = when a device is free, \"start\" = when the previous one starts, \
                   which it then follows",
        },
        MAX_BATCH,
        Knob { default: "never", ..DROP },
    ],
    needs: |_| Needs::ONE_TASK,
    form: Form::OnePiece(build),
};

fn build(setup: &Setup, knobs: &Knobs<'_>) -> Result<Box<dyn Scheduler>, BuildError> {
    let window = |model: Option<&str>| Ok(Nanos::from_millis_f64(knobs.number("window_ms", model)?.unwrap_or(0.0)));
    let max_batch = PerModel::read(&setup.models, |model| knobs.count(MAX_BATCH.name, model))?;
    let drop = drop_rule(knobs, DropRule::Never)?;
    if knobs.choice("dispatch", &[("free", false), ("start", true)], false)? {
        let window = PerModel::read(&setup.models, window)?;
        return Ok(Box::new(DelayBatch::new(setup, Options { window, max_batch, drop })));
    }
    let start = PerModel::read(&setup.models, |model| Ok(StartBy::after(window(model)?)))?;
    let (gather, network) = (Gather::Fifo, Network::default());
    let rules = Rules { start, max_batch, gather, drop, single: false, network };
    Ok(Box::new(Fused::new(setup, DeviceChoice::SmallestId, rules)))
}

/// What the options say.
struct Options {
    window: PerModel<Nanos>,
    max_batch: PerModel<Option<usize>>,
    drop: DropRule,
}

/// A model that is served.
struct Served {
    model: Model,
    window: Nanos,
    max_batch: usize,
    drop: DropRule,
    retired: bool,
    /// Batches on devices, those ahead included.
    batches: usize,
}

/// What a device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// A batch runs a block.
    Runs(TaskId),
    /// A batch stands before its next block.
    GoesOn(TaskId),
}

#[derive(Clone, Copy, Debug)]
struct Device {
    present: bool,
    state: State,
    /// The batch that follows.
    ahead: Option<(ModelId, List)>,
}

/// The rule that forms batches ahead.
struct DelayBatch {
    options: Options,
    models: Vec<Option<Served>>,
    fifo: Fifo,
    tasks: Tasks,
    devices: Vec<Device>,
    /// Answers since the last settle.
    pending: Vec<Action>,
    /// Requests whose batch was lost.
    returned: Vec<RequestSlot>,
    window_ends: Time,
}

impl DelayBatch {
    fn new(setup: &Setup, options: Options) -> DelayBatch {
        let limits = &setup.limits;
        let device = |id| Device { present: id < setup.devices, state: State::Idle, ahead: None };
        let mut batcher = DelayBatch {
            options,
            models: (0..limits.models).map(|_| None).collect(),
            fifo: Fifo::new(limits.requests, limits.models),
            tasks: Tasks::new(limits),
            devices: (0..limits.devices).map(device).collect(),
            pending: Vec::with_capacity(limits.requests),
            returned: Vec::with_capacity(limits.requests),
            window_ends: Time::NEVER,
        };
        for (model, id) in setup.models.iter().zip(0..) {
            batcher.load(ModelId(id), model.clone());
        }
        batcher
    }

    fn load(&mut self, id: ModelId, model: Model) {
        let place = &mut self.models[id.index()];
        assert!(place.as_ref().is_none_or(|served| served.retired), "the id of a loaded model was reused: {id:?}");
        *place = Some(Served {
            window: self.options.window.of(&model),
            max_batch: self.options.max_batch.of(&model).unwrap_or(usize::MAX).min(model.max_batch),
            drop: model.drop.unwrap_or(self.options.drop),
            model,
            retired: false,
            batches: 0,
        });
    }

    fn served(&mut self, id: ModelId) -> &mut Served {
        self.models[id.index()].as_mut().expect("the model is loaded")
    }

    fn enqueue(&mut self, slot: RequestSlot) {
        let request = *self.fifo.request(slot);
        let Served { model, drop, .. } = self.models[request.model.index()].as_ref().expect("the model is loaded");
        let cost = model.blocks.iter().map(|block| block.cost(request.rows as usize, request.extent.length));
        self.fifo.push(slot, *drop, cost.sum());
    }

    fn reject(&mut self, slot: RequestSlot, why: Why) {
        self.pending.push(Action::Reject { request: slot, why });
    }

    /// Puts the members of lost batches back into their queues.
    fn take_back(&mut self) {
        while let Some(slot) = self.returned.pop() {
            let model = self.fifo.request(slot).model;
            if self.served(model).retired {
                self.reject(slot, Why::Unloaded);
            } else {
                self.enqueue(slot);
            }
        }
    }

    /// Takes the batch back that follows on a device.
    fn dissolve(&mut self, device: usize) {
        let Some((model, mut members)) = self.devices[device].ahead.take() else { return };
        self.served(model).batches -= 1;
        while let Some(slot) = members.pop_front(&mut self.fifo.links) {
            self.returned.push(RequestSlot(slot));
        }
        self.take_back();
    }

    /// The model whose first request has waited longest, of those that may have a batch now, and how many requests of it.
    fn due(&mut self, now: Time) -> Option<(ModelId, usize)> {
        let mut after = None;
        while let Some(key) = self.fifo.next_model(after) {
            after = Some(key);
            let served = self.models[key.1.index()].as_ref().expect("the model is loaded");
            if served.batches >= served.model.instances.max(1) {
                continue;
            }
            let wide = self.fifo.head(key.1).map_or(1, |head| head.rows as usize);
            let (count, rows) = self.fifo.fitting(key.1, served.max_batch.max(wide));
            let full = rows >= served.max_batch || self.fifo.waiting(key.1).nth(count).is_some();
            let ends = key.0 + served.window;
            if full || ends <= now {
                return Some((key.1, count));
            }
            self.window_ends = self.window_ends.min(ends);
        }
        None
    }

    /// Forms the batch that follows on a device.
    fn form(&mut self, device: usize, model: ModelId, count: usize) {
        let mut members = List::default();
        for _ in 0..count {
            let slot = self.fifo.head(model).expect("so many wait").slot;
            self.fifo.take(slot);
            members.push_back(&mut self.fifo.links, slot.0);
        }
        self.served(model).batches += 1;
        self.devices[device].ahead = Some((model, members));
    }

    /// Starts what a device is to run next, if it runs nothing.
    fn run(&mut self, device: usize, out: &mut Outbox) {
        let id = DeviceId(device as u16);
        let task = match (self.devices[device].state, self.devices[device].ahead) {
            (State::GoesOn(task), _) => task,
            (State::Idle, Some((model, mut members))) => {
                self.devices[device].ahead = None;
                let task = self.tasks.open(model, id);
                while let Some(slot) = members.pop_front(&mut self.fifo.links) {
                    self.tasks.push(task, RequestSlot(slot));
                }
                task
            }
            _ => return,
        };
        self.devices[device].state = State::Runs(task);
        let running = self.tasks.get(task);
        let (model, block) = (running.model, running.block);
        out.push(Action::Start { task, model, block, device: id, lane: LaneId(0), not_before: Time::ORIGIN });
    }

    /// A device that may take a batch: one that does nothing, or else one without a batch ahead.
    fn taker(&self) -> Option<usize> {
        let open = || self.devices.iter().zip(0..).filter(|(device, _)| device.present && device.ahead.is_none());
        let idle = open().find(|(device, _)| device.state == State::Idle);
        idle.or_else(|| open().next()).map(|(_, id)| id)
    }
}

impl Scheduler for DelayBatch {
    fn on_request(&mut self, _now: Time, request: &Request) {
        self.fifo.accept(request);
        self.enqueue(request.slot);
    }

    fn on_task_done(&mut self, _now: Time, done: &TaskDone<'_>) {
        self.tasks.report(done);
        let reported = (self.tasks.take_done(0), self.tasks.take_done(1));
        assert_eq!(reported, (Some((done.task, done.outcome)), None), "each end is acted upon at once");
        let on = self.tasks.get(done.task);
        let blocks = self.served(on.model).model.blocks.len();
        let DelayBatch { tasks, pending, returned, .. } = self;
        let going_on = match done.outcome {
            Outcome::Ok => tasks.advance(done.task, blocks, |slot| pending.push(Action::Finish { request: slot })),
            Outcome::Failed => {
                tasks.fail(done.task, |slot| pending.push(Action::Reject { request: slot, why: Why::Failed }))
            }
            Outcome::DeviceLost | Outcome::Cancelled => tasks.drain(done.task, |slot| returned.push(slot)),
        };
        let state = if going_on > 0 { State::GoesOn(done.task) } else { State::Idle };
        self.devices[on.device.index()].state = state;
        if going_on == 0 {
            self.tasks.close(done.task);
            self.served(on.model).batches -= 1;
            self.take_back();
        }
    }

    fn on_control(&mut self, _now: Time, control: Control) {
        match control {
            Control::DeviceJoined(device) => self.devices[device.index()].present = true,
            Control::DeviceLeft(device) => {
                self.devices[device.index()].present = false;
                self.dissolve(device.index());
            }
            // Nothing is reckoned with what a batch costs.
            Control::DeviceSlowed { .. } => {}
            Control::ModelLoaded(id, model) => self.load(id, *model),
            Control::ModelUnloaded(id) => {
                self.served(id).retired = true;
                while let Some(slot) = self.fifo.head(id).map(|request| request.slot) {
                    self.fifo.take(slot);
                    self.reject(slot, Why::Unloaded);
                }
            }
            Control::ProfileReplaced { model, block, profile } => {
                self.served(model).model.blocks[block.index()].replace_profile(profile);
            }
            Control::Cancelled(slot) => {
                if self.fifo.take(slot) {
                    self.reject(slot, Why::Cancelled);
                }
            }
        }
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        while let Some((slot, why)) = self.fifo.pop_late(now) {
            self.reject(slot, why);
        }
        self.pending.drain(..).for_each(|action| out.push(action));
        self.window_ends = Time::NEVER;
        (0..self.devices.len()).for_each(|device| self.run(device, out));
        while let Some(device) = self.taker() {
            let Some((model, count)) = self.due(now) else { break };
            self.form(device, model, count);
            self.run(device, out);
        }
    }

    fn next_wakeup(&self) -> Time {
        self.fifo.next_wakeup().min(self.window_ends)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.tasks.members(task)
    }
}
