//! Checks that a lane never holds more tasks than its depth, and never runs two at a time. A lane
//! must end its tasks in the order of their starts, lost tasks included.

use crate::observer::{Observer, Run};
use ripieno_base::{TaskId, Time};
use ripieno_sched::Setup;
use std::collections::VecDeque;

/// The tasks on each lane.
#[derive(Debug)]
pub struct DeviceChecker {
    depth: usize,
    lanes: usize,
    /// Number of tasks by device and lane.
    held: Vec<usize>,
    busy_until: Vec<Time>,
    /// Tasks by device and lane that were not cancelled, in the order of their starts.
    order: Vec<VecDeque<TaskId>>,
}

impl DeviceChecker {
    pub(crate) fn new(setup: &Setup) -> DeviceChecker {
        let limits = &setup.limits;
        let all = limits.devices * limits.lanes;
        DeviceChecker {
            depth: limits.depth,
            lanes: limits.lanes,
            held: vec![0; all],
            busy_until: vec![Time::ORIGIN; all],
            order: vec![VecDeque::new(); all],
        }
    }

    /// Checks after a run that no device holds a task.
    pub fn finish(&self) {
        assert!(self.held.iter().all(|&held| held == 0), "tasks were left on devices: {:?}", self.held);
    }

    fn lane(&self, run: &Run<'_>) -> usize {
        let lane = usize::from(run.lane.0);
        assert!(lane < self.lanes, "{:?} has no {:?}", run.device, run.lane);
        usize::from(run.device.0) * self.lanes + lane
    }
}

impl Observer for DeviceChecker {
    fn started(&mut self, now: Time, run: &Run<'_>) {
        let lane = self.lane(run);
        self.held[lane] += 1;
        assert!(self.held[lane] <= self.depth, "{:?} holds more than {} tasks at {now:?}", run.device, self.depth);
        self.order[lane].push_back(run.task);
        // With several lanes the end of a task is not known at its start.
        if self.lanes == 1 {
            assert!(run.start >= self.busy_until[lane], "two tasks at a time on {:?} at {now:?}", run.device);
            self.busy_until[lane] = run.end;
        }
    }

    fn cancelled(&mut self, _now: Time, run: &Run<'_>) {
        let lane = self.lane(run);
        self.order[lane].retain(|&task| task != run.task);
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        let lane = self.lane(run);
        self.held[lane] -= 1;
        let first = self.order[lane].front().copied();
        let cancelled = !self.order[lane].contains(&run.task);
        assert!(cancelled || first == Some(run.task), "{:?} ended at {now:?} before {first:?}", run.task);
        if !cancelled {
            self.order[lane].pop_front();
        }
        if self.lanes == 1 {
            if self.held[lane] == 0 {
                self.busy_until[lane] = self.busy_until[lane].min(now);
            }
        } else if now == run.end {
            assert!(run.start >= self.busy_until[lane], "two tasks at a time on {:?} at {now:?}", run.lane);
            self.busy_until[lane] = now;
        }
    }
}
