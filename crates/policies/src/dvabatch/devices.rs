//! Devices and their lanes: running tasks, the share of the device that they use, and their
//! remaining time.

use super::pipeline::PipelineRun;
use super::rules::{Busy, WHOLE};
use ripieno_base::{LaneId, ModelId, Nanos, Time};
use ripieno_sched::tables::devices;

/// A lane of a device, and the model whose batch and its parts run on it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    /// Model whose batch has the lane; `None` while the lane is free.
    pub(super) owner: Option<ModelId>,
    /// The running task.
    pub(super) run: Option<PipelineRun>,
    /// Share of the device that the task can use.
    pub(super) share: u32,
    /// Mean share of the batch from the task's stage on.
    pub(super) mean_share: u32,
    /// Rows of the batch.
    pub(super) rows: usize,
    /// Expected end of the batch without interruptions.
    pub(super) ends: Time,
}

pub(super) type DvaDevice = devices::DeviceState<LaneDevice>;

/// State of a device.
#[derive(Debug)]
pub(super) struct LaneDevice {
    /// True if the device has lost its tasks; nothing starts until all of them have ended.
    pub(super) lost: bool,
    /// The lanes of the device.
    pub(super) lanes: Vec<Lane>,
}

/// Work of a device, by lanes.
pub(super) trait DeviceLanes {
    /// Returns whether batches may start there.
    fn is_open(&self) -> bool;

    fn runs(&self) -> bool;

    fn is_idle(&self) -> bool;

    fn free_lane(&self) -> Option<LaneId>;

    /// Returns the total share that the running tasks can use.
    fn shares(&self) -> u32;

    /// Returns the remaining profiled time of each running lane.
    fn left(&self, now: Time) -> impl Iterator<Item = Nanos>;

    /// Returns the running batches in profiled time.
    fn busy(&self, now: Time) -> impl Iterator<Item = Busy>;

    /// Returns the profiled time until all lanes are free.
    fn rest(&self, now: Time) -> Nanos;

    /// Returns whether a task of this share would slow down no other: nothing runs, or there is
    /// room for both.
    fn has_room(&self, share: u32) -> bool;
}

impl DeviceLanes for DvaDevice {
    fn is_open(&self) -> bool {
        self.present && !self.lost
    }

    fn runs(&self) -> bool {
        self.lanes.iter().any(|lane| lane.run.is_some())
    }

    fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.owner.is_none())
    }

    fn free_lane(&self) -> Option<LaneId> {
        self.lanes.iter().position(|lane| lane.owner.is_none()).map(|lane| LaneId(lane as u16))
    }

    fn shares(&self) -> u32 {
        self.lanes.iter().filter(|lane| lane.run.is_some()).map(|lane| lane.share).sum()
    }

    fn left(&self, now: Time) -> impl Iterator<Item = Nanos> {
        let running = self.lanes.iter().filter(|lane| lane.run.is_some());
        running.map(move |lane| self.by_profile((lane.ends - now).max(Nanos::ZERO)))
    }

    fn busy(&self, now: Time) -> impl Iterator<Item = Busy> {
        let running = self.lanes.iter().filter(|lane| lane.run.is_some());
        running.zip(self.left(now)).map(|(&Lane { share, mean_share, rows, .. }, left)| Busy {
            left,
            share,
            mean_share,
            rows,
        })
    }

    fn rest(&self, now: Time) -> Nanos {
        self.left(now).max().unwrap_or(Nanos::ZERO)
    }

    fn has_room(&self, share: u32) -> bool {
        !self.runs() || self.shares() + share <= WHOLE
    }
}
