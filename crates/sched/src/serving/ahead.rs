//! Tasks that are sent ahead: the next one is at the device when the running one ends.
//!
//! A device in another process would otherwise be idle while the end of a task is reported, the
//! next task is sent, and its inputs are fetched. A GPU would be idle while the host answers a
//! batch and gathers the next. So the next batch is formed earlier by the time that this takes for
//! a batch like the running one. It is the batch that would start when the device is free. If that
//! batch would still wait for further requests then, none is sent.
//!
//! A full step of cells is queued behind a short one, also on devices of this process. Waiting for
//! the scheduler after each short step would cost a noticeable part of the capacity.

use super::devices::TaskInFlight;
use super::{UnifiedEntry, UnifiedScheduler};
use crate::Outbox;
use ripieno_base::{DeviceId, Nanos, Time};

/// Profiled duration of a step below which the next one is queued behind it. Handing over a task
/// takes some 0.1 ms on a real engine.
const SHORT_STEP: Nanos = Nanos::from_millis(1);
/// Round trips that this duration is longer by, for devices in other processes: the same ratio.
const SHORT_ROUND_TRIPS: i64 = 10;

impl UnifiedScheduler {
    /// Starts tasks behind running ones.
    pub(super) fn start_ahead(&mut self, now: Time, out: &mut Outbox) {
        let has_cells = self.cells.models().any(|(_, served)| served.live > 0);
        let waits = |of: &UnifiedEntry| of.queue.any().is_some() && !self.network.with(of.gather).is_none();
        let has_batches = self.models.iter().any(|(_, of)| waits(of));
        if self.tasks_a_device < 2 || !(has_cells || has_batches) {
            return;
        }
        for device in self.devices.ids() {
            let state = &self.devices[device];
            let takes = state.present || self.cells.drains(device);
            let Some(running) = state.running.filter(|_| takes && state.ahead.is_none()) else { continue };
            if running.cohort.is_none() {
                if has_cells && running.profiled < SHORT_STEP + self.network.control * (2 * SHORT_ROUND_TRIPS) {
                    self.start_next(now, device, 1, out);
                }
            } else if has_batches && self.ends_batch(running) && state.held.len() == 1 {
                let (way, free_at) = (self.way(device), state.free_at);
                if way <= Nanos::ZERO {
                    continue;
                }
                let from = free_at - way;
                if from <= now {
                    if self.start_next(now, device, 1, out) {
                        // The batch may leave a request at the head that is hopeless now.
                        self.drop_hopeless(now);
                    }
                } else {
                    self.wakeup = self.wakeup.min(from);
                }
            }
        }
    }

    /// Expects the end of a batch that was sent ahead and begins now.
    pub(super) fn begin_ahead(&mut self, now: Time, device: DeviceId) {
        let Some(cohort) = self.devices[device].running.and_then(|running| running.cohort) else { return };
        let held = self.cohorts.get(cohort);
        let served = self.models.get(held.model);
        let (whole, _) = served.load.of_blocks(&served.model, held.block, held.rows, held.length);
        let state = &mut self.devices[device];
        state.free_at = now + state.takes(whole);
    }

    /// Returns whether a task is the last block of a batch.
    fn ends_batch(&self, task: TaskInFlight) -> bool {
        let block = |cohort| self.cohorts.get(cohort).block.index();
        let last = self.models.get(task.model).model.blocks.len() - 1;
        task.cohort.is_some_and(|cohort| block(cohort) == last)
    }

    /// Returns the time from a decision until the device has gathered a batch like the running one
    /// and, once that has ended, the scheduler hears of it.
    pub(super) fn way(&self, device: DeviceId) -> Nanos {
        let running = self.devices[device].running.and_then(|running| running.cohort);
        running.map_or(Nanos::ZERO, |cohort| {
            let held = self.cohorts.get(cohort);
            let arrives = self.network.with(self.models.get(held.model).gather);
            arrives.lead(held.rows) + self.network.control
        })
    }
}
