//! Histograms, goodput, tables and JSON, for live and simulated runs.
//!
//! One [`Collector`] takes the events of a run from either driver, so that a number printed by
//! `simulate` means the same as one printed by `bench` or the live demo. Recording never allocates,
//! since that would disturb the measured run: the tables are sized at construction.

mod advice;
pub mod chart;
mod collector;
pub mod html;
mod latencies;
pub mod plot;
mod search;
mod summary;
mod table;
mod windows;

pub use advice::{BusyDevices, ModelTotals, Reading, ScalingRule, Signals, Totals, advice};
pub use collector::{Collector, ObservationWindow};
pub use latencies::Latencies;
pub use search::{RateTrial, Search, SearchResult, search};
pub use summary::{Figures, ModelFigures, RunInfo, Summary, UnfoldedFigures, models_table, policies_table};
pub use table::{Format, Table, number, percent};
pub use windows::{ModelWindow, WindowFigures, windows_table};
