//! The serving scheduler, and the contract between any scheduler and its driver.
//!
//! A scheduler is a state machine without input or output of its own. Two drivers feed it with the
//! same calls, the simulator in virtual time and the runtime in wall time. This crate holds
//!
//! - the contract: [`Scheduler`], the facts that it receives, and the [`Action`]s that it decides;
//! - [`serving`]: the scheduler of a server;
//! - [`admission`]: bounds on queues, and shares of models and clients;
//! - [`tables`], [`estimate`] and [`cells`]: the state that schedulers keep.
//!
//! Published policies are in the crate `ripieno-policies`, which depends on this one.
//!
//! ```
//! use ripieno_base::Nanos;
//! use ripieno_model::{Model, Profile};
//! use ripieno_sched::{Knobs, Limits, Options, Setup, serving};
//!
//! let profile = Profile::linear(1.0, 5.0, 16).unwrap();
//! let model = Model::whole("resnet", profile, Nanos::from_millis(12));
//! let limits = serving::NEEDS.served(1, 8);
//! let setup = Setup { models: vec![model], devices: 1, limits };
//! let options = Options::new();
//! let knobs = Knobs { policy: "unified", known: serving::KNOBS, options: &options };
//! assert!(serving::build(&setup, &knobs).is_ok());
//! ```

pub mod admission;
pub mod cells;
mod contract;
pub mod estimate;
pub mod serving;
pub mod tables;

pub use contract::action::{Action, Outbox, Why};
pub use contract::cost_scale::CostScale;
pub use contract::event::Event;
pub use contract::knobs::{BuildError, DROP, Knob, Knobs, MAX_BATCH, OptionValue, Options};
pub use contract::layer::SchedulerLayer;
pub use contract::limits::{Limits, Setup};
pub use contract::needs::{Needs, OBJECTIVE, Objective};
pub use contract::network::{CONTROL_US, DATA_US, NetworkDelay};
pub use contract::reason::{Reason, WaitGain};
pub use contract::scheduler::{Control, Outcome, Prediction, Request, RequestClass, Scheduler, Shape, TaskDone};
pub use tables::cohorts::{Cohort, CohortId, Cohorts};
