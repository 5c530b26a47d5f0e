//! Driver B: wall time. Runs a scheduler of `ripieno-sched` against real devices.

mod api;

pub use api::{Answer, Answered, Failure, Job, Refused, ServedModel};
