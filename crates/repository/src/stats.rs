//! What a front end counts of a model: how long it took to decode requests and to encode answers, and which answers it could
//! not deliver. It lies with the model's entry and ends with it. All else (counts, queueing, execution, batch sizes) the
//! runtime counts where it happens.

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

/// Answers of the engine that no client got, because they could not be written to shared memory, encoded or held. The runtime
/// has counted them as answered by then.
#[derive(Debug, Default)]
pub struct Undelivered {
    in_time: AtomicU64,
    late: AtomicU64,
}

impl Undelivered {
    /// Counts one, which came in time or `late`.
    pub fn add(&self, late: bool) {
        if late { &self.late } else { &self.in_time }.fetch_add(1, Relaxed);
    }

    /// How many came in time, and how many late.
    pub fn counts(&self) -> (u64, u64) {
        (self.in_time.load(Relaxed), self.late.load(Relaxed))
    }
}

/// The sums of one version of one model.
#[derive(Debug, Default)]
pub struct Statistics {
    /// From the last byte of a request to its hand-over to the runtime.
    pub decoding: Sum,
    /// From the runtime's answer to the encoded response.
    pub encoding: Sum,
    /// Answers that were lost on the last step.
    pub undelivered: Undelivered,
}
