//! Times of the tasks of each lane: when the lane became idle, when its tasks are expected to end,
//! and the time that the batches of its device cover.

use crate::devices::coverage::Coverage;
use ripieno_base::{DeviceId, LaneId, Nanos, TaskId, Time};
use ripieno_model::{ExpectedEnds, LaneTask};

/// The lanes of all devices.
pub(crate) struct LaneTimes {
    /// Number of lanes of each device.
    lanes: usize,
    /// End of the last task of each lane, device by device.
    idle_since: Vec<Time>,
    /// Expected ends of the tasks on each device; empty if devices have one lane.
    shared: Vec<ExpectedEnds>,
    /// Busy time, by device.
    coverage: Vec<Coverage>,
}

/// A task that has ended on a lane.
pub(crate) struct LaneEnd {
    pub(crate) task: TaskId,
    pub(crate) device: DeviceId,
    pub(crate) lane: LaneId,
    /// Earliest time at which the task could begin.
    pub(crate) not_before: Time,
    /// Execution time on this device that the profile predicts.
    pub(crate) latency: Nanos,
    pub(crate) started: Time,
    pub(crate) finished: Time,
}

/// Times of a task that has ended.
pub(crate) struct EndTimes {
    /// End of the task that the profile predicted.
    pub(crate) expected: Time,
    /// Part of the execution that no other batch of the device covers.
    pub(crate) covered: Nanos,
    /// Whether no other lane of the device has worked during the execution.
    pub(crate) alone: bool,
}

impl LaneTimes {
    pub(crate) fn new(devices: usize, lanes: usize) -> LaneTimes {
        LaneTimes {
            lanes,
            idle_since: vec![Time::ORIGIN; devices * lanes],
            shared: (0..devices).filter(|_| lanes > 1).map(|_| ExpectedEnds::new(lanes)).collect(),
            coverage: (0..devices).map(|_| Coverage::new(lanes)).collect(),
        }
    }

    /// Returns the number of lanes of each device.
    pub(crate) fn a_device(&self) -> usize {
        self.lanes
    }

    /// Returns the index of a lane among the lanes of all devices.
    pub(crate) fn index(&self, device: DeviceId, lane: LaneId) -> usize {
        device.index() * self.lanes + lane.index()
    }

    /// Returns the indices of all lanes of a device.
    pub(crate) fn of(&self, device: DeviceId) -> std::ops::Range<usize> {
        device.index() * self.lanes..(device.index() + 1) * self.lanes
    }

    /// Sets all lanes of a new device idle.
    pub(crate) fn join(&mut self, now: Time, device: DeviceId) {
        let lanes = self.of(device);
        self.idle_since[lanes].fill(now);
        if let Some(due) = self.shared.get_mut(device.index()) {
            *due = ExpectedEnds::new(self.lanes);
        }
    }

    pub(crate) fn start(&mut self, now: Time, device: DeviceId, lane: LaneId, task: LaneTask) {
        if let Some(due) = self.shared.get_mut(device.index()) {
            due.start(now, lane, task);
        }
    }

    pub(crate) fn end(&mut self, now: Time, end: &LaneEnd) -> EndTimes {
        let (device, lane) = (end.device.index(), self.index(end.device, end.lane));
        // A queued task cannot begin before the previous task of its lane has ended.
        let idle_since = std::mem::replace(&mut self.idle_since[lane], end.finished);
        let expected = match self.shared.get_mut(device) {
            Some(due) => due.end(now, end.task).1,
            None => end.not_before.max(idle_since) + end.latency,
        };
        let alone = self.of(end.device).all(|at| at == lane || self.idle_since[at] <= end.started);
        EndTimes { expected, covered: self.coverage[device].add(end.started, end.finished), alone }
    }
}
