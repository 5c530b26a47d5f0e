//! A benchmark of the scheduler's shards alone: the capacity of links, mailboxes, matchmaker and
//! decisions without clients, admission control and devices.
//!
//! These parts are those of a server (`shards/`); only the loop around a shard differs: it
//! generates its requests itself and ends its tasks when their profile says so. Each thread takes
//! turns without sleeping.
//!
//! The same turns can be taken one after the other on one thread, in virtual time: then a run
//! repeats instruction by instruction, which shows how its cost grows better than any clock does.

mod load;
mod matchmaker_thread;
mod meter;
mod openings;
mod shard_thread;
mod stress;

pub use stress::{SchedulerStress, StressReport};
