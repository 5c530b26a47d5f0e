//! Devices and the tasks that run on their lanes.

use super::pipeline::PipelineRun;
use ripieno_base::{LaneId, ModelId};
use ripieno_sched::tables::devices;

pub(super) type DvaDevice = devices::DeviceState<LaneDevice>;

/// State of a device.
#[derive(Debug)]
pub(super) struct LaneDevice {
    /// True if the device has lost its tasks; nothing starts until all of them have ended.
    pub(super) lost: bool,
    /// The running task of each lane, with its model.
    pub(super) lanes: Vec<Option<(ModelId, PipelineRun)>>,
}

/// Lanes of a device.
pub(super) trait DeviceLanes {
    /// Returns whether batches may start there.
    fn is_open(&self) -> bool;

    fn runs(&self) -> bool;

    fn free_lane(&self) -> Option<LaneId>;
}

impl DeviceLanes for DvaDevice {
    fn is_open(&self) -> bool {
        self.present && !self.lost
    }

    fn runs(&self) -> bool {
        self.lanes.iter().any(Option::is_some)
    }

    fn free_lane(&self) -> Option<LaneId> {
        self.lanes.iter().position(Option::is_none).map(|lane| LaneId(lane as u16))
    }
}
