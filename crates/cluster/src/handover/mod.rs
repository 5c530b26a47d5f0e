//! Hand-over of the central scheduler (`docs/internals/adr/0026-hand-over.md`).
//!
//! State machines without I/O, clock or threads: they receive inputs with the time, and return
//! actions. Missing heartbeats detect the loss of a primary, and a compare-and-swap on the epoch
//! ([`store`]) elects its successor. A backend accepts only the latest claim ([`Fence`]), and a
//! frontend sends requests to the latest primary ([`Following`]). A new primary
//! ([`SchedulerMachine`]) learns what backends run before it runs anything again. Scheduling itself
//! is up to the host.

mod action;
mod election;
mod fence;
mod ids;
mod primary;
mod scheduler;
pub mod store;
mod timing;

pub use action::SchedulerAction;
pub use election::ElectionCause;
pub use fence::{ClaimOutcome, Fence, Following, HeartbeatSender};
pub use ids::{Epoch, ProcessId, ReachedRoles, RequestId, Role, Stamp};
pub use primary::RunningRows;
pub use scheduler::SchedulerMachine;
pub use timing::Timing;
