//! The contract between a scheduler and its driver, and the facts that pass between them.

use crate::{Grant, Guess, Outbox};
use ripieno_base::{BlockId, DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use ripieno_model::{Extent, Graph, Model, Profile, StepReport};

/// A state machine that is told facts and asked for decisions.
///
/// It owns no clock, device or payload: `now` is an argument, and a request is a few plain numbers whose slot indexes
/// whatever the driver keeps for it. So the simulator and the server run one and the same code, and a recorded run
/// replays to the same decisions.
///
/// **The driver promises**: time never goes back; one `settle` after one or more inputs of one `now`, and at or
/// after [`next_wakeup`](Scheduler::next_wakeup); the outbox is emptied before the next input; each `Start` is
/// answered by exactly one [`TaskDone`], a cancelled one too; a slot is reused only after its request has ended and no task
/// in flight has it as a member; the tasks of a lane end in the order of their starts.
///
/// **The scheduler promises**: each request ends in exactly one `Finish` or `Reject`; never more tasks on a lane
/// than its depth; a cancellation only of a task in flight, and once; after `settle`, `next_wakeup() > now`; bounded
/// output; no allocation after construction, but for [`Control`]; equal inputs give equal outputs, bit for bit.
pub trait Scheduler: Send {
    /// The graph of a request that brings one, told right before its [`on_request`](Scheduler::on_request).
    fn on_graph(&mut self, _request: RequestSlot, _graph: &Graph) {}

    /// A request has arrived.
    fn on_request(&mut self, now: Time, request: &Request);

    /// A task has ended, well or badly.
    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>);

    /// The world has changed: devices, models, costs, or a client that went away.
    fn on_control(&mut self, now: Time, control: Control);

    /// One of its models has a device; told to shards only.
    fn on_grant(&mut self, _now: Time, grant: Grant) {
        panic!("what runs in one piece asks nobody for devices: {grant:?}");
    }

    /// Decides, once per instant. The only place where choices are made.
    fn settle(&mut self, now: Time, out: &mut Outbox);

    /// When to call `settle` again if nothing happens; [`Time::NEVER`] if there is nothing to wait for.
    fn next_wakeup(&self) -> Time;

    /// The requests in a task, in batch order; valid from its `Start` until the next input.
    ///
    /// A request stands there once for each of its nodes in the batch: a leaf cell runs many leaves of one tree at once.
    fn members(&self, task: TaskId) -> &[RequestSlot];

    /// Which node each member runs: its step of this block, or its node in the request's graph. As long as
    /// [`members`](Scheduler::members), or empty where each runs its first step. A step that the member's sequence does
    /// not have is padding: it takes its time and computes nothing.
    fn nodes(&self, _task: TaskId) -> &[u32] {
        &[]
    }

    /// What was predicted for a request when it was first started, by a policy that predicts; for metrics. Valid from its
    /// first `Start` until its slot is reused.
    fn prediction(&self, _request: RequestSlot) -> Option<Prediction> {
        None
    }

    /// The driver tells deadlines that lie ahead of the real ones by as much as batches run late: what stands in for that before it
    /// is known.
    fn guess(&self) -> Guess {
        Guess::Batches
    }
}

/// A policy's guess about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// When it was made: the request was first started then.
    pub made: Time,
    /// How long the request was thought to take from there to its end.
    pub remaining: Nanos,
}

/// A request that has been accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Request {
    /// Where the driver keeps what belongs to it; below [`Limits::requests`](crate::Limits::requests).
    pub slot: RequestSlot,
    /// The model asked for.
    pub model: ModelId,
    /// When it reached the server.
    pub arrived: Time,
    /// When the answer is due.
    pub deadline: Time,
    /// How many rows it holds: at least one, at most the model's largest batch; one where requests unfold.
    pub rows: u32,
    /// How far it walks.
    pub extent: Extent,
    /// With whom it may share a batch, and with whom it shares the devices.
    #[cfg_attr(feature = "serde", serde(default))]
    pub class: RequestClass,
}

/// What sets a request apart from others of its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestClass {
    /// Only requests of the same shape meet in a batch.
    pub shape: Shape,
    /// Whose share of the devices it takes: clients that the driver cannot tell apart are one.
    pub client: u16,
    /// The higher, the sooner among requests of its model and client; 0 unless the client says otherwise.
    pub priority: u8,
}

/// The shapes of a request's inputs, as a number that the driver gives to each combination of a model that it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Shape(pub u32);

impl Shape {
    /// Of a request that shares a batch with nobody.
    pub const ALONE: Shape = Shape(u32::MAX);
}

impl Request {
    /// Fills tables before the first request comes.
    pub(crate) const NONE: Request = Request {
        slot: RequestSlot(0),
        model: ModelId(0),
        arrived: Time::ORIGIN,
        deadline: Time::ORIGIN,
        rows: 0,
        extent: Extent::ONE,
        class: RequestClass { shape: Shape(0), client: 0, priority: 0 },
    };
}

/// The end of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskDone<'a> {
    /// The task.
    pub task: TaskId,
    /// How it ended.
    pub outcome: Outcome,
    /// For each member, whether its walk ended in this block (end token, early exit). Empty if none did.
    pub ended: &'a [bool],
    /// For each member, the block of its chain that it goes on with: the next one, or a later one if it skips some. Empty if
    /// none skips. Means nothing for those whose walk ended, and never given where walks unfold.
    pub skips: &'a [BlockId],
}

impl TaskDone<'_> {
    /// What is told of one member.
    pub(crate) fn report_of(&self, member: usize) -> StepReport {
        StepReport { ended: self.ended.get(member).copied().unwrap_or(false), skip: self.skips.get(member).copied() }
    }
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Outcome {
    /// It ran.
    Ok,
    /// The executor reported an error; its members are rejected.
    Failed,
    /// The device vanished with it; its members may run again elsewhere.
    DeviceLost,
    /// The scheduler cancelled it; its members may run again, from their first block.
    Cancelled,
}

/// A change of the world, other than requests and tasks. May allocate: these are rare.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Control {
    /// A device is ready for tasks.
    DeviceJoined(DeviceId),
    /// A device begins no further batches; tasks under way still end in a [`TaskDone`], and batches may go on with their
    /// next blocks. If it is lost, each of its tasks ends in [`Outcome::DeviceLost`] right after this, or later if it had left
    /// before.
    DeviceLeft(DeviceId),
    /// A device needs `percent` % of the profiled latency from now on; 100 is nominal.
    DeviceSlowed {
        /// The device.
        device: DeviceId,
        /// Its latency relative to the profile, in percent; at least 1.
        percent: u32,
    },
    /// A model can be served. Its id is below [`Limits::models`](crate::Limits::models) and not in use.
    ModelLoaded(ModelId, Box<Model>),
    /// A model is served no more; its queued requests are rejected, running ones finish.
    ModelUnloaded(ModelId),
    /// A block's latency profile was measured anew, of the longest requests: where costs depend on lengths, those of shorter
    /// ones change in proportion.
    ProfileReplaced {
        /// The model.
        model: ModelId,
        /// The block.
        block: BlockId,
        /// Its new profile; at least as long as the model's largest batch.
        profile: Profile,
    },
    /// A client went away. If the request still waits it is rejected; if it runs it finishes, or where its walk unfolds is
    /// rejected before its end, while steps that were queued ahead still run. Should its task be lost or cancelled, it does not
    /// run again but is rejected. Late news of a request that has ended already
    /// must not be passed on, since its slot may be another's.
    Cancelled(RequestSlot),
}
