//! A load on the scheduler's shards alone: what links, mailboxes, matchmaker and decisions carry without clients, doors
//! and devices.
//!
//! They are those of a server (`shards/`); only the loop around a shard is another one, which makes its requests itself
//! and has its tasks end when their profile says so. Each thread takes turns without sleeping.
//!
//! The same turns can be taken one after the other on one thread, in virtual time: then a run repeats instruction by
//! instruction, which tells how its cost grows better than any clock does.

mod load;
mod matchmaker_thread;
mod meter;
mod openings;
mod shard_thread;
mod stress;

pub use stress::{Stress, StressReport};
