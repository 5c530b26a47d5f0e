//! The published policies and the baselines, and the catalogue of all policies by name.
//!
//! A paper is a file or a folder with its name: `symphony`, `cellular_batching`,
//! `late_batching`, `lazy_batching`, `dvabatch`. The policies that papers compare themselves
//! with are in `baselines`. The scheduler of a server, "unified", is in `ripieno-sched`; it is in
//! the [catalogue](CATALOGUE), too.
//!
//! ```
//! use ripieno_base::{ModelId, Nanos, RequestSlot, Time};
//! use ripieno_model::{Extent, Model, Profile};
//! use ripieno_policies::build;
//! use ripieno_sched::{Action, Limits, Options, Outbox, Outcome, Setup};
//! use ripieno_sched::{Request, RequestClass, TaskDone};
//!
//! let ms = |millis| Time::ORIGIN + Nanos::from_millis(millis);
//! let profile = Profile::linear(1.0, 5.0, 16).unwrap();
//! let model = Model::whole("resnet", profile, Nanos::from_millis(12));
//! let (requests, models, devices, lanes, depth, batch, nodes) = (8, 1, 1, 1, 1, 16, 0);
//! let limits = Limits { requests, models, devices, lanes, depth, batch, nodes };
//! let setup = Setup { models: vec![model], devices: 1, limits };
//! let mut scheduler = build("deferred", &setup, &Options::new()).unwrap();
//! let mut out = Outbox::new(&limits);
//!
//! // A request arrives at 0 and is due at 12. Alone it takes 6 ms, with a second one 7: frontrun
//! // is 5.
//! let request = Request {
//!     slot: RequestSlot(0),
//!     model: ModelId(0),
//!     arrived: ms(0),
//!     deadline: ms(12),
//!     rows: 1,
//!     extent: Extent::ONE,
//!     class: RequestClass::default(),
//! };
//! scheduler.on_request(ms(0), &request);
//! scheduler.settle(ms(0), &mut out);
//! assert!(out.actions().is_empty());
//! assert_eq!(scheduler.next_wakeup(), ms(5));
//!
//! // No other request came. The batch starts, and the driver reports its end.
//! scheduler.settle(ms(5), &mut out);
//! let Action::Start { task, .. } = out.actions()[0] else { panic!() };
//! assert_eq!(scheduler.members(task), [RequestSlot(0)]);
//! out.clear();
//! let done = TaskDone { task, outcome: Outcome::Ok, ended: &[], skips: &[] };
//! scheduler.on_task_done(ms(11), &done);
//! scheduler.settle(ms(11), &mut out);
//! assert_eq!(out.actions(), [Action::Finish { request: RequestSlot(0) }]);
//! ```

mod baselines;
mod catalogue;
mod cell_scheduler;
mod cellular_batching;
mod chain_tasks;
mod choice;
mod dvabatch;
mod faithful;
mod fifo;
mod late_batching;
mod lazy_batching;
mod options;
mod policy;
mod symphony;
mod unified;

pub use catalogue::{CATALOGUE, FAITHFUL, ServedPolicy, build, build_halves, build_served, build_shards, find};
pub use choice::{DEFAULT_POLICY, served_options};
pub use policy::{Chains, Policy};
pub use symphony::{Halves, Matchmaker, ModelShard, grants, shard_in, shard_of};
