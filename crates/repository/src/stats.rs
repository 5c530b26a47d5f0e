//! What a front end counts of a model: how long it took to decode requests and to encode answers. It lies with the
//! model's entry and ends with it. All else (counts, queueing, execution, batch sizes) the runtime counts where it happens.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Time in nanoseconds, spent on requests that were answered.
#[derive(Debug, Default)]
pub struct Sum(AtomicU64);

impl Sum {
    /// Adds the time of one request.
    pub fn add(&self, span: Duration) {
        self.0.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The sum so far.
    pub fn ns(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The sums of one version of one model.
#[derive(Debug, Default)]
pub struct Statistics {
    /// From the last byte of a request to its hand-over to the runtime.
    pub decoding: Sum,
    /// From the runtime's answer to the encoded response.
    pub encoding: Sum,
}
