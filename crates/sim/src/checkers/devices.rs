//! Never more tasks on a device than its depth, none on a device that is not there, never two at a time.

use crate::observer::{Observer, Run};
use ripieno_base::Time;
use ripieno_sched::Setup;

/// Counts the tasks on each device.
#[derive(Debug)]
pub struct Devices {
    depth: usize,
    held: Vec<usize>,
    busy_until: Vec<Time>,
}

impl Devices {
    pub(crate) fn new(setup: &Setup) -> Devices {
        let devices = setup.limits.devices;
        Devices { depth: setup.limits.depth, held: vec![0; devices], busy_until: vec![Time::ORIGIN; devices] }
    }

    /// After a run no device may hold a task.
    pub fn finish(&self) {
        assert!(self.held.iter().all(|&held| held == 0), "tasks were left on devices: {:?}", self.held);
    }
}

impl Observer for Devices {
    fn started(&mut self, now: Time, run: &Run<'_>) {
        let device = run.device.index();
        self.held[device] += 1;
        assert!(self.held[device] <= self.depth, "{:?} holds more than {} tasks at {now:?}", run.device, self.depth);
        assert!(run.start >= self.busy_until[device], "two tasks at a time on {:?} at {now:?}", run.device);
        self.busy_until[device] = run.end;
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        let device = run.device.index();
        self.held[device] -= 1;
        if self.held[device] == 0 {
            self.busy_until[device] = self.busy_until[device].min(now);
        }
    }
}
