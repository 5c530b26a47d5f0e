//! Devices and their tasks in flight.

use crate::tables::cohorts::CohortId;
use ripieno_base::{ModelId, Nanos, Permille, TaskId, Time};

/// State of a device.
#[derive(Clone, Debug)]
pub(super) struct UnifiedDevice {
    /// The running task.
    pub(super) running: Option<TaskInFlight>,
    /// A step of cells or a batch that is queued behind the running task.
    pub(super) ahead: Option<TaskInFlight>,
    /// Cohorts on the device, including the running one; later ones catch up with earlier ones.
    pub(super) held: Vec<CohortId>,
    /// Expected end of the batch or step that started last.
    pub(super) free_at: Time,
}

impl UnifiedDevice {
    /// Returns the time until the device is free. A task that is late is expected to take as much
    /// longer as it is late already.
    pub(super) fn frees_in(&self, now: Time) -> Nanos {
        match self.running.is_none() && self.held.is_empty() {
            true => Nanos::ZERO,
            false => Nanos((self.free_at - now).0.abs()),
        }
    }

    /// Holds a task that starts, behind the running one if there is one.
    pub(super) fn hold_task(&mut self, task: TaskInFlight) {
        let place = if self.running.is_none() { &mut self.running } else { &mut self.ahead };
        *place = Some(task);
    }
}

/// A task in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskInFlight {
    /// Id of the task.
    pub(super) task: TaskId,
    /// The cohort that runs; `None` for a step of cells.
    pub(super) cohort: Option<CohortId>,
    /// Model of the task.
    pub(super) model: ModelId,
    /// Start of the task.
    pub(super) started: Time,
    /// Profiled duration of the task; zero if the profile was replaced meanwhile.
    pub(super) profiled: Nanos,
    /// Part of the task's device time that the best batches would need, in thousandths.
    pub(super) best_part: Permille,
}
