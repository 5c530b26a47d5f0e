//! The model repository: loads models from folders on disk.
//!
//! Four independent steps: [`scan`](mod@scan) finds models by their names, [`config`] reads their
//! settings, [`plan`] decides what to load for the server's device, and [`load`] reads, checks,
//! profiles and warms up. [`live`] does this for a running server, [`inspect`](mod@inspect) for the
//! command line. Servers see only the [`registry`], in which they look models up, and its trait for
//! changes.
//!
//! Every error of a model is one line that names the file, the key and the fix, and affects that
//! model alone. Nothing slow runs on a serving thread.

mod assembly;
mod batch_first;
mod batching;
pub mod cache;
pub mod config;
mod containment;
mod costs;
pub mod edge;
pub mod ensemble;
mod equality;
#[cfg(test)]
mod fixture;
mod foreign;
pub mod inspect;
mod isolation;
pub mod labels;
mod largest_batch;
pub mod live;
pub mod load;
pub mod masked;
mod model_files;
mod open_batch;
pub mod plan;
mod prepared;
mod python;
pub mod registry;
pub mod report;
mod row_verdict;
mod sample;
pub mod scan;
pub mod slicing;
pub mod slicing_check;
pub mod slo;
pub mod staging;
pub mod stats;
#[cfg(test)]
mod tests;
mod text;
pub mod trial;
pub mod triton;
mod uploads;
mod warm_up;

pub use cache::user_cache_folder;
pub use foreign::found_instead;
pub use inspect::{inspect, profile, read};
pub use isolation::EngineProcess;
pub use live::{Host, LiveRepository, ModelControl, RepositoryPoll};
pub use load::{Loader, Profiling};
pub use plan::LoadTarget;
pub use prepared::PreparedModel;
pub use report::{MeasureProgress, ModelReport, NOT_TRIED, ProfileReport};
pub use sample::Sample;
pub use triton::TritonConfig;
