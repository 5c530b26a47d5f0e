//! One server made of several machines.
//!
//! The roles of docs/internals/adr/0025: a [`ClusterScheduler`] runs the engine of
//! `ripieno-runtime` over remote devices, a [`Backend`] is such a device, and a [`Frontend`] takes
//! the place of the engine towards clients. The protocol between them is in [`plane`].
//!
//! [`handover`] keeps one central scheduler in command of all backends, and puts a spare in its
//! place within milliseconds when it fails (docs/internals/adr/0026).

mod backend;
mod credentials;
mod description;
mod frontend;
pub mod handover;
mod offer;
mod placement;
pub mod plane;
mod scheduler;

pub use backend::{Backend, BackendModel, BackendModels, DeviceUsage, ModelCalls, OnOrder, PlannedModels, StopSignal};
pub use description::{ModelDescription, TensorDescription};
pub use frontend::{Frontend, FrontendConfig, OnModels};
pub use offer::{OfferedModel, encode_offers};
pub use placement::{MAX_SUB_CLUSTERS, PlacementPlan, PlannedSubCluster};
pub use ripieno_runtime::DelayPercentiles;
pub use scheduler::{
    BackendDelays, BackendHolding, ClusterScheduler, InitialPlan, OnServing, SchedulerConfig, ServedCluster,
    StartEngine, StartedEngine,
};

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random number that is unique across processes: std seeds its hash maps from the
/// system's randomness.
fn random_id() -> u64 {
    RandomState::new().build_hasher().finish()
}
