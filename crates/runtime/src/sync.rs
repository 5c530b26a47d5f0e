//! Atomics and threads of the parts without locks. The example `loom` compiles these parts with the
//! types of a model checker in this place.

pub(crate) use crossbeam_queue::ArrayQueue;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(crate) use std::thread::{Thread, current, park, park_timeout};
