//! What can be seen of a run from outside.

use crate::ensembles::Whole;
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};
use ripieno_model::Graph;
use ripieno_sched::{Request, Why};

/// Watches a run. Ids count arrivals from 1; slots are reused, ids never are.
pub trait Observer {
    /// A request is about to be accepted, in a world with walks that unfold: at which step of a block that runs until its
    /// end it will end, and its graph.
    fn unfolds(&mut self, _slot: RequestSlot, _output: u32, _graph: Option<&Graph>) {}

    /// A request was accepted.
    fn accepted(&mut self, _id: u64, _request: &Request) {}

    /// A request found no free slot.
    fn refused(&mut self, _now: Time, _id: u64, _model: ModelId) {}

    /// A task was started.
    fn started(&mut self, _now: Time, _run: &Run<'_>) {}

    /// A task has ended; `run` is as it was at its start, and where a device has several lanes with its real times.
    fn done(&mut self, _now: Time, _run: &Run<'_>) {}

    /// A task that has not ended was cancelled; it ends at the next instant.
    fn cancelled(&mut self, _now: Time, _run: &Run<'_>) {}

    /// A device takes no further tasks; those that it has are lost with it or still end.
    fn left(&mut self, _device: DeviceId) {}

    /// A request has ended.
    fn ended(&mut self, _now: Time, _id: u64, _request: &Request, _end: End) {}

    /// A request to an ensemble came.
    fn whole_arrived(&mut self, _whole: &Whole) {}

    /// The request with this id, which arrives next, is a step of one to an ensemble.
    fn is_step(&mut self, _id: u64) {}

    /// A request to an ensemble has ended, well if all its steps were answered.
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
    /// The length that its rows are padded to.
    pub length: u32,
    /// When the device begins with it; where it has several lanes, not before this until the task is done.
    pub start: Time,
    /// When the device is done with it. Where it has several lanes, that is not known before; never if it was lost.
    pub end: Time,
    /// The slots of the members, in batch order.
    pub slots: &'a [RequestSlot],
    /// Which node each member runs; empty if each runs its first.
    pub nodes: &'a [u32],
    /// The ids of the members, in batch order.
    pub ids: &'a [u64],
    /// Of a task of a chain that is done, whose walk has ended in it; empty if none has.
    pub ended: &'a [bool],
    /// Of a task of a chain that is done, the block that each member goes on with; empty if none skips any.
    pub skips: &'a [BlockId],
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was answered.
    Finished,
    /// It was not.
    Rejected(Why),
}
