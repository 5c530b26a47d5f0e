//! Devices, tasks in flight, and the ids under which the driver knows these.

use crate::Action;
use crate::tables::cohorts::CohortId;
use ripieno_base::{DeviceId, ModelId, Nanos, Permille, TaskId, Time};

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

    /// Holds a task that starts, behind the running one if there is one; returns its place.
    pub(super) fn hold_task(&mut self, task: impl FnOnce(usize) -> TaskInFlight) -> usize {
        let place = self.running.map_or(0, |running| 1 - running.place);
        let task = Some(task(place));
        if self.running.is_none() {
            self.running = task;
        } else {
            self.ahead = task;
        }
        place
    }
}

/// A task in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskInFlight {
    /// Id of the task in the table of its kind: batches or cells.
    pub(super) task: TaskId,
    /// Index of the task among the tasks that the device holds.
    pub(super) place: usize,
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

/// Translation of task ids, since batches and cells number their tasks independently. The driver
/// knows a task by its device and its place there. Holds the largest number of tasks of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPlaces(pub(super) usize);

impl TaskPlaces {
    pub(super) fn id(self, device: DeviceId, place: usize) -> TaskId {
        TaskId((device.index() * self.0 + place) as u32)
    }

    pub(super) fn device(self, task: TaskId) -> DeviceId {
        DeviceId((task.index() / self.0) as u16)
    }
}

/// Returns a start under another id.
pub(super) fn with_id(start: Action, task: TaskId) -> Action {
    match start {
        Action::Start { model, block, device, lane, length, not_before, .. } => {
            Action::Start { task, model, block, device, lane, length, not_before }
        }
        other => unreachable!("{other:?} starts nothing"),
    }
}
