//! The model repository: from folders on a disk to models that serve.
//!
//! Four steps, each of which knows nothing of the next: [`scan`](mod@scan) finds models by their names, [`config`] reads what
//! their owners say, [`plan`] settles what is to be loaded for this server's device, [`load`] reads, checks, profiles and
//! warms up. [`live`] does it for a running server, [`inspect`](mod@inspect) for the command line. Front ends see none of that: they
//! look models up in the [`registry`], and ask for changes by its trait.
//!
//! Whatever goes wrong with a model is one line of text that names the file, the key and the fix, and stays with that
//! model: nothing here stops at the first mistake. Nothing slow runs on a thread that serves.

mod assembly;
mod batching;
mod borders;
mod brought;
pub mod cache;
pub mod config;
pub mod edge;
pub mod ensemble;
#[cfg(test)]
mod fixture;
pub mod found;
pub mod inspect;
pub mod labels;
pub mod live;
pub mod load;
pub mod plan;
pub mod registry;
pub mod report;
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
mod walks;
mod warm_up;

pub use inspect::{inspect, profile};
pub use live::{Control, Host, LiveRepository, Looks};
pub use load::{Loader, Prepared, Profiling};
pub use plan::{EngineProcess, Target};
pub use report::{ModelReport, ProfileReport, Progress};
pub use sample::Sample;
pub use triton::TritonConfig;
pub use walks::{Walker, walks};
