//! The contract between a scheduler and its driver, and the facts that pass between them.

use crate::{CostScale, NetworkDelay, Outbox};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Graph, Model, Profile, StepReport};
use std::any::Any;

/// A state machine that receives events and returns decisions.
///
/// It owns no clock, device or payload: `now` is an argument, and a request is a few numbers whose
/// slot indexes whatever the driver keeps for it. The simulator and the server therefore run the
/// same code, and a replayed recording yields the same decisions.
///
/// **The driver promises**:
///
/// - Time never goes back.
/// - One `settle` follows one or more inputs of one `now`, and comes at or after
///   [`next_wakeup`](Scheduler::next_wakeup).
/// - The outbox is emptied before the next input.
/// - Each `Start`, also a cancelled one, is answered by exactly one [`TaskDone`].
/// - A slot is reused only after its request has ended and no task in flight has it as a member.
/// - The tasks of a lane end in the order of their starts.
///
/// **The scheduler promises**:
///
/// - Each request ends in exactly one `Finish` or `Reject`.
/// - A lane never has more tasks than its depth.
/// - A cancellation concerns only a task in flight, and comes once.
/// - After `settle`, `next_wakeup() > now`.
/// - Output is bounded.
/// - Nothing is allocated after construction, except in [`Control`].
/// - Equal inputs give equal outputs, bit for bit.
pub trait Scheduler: Send {
    /// Receives the graph of a request that has its own, right before its
    /// [`on_request`](Scheduler::on_request).
    fn on_graph(&mut self, _request: RequestSlot, _graph: &Graph) {}

    /// Receives a request that has arrived.
    fn on_request(&mut self, now: Time, request: &Request);

    /// Receives the end of a task.
    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>);

    /// Receives a change of devices, models or costs, or the withdrawal of a request.
    fn on_control(&mut self, now: Time, control: Control);

    /// Decides, once per instant. All choices are made here.
    fn settle(&mut self, now: Time, out: &mut Outbox);

    /// Returns the time of the next `settle` if no input comes before; [`Time::NEVER`] if none is
    /// needed.
    fn next_wakeup(&self) -> Time;

    /// Returns the requests in a task, in batch order; valid from its `Start` until the next input.
    ///
    /// A request occurs once for each of its nodes in the batch: a leaf cell may run many leaves of
    /// one tree together.
    fn members(&self, task: TaskId) -> &[RequestSlot];

    /// Returns the node that each member runs: its step of this block, or its node in the request's
    /// graph. The slice is as long as [`members`](Scheduler::members), or empty if each member runs
    /// its first step. A step beyond the end of the member's sequence is padding: it takes time and
    /// computes nothing.
    fn nodes(&self, _task: TaskId) -> &[u32] {
        &[]
    }

    /// Returns the prediction made at the first start of a request, for metrics, or at its refusal,
    /// for its answer; `None` if the policy does not predict. Valid from the request's first
    /// `Start` or its `Reject` until its slot is reused.
    fn prediction(&self, _request: RequestSlot) -> Option<Prediction> {
        None
    }

    /// Returns true while requests go on on a device that has left, because only it has their
    /// state. The driver keeps the device until then. Each of these requests has a task in flight
    /// or gets one once the device has room.
    fn holds(&self, _device: DeviceId) -> bool {
        false
    }

    /// Returns true if the policy itself learns how late batches are. To any other policy the
    /// driver announces deadlines that precede the real ones by a margin.
    fn learns_occupancy(&self) -> bool {
        false
    }

    /// Returns true if the driver is to announce real deadlines, without any margin.
    fn takes_real_deadlines(&self) -> bool {
        false
    }

    /// Returns the scheduler's own type, if it is a shard that a matchmaker grants devices. The
    /// driver and the shard know their messages; this contract does not.
    fn as_shard(&mut self) -> Option<&mut dyn Any> {
        None
    }
}

/// A policy's prediction about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// The time of the prediction: the first start of the request, or its refusal.
    pub made: Time,
    /// Predicted duration from there to the end of the request.
    pub remaining: Nanos,
}

/// A request that has been accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Request {
    /// Index of the driver's data for the request; below
    /// [`Limits::requests`](crate::Limits::requests).
    pub slot: RequestSlot,
    /// The requested model.
    pub model: ModelId,
    /// The time at which it reached the server.
    pub arrived: Time,
    /// The time at which the answer is due.
    pub deadline: Time,
    /// Number of rows: at least one, at most the model's largest batch; one for models whose
    /// requests unfold.
    pub rows: u32,
    /// Length of its walk.
    pub extent: Extent,
    /// The requests it may be batched with, and the client whose share of the devices it uses.
    #[cfg_attr(feature = "serde", serde(default))]
    pub class: RequestClass,
}

/// Properties that distinguish a request from others of its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestClass {
    /// Shape of the inputs: only requests of the same shape share a batch.
    pub shape: Shape,
    /// The client whose share of the devices the request uses; clients that the driver cannot tell
    /// apart have one number.
    pub client: u16,
    /// Priority among requests of the same model and client: the highest goes first; 0 by default.
    pub priority: u8,
    /// Cost of the request relative to its model's profile.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cost: CostScale,
}

/// The shapes of a request's inputs, as a number that the driver assigns to each combination that a
/// model has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Shape(pub u32);

impl Shape {
    /// Shape of a request that shares a batch with no other.
    pub const ALONE: Shape = Shape(u32::MAX);
}

impl Request {
    /// Placeholder in tables before the first request arrives.
    pub const NONE: Request = Request {
        slot: RequestSlot(0),
        model: ModelId(0),
        arrived: Time::ORIGIN,
        deadline: Time::ORIGIN,
        rows: 0,
        extent: Extent::ONE,
        class: RequestClass { shape: Shape(0), client: 0, priority: 0, cost: CostScale::PROFILED },
    };
}

/// The end of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskDone<'a> {
    /// The task.
    pub task: TaskId,
    /// The outcome.
    pub outcome: Outcome,
    /// Per member, whether its walk ended in this block (end token, early exit). Empty if none did.
    pub ended: &'a [bool],
    /// Per member, the block of its chain that it continues with: the next one, or a later one if
    /// it skips some. Empty if none skips. Meaningless for members whose walk ended, and never
    /// given for walks that unfold.
    pub skips: &'a [BlockId],
}

impl TaskDone<'_> {
    /// Returns the report about one member.
    pub fn report_of(&self, member: usize) -> StepReport {
        StepReport { ended: self.ended.get(member).copied().unwrap_or(false), skip: self.skips.get(member).copied() }
    }
}

/// The outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Outcome {
    /// It ran.
    Ok,
    /// The executor reported an error; its members are rejected.
    Failed,
    /// The device was lost; its members may run again elsewhere.
    DeviceLost,
    /// The scheduler cancelled it; its members may run again, from their first block.
    Cancelled,
}

/// A change other than requests and tasks. Handling one may allocate, since they are rare.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Control {
    /// A device is ready for tasks.
    DeviceJoined(DeviceId),
    /// A device begins no further requests. Tasks in flight still end in a [`TaskDone`], and
    /// requests that have begun there may go on there. If the device is lost, each of its tasks
    /// ends in [`Outcome::DeviceLost`] right after this, or later if it had left before. While the
    /// scheduler [`holds`](Scheduler::holds) the device, its loss is announced by a second
    /// `DeviceLeft`.
    DeviceLeft(DeviceId),
    /// A device needs `percent` % of the profiled latency from now on; 100 is nominal.
    DeviceSlowed {
        /// The device.
        device: DeviceId,
        /// Latency of the device relative to the profile, in percent; at least 1.
        percent: u32,
    },
    /// A model becomes available. Its id is below [`Limits::models`](crate::Limits::models) and not
    /// in use.
    ModelLoaded(ModelId, Box<Model>),
    /// A model is unloaded: its queued requests are rejected, running ones finish.
    ModelUnloaded(ModelId),
    /// A block's latency profile was measured again, for the longest requests. Where costs depend
    /// on lengths, the costs of shorter requests change in proportion.
    ProfileReplaced {
        /// The model.
        model: ModelId,
        /// The block.
        block: BlockId,
        /// New profile of the block; at least as long as the model's largest batch.
        profile: Profile,
    },
    /// The client withdrew a request. A waiting request is rejected. A running one finishes, or, if
    /// its walk unfolds, is rejected before its end, while queued steps still run. If its task is
    /// lost or cancelled, it is rejected instead of run again. The driver must not pass on a
    /// withdrawal of a request that has ended, since the slot may belong to another one.
    Cancelled(RequestSlot),
    /// Batches are expected to need this time to reach their devices from now on. A policy without
    /// options for it ignores it.
    NetworkDelayed(NetworkDelay),
    /// The host is expected to need this time from now on between two batches of the model, to
    /// answer one and to gather the next. A device computes meanwhile. A policy without options for
    /// a [`NetworkDelay`] ignores it.
    GatherMeasured(ModelId, NetworkDelay),
}
