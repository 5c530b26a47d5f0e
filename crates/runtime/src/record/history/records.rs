//! Records of a history: models, calls, batches, refusals, and reasons of decisions.

use crate::Ending;
use crate::RefusedWhy;
use ripieno_base::{BlockId, DeviceId, LaneId, Nanos, Time};
use ripieno_model::{Extent, Model};
use ripieno_sched::{CostScale, Outcome, WaitGain};

/// A model of the run, in all its loads.
#[derive(Clone, Debug)]
pub struct ModelRecord {
    /// The model as it was loaded last, with the profile of that time.
    pub model: Model,
    /// Time of that load; `None` if it lies before the history.
    pub loaded: Option<Time>,
}

/// A call of a client.
#[derive(Clone, Debug)]
pub struct CallRecord {
    /// Number in the history, from 0.
    pub number: u64,
    /// Index of its model.
    pub model: usize,
    /// Number of its sub-cluster.
    pub sub_cluster: usize,
    /// Client of the request; 0 if clients are not distinguished.
    pub client: u16,
    /// Priority of the request.
    pub priority: u8,
    /// Cost of the request relative to the model's profile.
    pub cost: CostScale,
    /// Time at which it reached the server.
    pub arrived: Time,
    /// Time at which the scheduler received it.
    pub admitted: Time,
    /// Time at which the answer was due.
    pub deadline: Time,
    /// Number of rows.
    pub rows: u32,
    /// Length of its walk.
    pub extent: Extent,
    /// Hash of the client's own id; 0 without one.
    pub tag: u64,
    /// Numbers of its tasks.
    pub tasks: Vec<u64>,
    /// Time and way of its end; `None` while it lives.
    pub ended: Option<(Time, Ending)>,
    /// Whether the end is what its client learned, and no guess from the scheduler's decision.
    pub(super) told: bool,
}

impl CallRecord {
    /// Returns a call that arrives, without a number and requests.
    pub(super) fn arriving(now: Time, model: usize, sub_cluster: usize) -> CallRecord {
        CallRecord {
            number: 0,
            model,
            sub_cluster,
            client: 0,
            priority: 0,
            cost: CostScale::PROFILED,
            arrived: now,
            admitted: now,
            deadline: now,
            rows: 0,
            extent: Extent::ONE,
            tag: 0,
            tasks: Vec::new(),
            ended: None,
            told: false,
        }
    }
}

/// A batch.
#[derive(Clone, Debug)]
pub struct TaskRecord {
    /// Number in the history, from 0.
    pub number: u64,
    /// Index of its model.
    pub model: usize,
    /// Number of its sub-cluster.
    pub sub_cluster: usize,
    /// The block that it ran.
    pub block: BlockId,
    /// Device of the task.
    pub device: DeviceId,
    /// Lane of the device.
    pub lane: LaneId,
    /// Length to which its members were padded.
    pub length: u32,
    /// Number of rows, or of cells where walks unfold.
    pub rows: u32,
    /// Numbers of the members' calls.
    pub calls: Vec<u64>,
    /// Time of the decision.
    pub decided: Time,
    /// Start of the execution; the time of the decision while it has not been reported.
    pub started: Time,
    /// End of the execution; `None` until it is reported.
    pub finished: Option<Time>,
    /// Time that the profile of the load allows on a device of nominal speed.
    pub profiled: Nanos,
    /// Outcome of the task; `None` until it is reported.
    pub outcome: Option<Outcome>,
    /// True if the task failed and was run again in parts.
    pub rerun: bool,
}

impl TaskRecord {
    /// Duration of the execution; zero until it is reported.
    pub fn took(&self) -> Nanos {
        self.finished.map_or(Nanos::ZERO, |finished| finished - self.started)
    }
}

/// A refusal before the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct RefusalRecord {
    /// Index of the model.
    pub model: usize,
    /// Time of the refusal.
    pub at: Time,
    /// The reason.
    pub why: RefusedWhy,
}

/// The reason of a decision about a call.
#[derive(Clone, Copy, Debug)]
pub struct ReasonRecord {
    /// Time of the decision.
    pub at: Time,
    /// Number of the call that waited or was refused.
    pub call: u64,
    /// Index of its model.
    pub model: usize,
    /// The reason.
    pub why: CallReason,
}

/// The reason for which a call waited or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallReason {
    /// A device was free, but waiting gained more.
    Waited(WaitGain),
    /// A batch of the model of this index went first.
    LostTo(usize),
    /// It would have been answered this long after its deadline.
    Refused(Nanos),
}
