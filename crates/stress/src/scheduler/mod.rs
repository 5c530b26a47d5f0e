//! A load on the scheduler's shards and matchmaker alone, without clients, admission control and
//! devices. It measures the capacity of links, mailboxes, matchmaker and decisions.
//!
//! The load uses the code of a server ([`ripieno_runtime::shards`]), except for the loop around a
//! shard. This loop generates requests itself and ends tasks when their profile says. Each thread
//! takes turns without sleeping.
//!
//! One thread can also take all turns one after the other in virtual time. Such a run repeats
//! exactly, so instruction counts show how its cost grows more precisely than a clock does.

mod load;
mod matchmaker_thread;
mod meter;
mod openings;
mod shard_thread;
mod stress;

pub use stress::{SchedulerStress, StressReport};
