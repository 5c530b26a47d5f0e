//! Hand-over of the central scheduler (`docs/adr/0026-hand-over.md`).
//!
//! State machines without input, output, clock or thread: they are told what came and the time, and say what is to be
//! done. Heartbeats detect that a primary is gone, a compare-and-swap on the epoch ([`store`]) decides who follows it,
//! a backend obeys the latest claim only ([`Fence`]), a frontend asks the latest primary ([`Following`]), and a new
//! primary ([`Scheduler`]) learns what backends run before it has anything run again. What is scheduled when, and on
//! which backend, is their host's matter.

mod action;
mod election;
mod fence;
mod ids;
mod primary;
mod scheduler;
pub mod store;
mod timing;

pub use action::SchedulerAction;
pub use fence::{Claimed, Fence, Following, Sender};
pub use ids::{Epoch, Process, RequestId, Role, Stamp};
pub use primary::Held;
pub use scheduler::Scheduler;
pub use timing::Timing;
