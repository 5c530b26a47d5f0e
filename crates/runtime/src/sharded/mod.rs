//! The scheduler on threads of its own: model shards and one matchmaker, with mailboxes between them that never block.
//!
//! Each thread owns its machine and does the same in a loop: take the mail that is there, read the clock once, tell the
//! machine, let it decide, send what it says. Offers are state, so a shard writes the latest of each model into a table of offers and
//! the matchmaker reads those that changed; grants and releases are events and travel in bounded rings, which cannot
//! overflow, since there are no more of them than device slots.
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
