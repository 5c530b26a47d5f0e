//! Counters that the server keeps per model: decoding and encoding times, and answers that could
//! not be delivered. They live in the model's entry. The runtime keeps all other counters
//! (requests, queueing, execution, batch sizes).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Total time in nanoseconds, over answered requests.
#[derive(Debug, Default)]
pub struct DurationSum(AtomicU64);

impl DurationSum {
    /// Adds the time of one request.
    pub fn add(&self, span: Duration) {
        self.0.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the total in nanoseconds.
    pub fn ns(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Answers of the engine that could not be written to shared memory, encoded or reserved, and so
/// reached no client. The runtime has already counted them as answered.
#[derive(Debug, Default)]
pub struct Undelivered {
    in_time: AtomicU64,
    late: AtomicU64,
}

impl Undelivered {
    /// Counts one answer.
    pub fn add(&self, late: bool) {
        if late { &self.late } else { &self.in_time }.fetch_add(1, Relaxed);
    }

    /// Returns the numbers of in-time and late answers.
    pub fn counts(&self) -> (u64, u64) {
        (self.in_time.load(Relaxed), self.late.load(Relaxed))
    }
}

/// Counters of one version of a model.
#[derive(Debug, Default)]
pub struct ServedStatistics {
    /// Time from a request's last byte to its submission to the runtime.
    pub decoding: DurationSum,
    /// Time from the runtime's answer to the encoded response.
    pub encoding: DurationSum,
    /// Answers that reached no client.
    pub undelivered: Undelivered,
}
