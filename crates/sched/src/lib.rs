//! Who runs when: the scheduler contract.

mod action;
mod event;
mod scheduler;

pub use action::{Action, Outbox, Why};
pub use event::Event;
pub use scheduler::{Control, Limits, Outcome, Request, Scheduler, Setup, TaskDone};
