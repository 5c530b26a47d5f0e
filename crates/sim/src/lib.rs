//! The simulator, which drives schedulers in virtual time.
//!
//! [`World`] owns time, emulated devices and arrivals, and feeds them to a scheduler of
//! `ripieno-sched` by the same contract as the live runtime. [`Observer`]s see all events: the
//! statistics, the trace files, and the [`checkers`], which turn every broken promise of the
//! contract into a failure at its instant.
//!
//! [`Scenario`] is the file that users write; [`simulate`] and [`goodput`] are the two commands
//! over it.
//!
//! ```
//! use ripieno_sim::{Scenario, simulate};
//!
//! let model = "[[model]]\nname = 'a'\nslo_ms = 25\nalpha_ms = 1\nbeta_ms = 5\n";
//! let text = format!("rate = 500\nrequests = 2000\n{model}");
//! let scenario = Scenario::parse(&text, "a.toml").unwrap();
//! let summary = simulate(&scenario, None).unwrap();
//! assert!(summary.total.bad_rate < 0.5 && summary.total.p99_ms.unwrap() <= 25.0);
//! ```

mod autoscale;
mod changing;
pub mod checkers;
mod ensembles;
mod jitter;
mod link;
mod meter;
pub mod npu;
mod observer;
mod occupancy;
mod planning;
mod recorded;
mod reports;
mod route;
mod run;
mod scenario;
mod trace;
mod unfolding;
mod world;

pub use autoscale::Autoscale;
pub use changing::ModelLoad;
pub use ensembles::{Budget, SimulatedEnsemble, Whole};
pub use jitter::Jitter;
pub use link::{Delay, Network};
pub use observer::{End, Observer, Run};
pub use occupancy::{Occupancy, OccupancyStep};
pub use planning::{Footprint, Planning};
pub use recorded::Recorded;
pub use route::{Arrival, Route};
pub use run::{Goodput, SimError, goodput, simulate, simulate_at, simulate_with};
pub use scenario::{Length, Routes, Scenario, ScenarioError, WalkSource};
pub use trace::{Trace, TracedOutcome, TracedSpan};
pub use world::{Controller, Fault, QueueBound, World};
