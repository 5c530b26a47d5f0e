//! The front end's share of a model's statistics: how long it took to decode requests and to encode answers. All else
//! (queueing, execution, batch sizes) the runtime counts where it happens.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How often something was done, and how long it took in sum.
#[derive(Debug, Default)]
pub struct Tally {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Tally {
    /// Counts one.
    pub fn add(&self, span: Duration) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The count, and the sum in nanoseconds.
    pub fn read(&self) -> (u64, u64) {
        (self.count.load(Relaxed), self.ns.load(Relaxed))
    }
}

/// The counters of one version of one model.
#[derive(Debug, Default)]
pub struct Statistics {
    /// From the last byte of a request to its hand-over to the runtime.
    pub decoding: Tally,
    /// From the runtime's answer to the encoded response.
    pub encoding: Tally,
}
