//! Devices and their lanes: what runs, how much of the device it uses, and how long it goes on.

use super::pipeline::PipelineRun;
use super::rules::{Busy, SplitPlan, WHOLE};
use crate::parts::devices;
use ripieno_base::{LaneId, ModelId, Nanos, Time};
use ripieno_model::Model;

/// The share from which on a device counts as used well, where batches can run side by side. Below it, newcomers use what
/// would lie idle.
const FULL: u32 = WHOLE / 5 * 4;

/// A lane of a device, and the model whose batch and its parts run on it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    pub(super) owner: Option<ModelId>,
    pub(super) run: Option<PipelineRun>,
    /// How much of the device the task can use, and its batch on average from here on.
    pub(super) share: u32,
    pub(super) mean_share: u32,
    pub(super) rows: usize,
    /// When its batch would be done if nothing came between.
    pub(super) ends: Time,
}

pub(super) type DvaDevice = devices::DeviceState<LaneDevice>;

/// What is kept of a device.
#[derive(Debug)]
pub(super) struct LaneDevice {
    /// Whether it has lost what it held; nothing starts until all its tasks have ended.
    pub(super) lost: bool,
    pub(super) lanes: Vec<Lane>,
}

impl DvaDevice {
    /// Whether something may start there.
    pub(super) fn is_open(&self) -> bool {
        self.present && !self.lost
    }

    pub(super) fn runs(&self) -> bool {
        self.lanes.iter().any(|lane| lane.run.is_some())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.owner.is_none())
    }

    pub(super) fn free_lane(&self) -> Option<LaneId> {
        self.lanes.iter().position(|lane| lane.owner.is_none()).map(|lane| LaneId(lane as u16))
    }

    /// How much of it the running tasks can use.
    pub(super) fn shares(&self) -> u32 {
        self.lanes.iter().filter(|lane| lane.run.is_some()).map(|lane| lane.share).sum()
    }

    /// What is left by the profiles of all that its lanes run.
    pub(super) fn left(&self, now: Time) -> impl Iterator<Item = Nanos> {
        let running = self.lanes.iter().filter(|lane| lane.run.is_some());
        running.map(move |lane| self.by_profile((lane.ends - now).max(Nanos::ZERO)))
    }

    /// What its lanes run, by the profiles.
    pub(super) fn busy(&self, now: Time) -> impl Iterator<Item = Busy> {
        let running = self.lanes.iter().filter(|lane| lane.run.is_some());
        running.zip(self.left(now)).map(|(&Lane { share, mean_share, rows, .. }, left)| Busy {
            left,
            share,
            mean_share,
            rows,
        })
    }

    /// When another lane is through with what it runs, by the profiles.
    pub(super) fn next_end(&self, now: Time) -> Time {
        self.left(now).min().map_or(Time::NEVER, |left| now + left)
    }

    /// How long until all lanes have been through with what they run.
    pub(super) fn rest(&self, now: Time) -> Nanos {
        self.left(now).max().unwrap_or(Nanos::ZERO)
    }

    /// Whether newcomers had better not join a batch that is not the only one that could run here: because they fit beside
    /// it, or because it and what runs beside it use the device as well as a larger batch would.
    pub(super) fn suits_apart(
        &self,
        model: &Model,
        plan: &SplitPlan,
        stage: usize,
        rows: usize,
        new_rows: usize,
    ) -> bool {
        let used = self.shares() + plan.share(model, stage, rows, 1);
        let fits = self.free_lane().is_some() && used + plan.share(model, 0, new_rows, 1) <= WHOLE;
        self.lanes.len() > 1 && (fits || used >= FULL)
    }

    /// Whether a task of this share would slow down nobody: nothing runs, or there is room for both.
    pub(super) fn has_room(&self, share: u32) -> bool {
        !self.runs() || self.shares() + share <= WHOLE
    }
}
