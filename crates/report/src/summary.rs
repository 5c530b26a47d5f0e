//! The summary of a run: the fields that `--format json` prints.

use crate::table::{Table, number, percent};
use crate::windows::WindowFigures;
use serde::Serialize;

/// The figures of one model, or of a whole run.
///
/// Latencies cover all answers, late ones included; a dropped request has none. They are null when
/// nothing was answered. Rates are per second of the observed window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Requests that arrived, per second.
    pub offered_rps: f64,
    /// Requests answered in time, per second.
    pub goodput_rps: f64,
    /// Requests dropped or answered late, over all requests; 0 if there were none.
    pub bad_rate: f64,
    /// Mean latency.
    pub mean_ms: Option<f64>,
    /// Median latency.
    pub p50_ms: Option<f64>,
    /// 90th percentile of the latency.
    pub p90_ms: Option<f64>,
    /// 99th percentile of the latency.
    pub p99_ms: Option<f64>,
    /// Rows in a batch: the mean over batches, each counting once whatever its size.
    pub mean_batch: f64,
    /// Rows in a batch: the median over batches, each counting once whatever its size.
    pub median_batch: f64,
    /// Time that devices spent on tasks, over devices × window; above 1 only where a device runs
    /// several lanes.
    pub busy_fraction: f64,
    /// Devices that ran at least one task in the window.
    pub devices_used: usize,
    /// Number of requests.
    pub requests: u64,
    /// Requests that were never answered.
    pub dropped: u64,
    /// Requests answered after their deadline.
    pub late: u64,
}

/// Additional figures of runs with models that unfold. Times are null when nothing was answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UnfoldedFigures {
    /// Requests answered within the observed window, per second; late ones too, whenever they
    /// arrived.
    pub answered_rps: f64,
    /// Time of the last answer, in seconds since the start of the run.
    pub last_answer_s: f64,
    /// Median time from arrival to the start of the first cell.
    pub p50_queue_ms: Option<f64>,
    /// 90th percentile of that time.
    pub p90_queue_ms: Option<f64>,
    /// 99th percentile of that time.
    pub p99_queue_ms: Option<f64>,
    /// Median time from the start of the first cell to the answer.
    pub p50_compute_ms: Option<f64>,
    /// 90th percentile of that time.
    pub p90_compute_ms: Option<f64>,
    /// 99th percentile of that time.
    pub p99_compute_ms: Option<f64>,
    /// Rows of all tasks; each step or node of a member is a row.
    pub rows: u64,
    /// Rows that were padding, or steps after the end that had been queued ahead.
    pub wasted_rows: u64,
    /// Number of tasks.
    pub tasks: u64,
    /// Tasks with the members of the previous task on their device, in the same order.
    pub tasks_without_copy: u64,
}

/// The figures of one model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelFigures {
    /// The model's name.
    pub name: String,
    /// The model's figures; the busy fraction is its share of all devices' time.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Properties of a run that the driver knows and the collector does not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunInfo {
    /// The policy's name.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// Number of events processed.
    pub events: u64,
    /// Wall time of the run, in seconds.
    pub wall_s: f64,
    /// Mean number of devices, if it changed during the run.
    pub mean_devices: Option<f64>,
}

/// The summary of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The policy's name.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// The figures of all models together.
    #[serde(flatten)]
    pub total: Figures,
    /// The highest bad rate of any model, which the goodput search uses.
    pub worst_bad_rate: f64,
    /// The fraction of the present devices' time without a task.
    pub idle_fraction: f64,
    /// Number of devices that the load needs by [`advice`](crate::advice), from the bad rate and
    /// the idle fraction.
    pub desired_devices: usize,
    /// Number of events processed.
    pub events: u64,
    /// Wall time of the run, in seconds.
    pub wall_s: f64,
    /// The figures of each model.
    pub models: Vec<ModelFigures>,
    /// Figures of models that unfold, if there is one.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub unfolded: Option<UnfoldedFigures>,
    /// The run by windows of time, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowFigures>,
}

const FIGURE_HEADERS: [&str; 10] = [
    "offered/s",
    "goodput/s",
    "bad %",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "mean batch",
    "median batch",
    "device busy %",
    "devices used",
];

/// Returns a table with a row for each model, and the total if there are several.
pub fn models_table(summary: &Summary) -> Table {
    let mut table = Table::new(std::iter::once("model").chain(FIGURE_HEADERS));
    for model in &summary.models {
        table.row(figure_cells(&model.name, &model.figures));
    }
    if summary.models.len() > 1 {
        table.row(figure_cells("all", &summary.total));
    }
    table
}

/// Returns a table with a row for each run, to compare policies under the same load.
pub fn policies_table<'a>(summaries: impl IntoIterator<Item = &'a Summary>) -> Table {
    let mut table = Table::new(std::iter::once("policy").chain(FIGURE_HEADERS).chain(["devices desired"]));
    for summary in summaries {
        let mut cells = figure_cells(&summary.policy, &summary.total);
        cells.push(summary.desired_devices.to_string());
        table.row(cells);
    }
    table
}

fn figure_cells(name: &str, figures: &Figures) -> Vec<String> {
    let ms = |latency: Option<f64>| number(latency.unwrap_or(f64::NAN));
    vec![
        name.to_owned(),
        number(figures.offered_rps),
        number(figures.goodput_rps),
        percent(figures.bad_rate),
        ms(figures.p50_ms),
        ms(figures.p90_ms),
        ms(figures.p99_ms),
        number(figures.mean_batch),
        number(figures.median_batch),
        percent(figures.busy_fraction),
        figures.devices_used.to_string(),
    ]
}
