//! What a model did so far, in the terms of the protocol's statistics extension.
//!
//! A mutex and not atomics: one update touches a dozen counters, clients compute differences of sums over them, and a
//! torn read would show a mean that never was.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// How often, and how long in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duration {
    /// Occurrences.
    pub count: u64,
    /// Their total in nanoseconds.
    pub total_ns: u64,
}

impl Duration {
    fn add(&mut self, count: u64, span_ns: u64) {
        self.count += count;
        self.total_ns += span_ns;
    }
}

/// One answered request, as the front end saw it.
#[derive(Clone, Copy, Debug)]
pub struct Success {
    /// Rows of the request.
    pub rows: u64,
    /// Rows in the batch that it was part of.
    pub batch: u64,
    /// From the moment it was read to the moment its answer was encoded.
    pub total_ns: u64,
    /// Arrival to the start of its batch.
    pub queue_ns: u64,
    /// Decoding and checking its inputs.
    pub input_ns: u64,
    /// Execution of its batch.
    pub infer_ns: u64,
    /// Encoding its outputs.
    pub output_ns: u64,
}

/// A consistent copy of all counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// When the last request came, in milliseconds since 1970; 0 if none did.
    pub last_inference_ms: u64,
    /// Rows inferred.
    pub inference_count: u64,
    /// Batches executed, as the sum of every request's share of its batch: exact once all members were answered.
    pub execution_count: f64,
    /// Requests answered.
    pub success: Duration,
    /// Requests that failed, for whatever reason.
    pub fail: Duration,
    /// Waiting for their batch.
    pub queue: Duration,
    /// Decoding.
    pub compute_input: Duration,
    /// Executing.
    pub compute_infer: Duration,
    /// Encoding.
    pub compute_output: Duration,
    /// By size of batch: executions (in shares, as above), and input, infer and output time.
    pub batches: BTreeMap<u64, BatchSnapshot>,
}

/// The counters of one batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchSnapshot {
    /// Executions at this size, in shares.
    pub executions: f64,
    /// Decoding time in nanoseconds.
    pub input_ns: f64,
    /// Execution time in nanoseconds.
    pub infer_ns: f64,
    /// Encoding time in nanoseconds.
    pub output_ns: f64,
}

/// The counters of one version of one model.
#[derive(Debug, Default)]
pub struct Statistics(Mutex<Snapshot>);

impl Statistics {
    /// Counts an answered request.
    pub fn succeed(&self, success: &Success) {
        let mut counters = self.0.lock();
        let share = success.rows as f64 / success.batch.max(1) as f64;
        counters.last_inference_ms = now_ms();
        counters.inference_count += success.rows;
        counters.execution_count += share;
        counters.success.add(1, success.total_ns);
        counters.queue.add(1, success.queue_ns);
        counters.compute_input.add(1, success.input_ns);
        counters.compute_infer.add(1, success.infer_ns);
        counters.compute_output.add(1, success.output_ns);
        let batch = counters.batches.entry(success.batch).or_default();
        batch.executions += share;
        batch.input_ns += success.input_ns as f64;
        batch.infer_ns += success.infer_ns as f64 * share;
        batch.output_ns += success.output_ns as f64;
    }

    /// Counts a request that got an error.
    pub fn fail(&self, total_ns: u64) {
        let mut counters = self.0.lock();
        counters.last_inference_ms = now_ms();
        counters.fail.add(1, total_ns);
    }

    /// All counters at one moment.
    pub fn snapshot(&self) -> Snapshot {
        self.0.lock().clone()
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_batch_add_up_to_one_execution() {
        let stats = Statistics::default();
        for rows in [1, 3] {
            let success = Success { rows, batch: 4, total_ns: 10, queue_ns: 4, input_ns: 1, infer_ns: 4, output_ns: 1 };
            stats.succeed(&success);
        }
        stats.fail(7);
        let now = stats.snapshot();
        assert_eq!((now.inference_count, now.execution_count), (4, 1.0));
        assert_eq!((now.success.count, now.fail.count, now.fail.total_ns), (2, 1, 7));
        assert_eq!((now.batches[&4].executions, now.batches[&4].infer_ns), (1.0, 4.0));
    }
}
