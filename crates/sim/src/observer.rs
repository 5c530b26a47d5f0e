//! The events of a run.

use crate::ensembles::Whole;
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::Graph;
use ripieno_sched::{Request, Why};

/// An observer of a run. Ids count arrivals from 1; slots are reused, ids never are.
pub trait Observer {
    /// A request is about to be accepted, in a world with walks that unfold. `output` is the step
    /// at which a block that runs until its end will end.
    fn unfolds(&mut self, _slot: RequestSlot, _output: u32, _graph: Option<&Graph>) {}

    /// A request was accepted.
    fn accepted(&mut self, _id: u64, _request: &Request) {}

    /// A request was refused.
    fn refused(&mut self, _now: Time, _id: u64, _model: ModelId) {}

    /// A task was started.
    fn started(&mut self, _now: Time, _run: &Run<'_>) {}

    /// A task has ended; `run` is the same as at its start, except for the true times if the device
    /// has several lanes.
    fn done(&mut self, _now: Time, _run: &Run<'_>) {}

    /// A running task was cancelled; it ends at the next instant.
    fn cancelled(&mut self, _now: Time, _run: &Run<'_>) {}

    /// A device accepts no further tasks; its tasks are lost or still end.
    fn left(&mut self, _device: DeviceId) {}

    /// A request has ended.
    fn ended(&mut self, _now: Time, _id: u64, _request: &Request, _end: End) {}

    /// A request to an ensemble arrived.
    fn whole_arrived(&mut self, _whole: &Whole) {}

    /// The request with this id, which arrives next, is a step of one to an ensemble.
    fn is_step(&mut self, _id: u64) {}

    /// A request to an ensemble has ended; `well` is true if all its steps were answered.
    fn whole_ended(&mut self, _now: Time, _whole: &Whole, _well: bool) {}

    /// The scheduler has settled.
    fn settled(&mut self, _now: Time, _next_wakeup: Time) {}
}

/// A task on a device.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The task.
    pub task: TaskId,
    /// The model.
    pub model: ModelId,
    /// The block.
    pub block: BlockId,
    /// The device.
    pub device: DeviceId,
    /// The lane of the device.
    pub lane: LaneId,
    /// Rows in the batch.
    pub rows: usize,
    /// Padded length of its rows.
    pub length: u32,
    /// Start on the device; a lower bound until the task is done if the device has several lanes.
    pub start: Time,
    /// End on the device; if it has several lanes, known only afterwards, and never for a lost
    /// task.
    pub end: Time,
    /// The slots of the members, in batch order.
    pub slots: &'a [RequestSlot],
    /// The node of each member; empty if each runs its first.
    pub nodes: &'a [u32],
    /// The ids of the members, in batch order.
    pub ids: &'a [u64],
    /// Per member, whether its walk has ended in this task of a chain; empty if none has.
    pub ended: &'a [bool],
    /// Per member, the block that it continues with after this task of a chain; empty if none skips
    /// any.
    pub skips: &'a [BlockId],
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was answered.
    Finished,
    /// It was rejected.
    Rejected(Why),
}
