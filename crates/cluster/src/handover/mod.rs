//! Membership, and hand-over of the central scheduler (`docs/adr/0026-hand-over.md`).
//!
//! Three state machines, [`Scheduler`], [`Backend`] and [`Frontend`], without input, output, clock or thread: they are
//! told messages and the time, and push what is to be done. Heartbeats detect that a primary is gone, a
//! compare-and-swap on the epoch ([`store`]) decides who follows it, backends obey stamps in their order only, and each
//! frontend answers each request once. What is scheduled when, and on which backend, is their host's matter.

mod action;
mod answers;
mod backend;
pub mod driver;
mod election;
mod encoding;
mod frontend;
mod ids;
mod members;
mod message;
mod primary;
mod requests;
mod scheduler;
pub mod store;
mod timing;

pub use action::SchedulerAction;
pub use backend::{Backend, BackendAction, BackendLimits};
pub use encoding::Garbled;
pub use frontend::{Frontend, FrontendAction, Full};
pub use ids::{Epoch, Process, RequestId, Role, Stamp};
pub use message::{Answer, Body, Held, MOST_RECORDS, Message, Outcome, Wanted};
pub use requests::Admitted;
pub use scheduler::{Scheduler, SchedulerLimits};
pub use timing::Timing;
