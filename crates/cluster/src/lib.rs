//! Many machines as one server.
//!
//! The roles of docs/adr/0025: a [`Scheduler`] runs the engine of `ripieno-runtime` over devices elsewhere, a
//! [`Backend`] is such a device, a [`Frontend`] stands where an engine would before clients. What they say to each
//! other is in [`plane`].
//!
//! [`handover`] keeps one central scheduler in command of all backends, and puts a spare in its place within milliseconds when it
//! ends (docs/adr/0026). The [`planner`] says how many devices a load needs, and which models share which. It decides every few
//! minutes and never about a request, so it knows profiles, rates and sizes, and neither schedulers nor sockets.

mod backend;
mod description;
mod frontend;
pub mod handover;
pub mod plane;
pub mod planner;
mod scheduler;

pub use backend::{Backend, BackendModel, OnOrder, Stop};
pub use description::{Description, Spec};
pub use frontend::{Frontend, FrontendConfig, OnModels};
pub use scheduler::{OnServing, Scheduler, SchedulerConfig, Start, Started};

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number that no other process has: std keys its hash maps by what the system gives at random.
fn fresh() -> u64 {
    RandomState::new().build_hasher().finish()
}
