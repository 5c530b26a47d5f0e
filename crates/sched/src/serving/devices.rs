//! Devices and their tasks in flight.

use crate::Limits;
use crate::tables::cohorts::{CohortId, Cohorts};
use crate::tables::devices::Devices;
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

impl Devices<UnifiedDevice> {
    /// Returns the number of present devices without a task.
    pub(super) fn free(&self) -> usize {
        self.iter().filter(|(_, device)| device.present && device.running.is_none()).count()
    }

    /// Returns the time until the next device is free, other than `except`; `Nanos::MAX` if there
    /// is none.
    pub(super) fn frees_in(&self, now: Time, except: Option<DeviceId>) -> Nanos {
        let mut soonest = Nanos::MAX;
        for (_, other) in self.iter().filter(|(id, other)| Some(*id) != except && other.present) {
            soonest = soonest.min(other.frees_in(now));
            if soonest == Nanos::ZERO {
                break;
            }
        }
        soonest
    }

    /// Returns whether a device runs a batch, not a step of cells.
    pub(super) fn runs_batch(&self, device: DeviceId) -> bool {
        self[device].running.is_some_and(|running| running.cohort.is_some())
    }

    /// Returns whether a device runs a batch of the model.
    pub(super) fn runs_model(&self, device: DeviceId, id: ModelId) -> bool {
        self[device].running.is_some_and(|running| running.cohort.is_some() && running.model == id)
    }

    /// Returns whether a device holds batches of the model.
    pub(super) fn holds_model(&self, cohorts: &Cohorts<()>, device: DeviceId, id: ModelId) -> bool {
        self[device].held.iter().any(|&held| cohorts.get(held).model == id)
    }

    /// Forgets the profiled durations of a model's tasks in flight.
    pub(super) fn forget_profile(&mut self, model: ModelId) {
        for device in self.ids() {
            let UnifiedDevice { running, ahead, .. } = &mut self[device].own;
            for task in [running, ahead].into_iter().flatten().filter(|task| task.model == model) {
                task.profiled = Nanos::ZERO;
            }
        }
    }
}

impl UnifiedDevice {
    /// Creates a device without tasks.
    pub(super) fn idle(limits: &Limits) -> UnifiedDevice {
        let held = Vec::with_capacity(limits.requests + 1);
        UnifiedDevice { running: None, ahead: None, held, free_at: Time::ORIGIN }
    }

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
    /// Part of the task's device time that the best batches would need.
    pub(super) best_part: Permille,
}
