//! A run as a series of windows of time: what a load that changes looks like.
//!
//! Within a window a request counts where it ended, not where it arrived as in a [`Summary`](crate::Summary): these are
//! the signals as an autoscaler sees them, which cannot know the end of what is still under way.

use crate::table::{Table, number, percent};
use serde::Serialize;

/// One window of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowFigures {
    /// When it ended, in seconds since the start of the run.
    pub end_s: f64,
    /// How long it was.
    pub span_s: f64,
    /// Requests that arrived, a second.
    pub offered_rps: f64,
    /// Requests answered in time, a second.
    pub goodput_rps: f64,
    /// Requests dropped or answered late, over all that ended.
    pub bad_rate: f64,
    /// Devices that were there, in the mean.
    pub devices: f64,
    /// Devices that ran at least one task.
    pub devices_used: usize,
    /// Devices kept busy, in the mean.
    pub busy_devices: f64,
    /// The fraction of time that the devices that were there spent on no task.
    pub idle_fraction: f64,
    /// How many devices the signals of this window advise.
    pub desired_devices: usize,
    /// The load by model, in the order of the scenario.
    pub models: Vec<ModelWindow>,
}

/// One model in one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ModelWindow {
    /// Requests that arrived, a second.
    pub offered_rps: f64,
    /// Requests answered in time, a second.
    pub goodput_rps: f64,
    /// Requests dropped or answered late, over all that ended.
    pub bad_rate: f64,
}

/// The windows of a run, one a row.
pub fn windows_table(windows: &[WindowFigures]) -> Table {
    let headers = ["until s", "offered/s", "goodput/s", "bad %", "devices", "used", "busy", "idle %", "desired"];
    let mut table = Table::new(headers);
    for window in windows {
        table.row([
            number(window.end_s),
            number(window.offered_rps),
            number(window.goodput_rps),
            percent(window.bad_rate),
            number(window.devices),
            window.devices_used.to_string(),
            number(window.busy_devices),
            percent(window.idle_fraction),
            window.desired_devices.to_string(),
        ]);
    }
    table
}
