//! A run as a series of windows of time, for loads that change.
//!
//! A request counts in the window in which it ended, unlike in a [`Summary`](crate::Summary), where
//! it counts by its arrival: these are the signals of an autoscaler, which cannot know the outcome
//! of requests in flight.

use crate::table::{Table, number, percent};
use serde::Serialize;

/// One window of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowFigures {
    /// End of the window, in seconds since the start of the run.
    pub end_s: f64,
    /// Length of the window, in seconds.
    pub span_s: f64,
    /// Requests that arrived, per second.
    pub offered_rps: f64,
    /// Requests answered in time, per second.
    pub goodput_rps: f64,
    /// Requests dropped or answered late, over all that ended.
    pub bad_rate: f64,
    /// Mean number of devices present.
    pub devices: f64,
    /// Devices that ran at least one task.
    pub devices_used: usize,
    /// Mean number of busy devices.
    pub busy_devices: f64,
    /// The fraction of the present devices' time without a task.
    pub idle_fraction: f64,
    /// Number of devices that the signals of this window advise.
    pub desired_devices: usize,
    /// The load by model, in the order of the scenario.
    pub models: Vec<ModelWindow>,
}

/// One model in one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ModelWindow {
    /// Requests that arrived, per second.
    pub offered_rps: f64,
    /// Requests answered in time, per second.
    pub goodput_rps: f64,
    /// Requests dropped or answered late, over all that ended.
    pub bad_rate: f64,
}

/// Returns a table with a row for each window.
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
