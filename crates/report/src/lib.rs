//! Histograms, goodput, tables and JSON; the same live and simulated.
//!
//! One [`Collector`] takes the facts of a run from either driver, so that a number printed by `simulate` means the same
//! as one printed by `bench` or the live demo. Recording never allocates: the tables are sized at construction, because
//! a recorder that stops to grow would disturb the run that it watches.

mod advice;
mod collector;
mod latencies;
pub mod plot;
mod search;
mod summary;
mod table;
mod windows;

pub use advice::{ModelTotals, Reading, Rule, Signals, Totals, advice};
pub use collector::{Collector, Window};
pub use latencies::Latencies;
pub use search::{Found, Search, Trial, search};
pub use summary::{Figures, ModelFigures, RunInfo, Summary, UnfoldedFigures, models_table, policies_table};
pub use table::{Format, Table, number, percent};
pub use windows::{ModelWindow, WindowFigures, windows_table};
