//! Common foundations: time, ids and containers of fixed capacity.
//!
//! Uses only the standard library. The containers allocate only when they are created, and nothing
//! here reads a clock.

mod heap;
mod histogram;
mod id;
mod list;
mod mean;
mod random;
mod ratio;
mod time;

pub use heap::IndexedHeap;
pub use histogram::{Histogram, HistogramError};
pub use id::{BlockId, DeviceId, LaneId, ModelId, RequestSlot, TaskId};
pub use list::{Links, List};
pub use mean::MovingMean;
pub use random::Lcg;
pub use ratio::{Permille, Ratio};
pub use time::{Nanos, Time};
