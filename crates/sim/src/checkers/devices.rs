//! Checks that a lane never holds more tasks than its depth, never runs two at a time and ends them
//! in the order of their starts, and that an absent device gets none.

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
    /// Tasks by device and lane, in the order of their starts; empty where ends are known at the
    /// start.
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
            order: vec![VecDeque::new(); if limits.lanes > 1 { all } else { 0 }],
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

    fn check_order(&mut self, now: Time, lane: usize, run: &Run<'_>) {
        let at = self.order[lane].iter().position(|&task| task == run.task).expect("what ends was started");
        self.order[lane].remove(at);
        // A cancelled or lost task has no end of its own.
        if now == run.end {
            assert!(at == 0, "{:?} ended at {now:?} before an earlier task of {:?}", run.task, run.lane);
            assert!(run.start >= self.busy_until[lane], "two tasks at a time on {:?} at {now:?}", run.lane);
            self.busy_until[lane] = now;
        }
    }
}

impl Observer for DeviceChecker {
    fn started(&mut self, now: Time, run: &Run<'_>) {
        let lane = self.lane(run);
        self.held[lane] += 1;
        assert!(self.held[lane] <= self.depth, "{:?} holds more than {} tasks at {now:?}", run.device, self.depth);
        match self.order.get_mut(lane) {
            Some(order) => order.push_back(run.task),
            None => {
                assert!(run.start >= self.busy_until[lane], "two tasks at a time on {:?} at {now:?}", run.device);
                self.busy_until[lane] = run.end;
            }
        }
    }

    fn done(&mut self, now: Time, run: &Run<'_>) {
        let lane = self.lane(run);
        self.held[lane] -= 1;
        if !self.order.is_empty() {
            self.check_order(now, lane, run);
        } else if self.held[lane] == 0 {
            self.busy_until[lane] = self.busy_until[lane].min(now);
        }
    }
}
