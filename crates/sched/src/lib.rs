//! Who runs when: the scheduler contract, the parts, and every policy by the name that its paper gave it.
//!
//! A scheduler is a state machine without input or output of its own. Two drivers feed it, the simulator in virtual
//! time and the runtime in wall time, with the same calls:
//!
//! ```
//! use ripieno_base::{ModelId, Nanos, RequestSlot, Time};
//! use ripieno_model::{Extent, Model, Profile};
//! use ripieno_sched::{Action, Limits, Options, Outbox, Outcome, Request, RequestClass, Setup, TaskDone, build};
//!
//! let ms = |millis| Time::ORIGIN + Nanos::from_millis(millis);
//! let model = Model::whole("resnet", Profile::linear(1.0, 5.0, 16).unwrap(), Nanos::from_millis(12));
//! let limits = Limits { requests: 8, models: 1, devices: 1, lanes: 1, depth: 1, batch: 16, nodes: 0 };
//! let mut scheduler = build("deferred", &Setup { models: vec![model], devices: 1, limits }, &Options::new()).unwrap();
//! let mut out = Outbox::new(&limits);
//!
//! // A request arrives at 0 and is due at 12. Alone it takes 6 ms, with a second one 7: frontrun is 5.
//! let request = Request { slot: RequestSlot(0), model: ModelId(0), arrived: ms(0), deadline: ms(12), rows: 1, extent: Extent::ONE, class: RequestClass::default() };
//! scheduler.on_request(ms(0), &request);
//! scheduler.settle(ms(0), &mut out);
//! assert!(out.actions().is_empty());
//! assert_eq!(scheduler.next_wakeup(), ms(5));
//!
//! // Nobody else came. The batch starts, and the driver reports when it is done.
//! scheduler.settle(ms(5), &mut out);
//! let Action::Start { task, .. } = out.actions()[0] else { panic!() };
//! assert_eq!(scheduler.members(task), [RequestSlot(0)]);
//! out.clear();
//! scheduler.on_task_done(ms(11), &TaskDone { task, outcome: Outcome::Ok, ended: &[], skips: &[] });
//! scheduler.settle(ms(11), &mut out);
//! assert_eq!(out.actions(), [Action::Finish { request: RequestSlot(0) }]);
//! ```

mod action;
mod admission;
mod catalogue;
mod event;
mod knobs;
mod limits;
mod parts;
mod policies;
mod policy;
mod scheduler;
mod serving;
mod shard;

pub use action::{Action, Outbox, Why};
pub use catalogue::{CATALOGUE, Served, build, build_halves, build_served, build_shards, find};
pub use event::Event;
pub use knobs::{BuildError, Knob, OptionValue, Options};
pub use limits::{Limits, Setup};
pub use parts::calibration::{Calibration, Ran};
pub use parts::cohorts::{Cohort, CohortId, Cohorts};
pub use parts::margin::{Guess, Margin};
pub use parts::speeds::Speeds;
pub use policy::{Chains, Needs, Policy};
pub use scheduler::{Control, Outcome, Prediction, Request, RequestClass, Scheduler, Shape, TaskDone};
pub use serving::{Choice, Kind, Objective, choose, fit_batches, served_options};
pub use shard::{
    Epoch, Frame, Garbled, Grant, Halves, Holding, Loaded, Matchmaker, ModelShard, Offer, Release, Sent, Standing,
    ToMatchmaker, shard_of,
};
