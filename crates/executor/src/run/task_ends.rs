//! The end of a task after its run, on either thread of its lane: its result, and the report.

use crate::contract::account::DeviceCounters;
use crate::run::abort::Abort;
use crate::run::chain_state::WalkSlots;
use crate::run::lane_queue::LaneQueue;
use crate::run::rerun::{CompletedTask, catch_panic};
use crate::run::worker::Executed;
use crate::{ExecError, Loss, Sink, Task, TaskResult};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everything that the end of a task takes, on either thread of a lane.
pub(crate) struct TaskEnds {
    pub(crate) queue: Arc<LaneQueue>,
    pub(crate) abort: Arc<Abort>,
    pub(crate) slots: WalkSlots,
    pub(crate) account: Arc<DeviceCounters>,
    /// See `HostOptions::on_gpu`.
    pub(crate) on_gpu: bool,
    pub(crate) sink: Sink,
}

/// A task whose run has ended.
pub(crate) struct EndedRun {
    pub(crate) task: Task,
    pub(crate) executed: Result<Executed, ExecError>,
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    /// Time for which the end of the task before was awaited.
    pub(crate) waited: Duration,
    /// The loss if the engine's process was missing or ended.
    pub(crate) lost: Option<Loss>,
}

/// A result that its receiver has.
pub(crate) struct Told {
    /// Whether a next task is expected soon: a member continues with another block.
    pub(crate) soon: bool,
    /// Whether the lane held its next task.
    pub(crate) held_next: bool,
}

impl TaskEnds {
    /// Finishes a task that has run.
    pub(crate) fn result(&self, run: EndedRun) -> TaskResult {
        let EndedRun { task, executed, started, ended, waited, lost } = run;
        let (done, lost, host_time) = match executed {
            Ok(Executed::Completed(done)) => (Ok(done), lost, Duration::ZERO),
            Ok(Executed::Ran { ran, host_time, .. }) => {
                let (done, lost) = match catch_panic(|| Ok(ran.finish(&task, &self.slots, &self.account))) {
                    Ok(Ok(done)) => (Ok(done), lost),
                    Ok(Err((cause, loss))) => (Err(cause), loss.or(lost)),
                    Err(panicked) => (Err(panicked), lost),
                };
                (done, lost, if self.on_gpu { host_time } else { Duration::ZERO })
            }
            Err(cause) => (Err(cause), lost, Duration::ZERO),
        };
        let (outcome, rerun) = match done {
            Ok(CompletedTask { progress, rerun }) => (Ok(progress), rerun),
            Err(cause) => (Err(cause), None),
        };
        let lost = lost.filter(|_| outcome.is_err());
        // A GPU is free once the run has ended, and another device once this thread is.
        let finished = if self.on_gpu { ended } else { Instant::now() - waited };
        TaskResult { id: task.id, outcome, rerun, lost, started, finished, host_time, holds_next: false }
    }

    /// Reports the result of a task, after which the lane holds `left` ones.
    pub(crate) fn report(&self, result: TaskResult, left: usize) -> Told {
        let id = result.id;
        self.abort.release(id);
        let held_next = left > 0;
        let result = TaskResult { holds_next: held_next, ..result };
        let soon = result.outcome.iter().flatten().any(|progress| !progress.ended && progress.failed.is_none());
        if catch_unwind(AssertUnwindSafe(|| (self.sink)(result))).is_err() {
            tracing::error!(task = id.0, "the receiver of a result panicked");
        }
        Told { soon, held_next }
    }
}
