//! Counters updated while serving, and the snapshots that servers export.
//!
//! The driver counts while it performs actions and reads results. Metrics never influence a
//! decision. Every counter is one atomic, so the scheduler thread never waits for a reader. A
//! snapshot may mix values of different instants, but each counter only grows. Histograms are
//! cumulative with fixed bounds, so histograms of several servers can be added.

use crate::devices::DeviceState;
use crate::requests::ending::Ending;
use ripieno_base::Nanos;
use ripieno_executor::PhaseTimes;
use ripieno_report::ModelTotals;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

/// Preferred numbers of the series R40 of ISO 3, times 100: bounds about 6 % apart.
const R40: [i64; 40] = [
    100, 106, 112, 118, 125, 132, 140, 150, 160, 170, 180, 190, 200, 212, 224, 236, 250, 265, 280, 300, 315, 335, 355,
    375, 400, 425, 450, 475, 500, 530, 560, 600, 630, 670, 710, 750, 800, 850, 900, 950,
];

/// Number of decades from 10 µs to 100 s.
const DECADES: usize = 7;

/// Bucket bounds of durations in nanoseconds: 10 µs to 100 s, 40 per decade. A reader chooses those
/// around an SLO.
const DURATIONS_NS: [i64; 40 * DECADES + 1] = {
    let mut bounds = [0; 40 * DECADES + 1];
    let (mut at, mut unit) = (0, 100);
    while at < bounds.len() {
        bounds[at] = R40[at % 40] * unit;
        at += 1;
        if at % 40 == 0 {
            unit *= 10;
        }
    }
    bounds
};

/// Bucket bounds of slack in nanoseconds: 0, then `DURATIONS_NS`.
const SLACK_NS: [i64; DURATIONS_NS.len() + 1] = {
    let mut bounds = [0; DURATIONS_NS.len() + 1];
    let mut at = 0;
    while at < DURATIONS_NS.len() {
        bounds[at + 1] = DURATIONS_NS[at];
        at += 1;
    }
    bounds
};

/// Bucket bounds of batch sizes in rows.
const ROWS: [i64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// Bucket bounds of relative errors in permille.
const ERRORS: [i64; 25] = [
    10, 20, 30, 50, 75, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 1_000, 1_250, 1_500, 2_000, 3_000, 5_000,
    7_500, 10_000, 20_000, 50_000,
];

/// A cumulative histogram with fixed bounds.
pub(crate) struct AtomicHistogram {
    bounds: &'static [i64],
    /// One bucket per bound, and a last bucket for values above all bounds.
    buckets: Box<[AtomicU64]>,
    sum: AtomicI64,
}

/// State of a histogram at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// The inclusive upper bounds, ascending: nanoseconds, rows or permille.
    pub bounds: &'static [i64],
    /// Number of values less than or equal to each bound.
    pub cumulative: Vec<u64>,
    /// Number of values.
    pub count: u64,
    /// Sum of the values.
    pub sum: i64,
}

impl AtomicHistogram {
    fn new(bounds: &'static [i64]) -> AtomicHistogram {
        AtomicHistogram {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicI64::new(0),
        }
    }

    fn add(&self, value: i64) {
        self.buckets[self.bounds.partition_point(|&bound| bound < value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    fn snapshot(&self) -> HistogramSnapshot {
        let mut count = 0;
        let mut cumulative: Vec<u64> = Vec::with_capacity(self.buckets.len());
        for bucket in &self.buckets {
            count += bucket.load(Relaxed);
            cumulative.push(count);
        }
        cumulative.pop();
        HistogramSnapshot { bounds: self.bounds, cumulative, count, sum: self.sum.load(Relaxed) }
    }
}

/// Counter of events and their total duration.
#[derive(Default)]
pub(crate) struct AtomicTally {
    count: AtomicU64,
    ns: AtomicU64,
}

/// A count of events and their total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TallySnapshot {
    /// Number of events.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub ns: u64,
}

impl AtomicTally {
    fn add(&self, span: Nanos) {
        self.count.fetch_add(1, Relaxed);
        self.ns.fetch_add(span.0.max(0).cast_unsigned(), Relaxed);
    }

    fn snapshot(&self) -> TallySnapshot {
        TallySnapshot { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

/// The metrics of one model, updated where its requests are answered.
pub struct ModelMetrics {
    endings: [AtomicU64; Ending::ALL.len()],
    rows: AtomicU64,
    wasted: AtomicU64,
    padding: AtomicU64,
    filled: AtomicU64,
    useful_elements: AtomicU64,
    padding_elements: AtomicU64,
    early_exits: AtomicU64,
    batches_again: AtomicU64,
    bad_requests: AtomicU64,
    corrections: AtomicU64,
    skips: AtomicU64,
    /// Number of request parts that wait for their first batch.
    pub(crate) waiting: AtomicUsize,
    queue_delay: AtomicTally,
    batch_rows: AtomicHistogram,
    execution: AtomicTally,
    slack: AtomicHistogram,
    response: AtomicHistogram,
    /// Absolute relative errors of predictions, in permille. `prediction_bias` is the sum of the
    /// signed errors.
    prediction_error: AtomicHistogram,
    prediction_bias: AtomicI64,
    success: AtomicTally,
    fail: AtomicTally,
    queue: AtomicTally,
    compute: AtomicTally,
    /// Entry `b - 1` counts the batches of `b` rows.
    by_batch: Box<[AtomicTally]>,
    last_inference_ms: AtomicU64,
}

/// Metrics of one model at one instant. A request is one client call, regardless of its number of
/// parts. Each block that runs a batch counts as one batch.
#[derive(Clone, Debug)]
pub struct ModelSnapshot {
    /// Number of requests by outcome.
    pub requests: Vec<(Ending, u64)>,
    /// Number of rows answered with outputs, late ones included (Triton's `inference_count`).
    pub rows: u64,
    /// Number of batches executed (Triton's `execution_count`).
    pub batches: u64,
    /// Number of request parts that wait for their first batch.
    pub waiting: usize,
    /// Number of request parts that wait or run.
    pub live: usize,
    /// Request parts that started, and their total time from arrival to their first batch.
    pub queue_delay: TallySnapshot,
    /// Number of rows per batch. In cell batches a row is one step or node.
    pub batch_rows: HistogramSnapshot,
    /// Number of rows computed for requests that had already ended. Such a row is a step queued
    /// before the end was known, or belongs to a client that was answered or went away.
    pub wasted_rows: u64,
    /// Number of rows that only fill a batch: steps beyond the end of a sequence, and rows up to
    /// the next of the model's batch sizes.
    pub padding_rows: u64,
    /// Number of rows that devices computed, with all padding.
    pub executed_rows: u64,
    /// Number of elements (rows times length) computed for the requests' own lengths. Counts only
    /// models whose requests differ in length.
    pub useful_elements: u64,
    /// Number of elements computed only to pad shorter requests to the batch's length.
    pub padding_elements: u64,
    /// Number of request parts that a condition ended before the last block.
    pub early_exits: u64,
    /// Number of batches that failed and were run again in parts.
    pub batches_again: u64,
    /// Number of request parts on which the engine failed when it ran them alone.
    pub bad_requests: u64,
    /// Number of times that measured batches replaced the latency profile.
    pub profile_corrections: u64,
    /// Number of times that a condition let a request part skip blocks.
    pub skips: u64,
    /// Batches, and their total execution time.
    pub execution: TallySnapshot,
    /// Deadline minus start of the first batch. The first bucket counts starts after the deadline.
    pub slack: HistogramSnapshot,
    /// Time from arrival to answer of requests answered with outputs.
    pub response: HistogramSnapshot,
    /// Relative prediction error per request in permille, for policies that predict: |predicted -
    /// actual| / actual. The predicted time runs from the request's first start to its end.
    pub prediction_error: HistogramSnapshot,
    /// Sum of (predicted - actual) / actual over all predictions, in permille. Positive if
    /// predictions are too long.
    pub prediction_bias: i64,
    /// Requests answered with outputs, and their total response time.
    pub success: TallySnapshot,
    /// Accepted requests that ended without outputs, and their total duration.
    pub fail: TallySnapshot,
    /// Successful requests, and their total wait for the batch.
    pub queue: TallySnapshot,
    /// Successful requests, and the total execution time of their batches.
    pub compute: TallySnapshot,
    /// Number and execution time of batches by size in rows, ascending. Sizes that never ran are
    /// omitted.
    pub by_batch: Vec<(usize, TallySnapshot)>,
    /// End of the last batch in milliseconds since the Unix epoch; 0 if no batch ran.
    pub last_inference_ms: u64,
}

impl ModelSnapshot {
    /// Returns the totals that the autoscaler reads.
    pub fn totals(&self) -> ModelTotals {
        let count =
            |of: fn(Ending) -> bool| self.requests.iter().filter(|(ending, _)| of(*ending)).map(|(_, n)| n).sum();
        let busy_ns: u64 = self.by_batch.iter().map(|(_, tally)| tally.ns).sum();
        ModelTotals {
            good: count(|ending| ending.is_good() == Some(true)),
            bad: count(|ending| ending.is_good() == Some(false) && !ending.is_breakdown()),
            broken: count(Ending::is_breakdown),
            busy: Nanos(busy_ns.cast_signed()),
            rows: self.rows,
        }
    }
}

impl ModelMetrics {
    /// Creates empty metrics for a model with batches of up to `max_batch` rows.
    pub fn new(max_batch: usize) -> ModelMetrics {
        ModelMetrics {
            endings: Default::default(),
            rows: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
            padding: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            useful_elements: AtomicU64::new(0),
            padding_elements: AtomicU64::new(0),
            early_exits: AtomicU64::new(0),
            batches_again: AtomicU64::new(0),
            bad_requests: AtomicU64::new(0),
            corrections: AtomicU64::new(0),
            skips: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queue_delay: AtomicTally::default(),
            batch_rows: AtomicHistogram::new(&ROWS),
            execution: AtomicTally::default(),
            slack: AtomicHistogram::new(&SLACK_NS),
            response: AtomicHistogram::new(&DURATIONS_NS),
            prediction_error: AtomicHistogram::new(&ERRORS),
            prediction_bias: AtomicI64::new(0),
            success: AtomicTally::default(),
            fail: AtomicTally::default(),
            queue: AtomicTally::default(),
            compute: AtomicTally::default(),
            by_batch: (0..max_batch).map(|_| AtomicTally::default()).collect(),
            last_inference_ms: AtomicU64::new(0),
        }
    }

    /// Counts a request that was not accepted because of its own content or a bound.
    pub fn on_refused(&self) {
        self.on_not_accepted(Ending::Refused);
    }

    /// Counts a request that was not accepted, by the reason.
    pub fn on_not_accepted(&self, ending: Ending) {
        self.endings[ending as usize].fetch_add(1, Relaxed);
    }

    /// Counts a batch that ended after `execution`. The device filled it up with `filled` rows.
    pub(crate) fn on_batch(&self, rows: usize, filled: usize, execution: Nanos) {
        self.batch_rows.add(rows as i64);
        self.filled.fetch_add(filled as u64, Relaxed);
        self.execution.add(execution);
        self.by_batch[rows - 1].add(execution);
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last_inference_ms.store(since_epoch.as_millis() as u64, Relaxed);
    }

    /// Counts wasted and padding rows of a batch.
    pub(crate) fn on_lost_rows(&self, wasted: usize, padding: usize) {
        self.wasted.fetch_add(wasted as u64, Relaxed);
        self.padding.fetch_add(padding as u64, Relaxed);
    }

    /// Counts useful and padding elements of a batch of requests that differ in length.
    pub(crate) fn on_elements(&self, useful: u64, padding: u64) {
        self.useful_elements.fetch_add(useful, Relaxed);
        self.padding_elements.fetch_add(padding, Relaxed);
    }

    /// Counts a batch member that ended early or skipped blocks.
    pub(crate) fn on_leaving(&self, early: bool, skipped: bool) {
        if early {
            self.early_exits.fetch_add(1, Relaxed);
        }
        if skipped {
            self.skips.fetch_add(1, Relaxed);
        }
    }

    /// Counts a batch that failed and was run again in parts.
    pub(crate) fn on_again(&self) {
        self.batches_again.fetch_add(1, Relaxed);
    }

    /// Counts a request on which the engine failed alone.
    pub(crate) fn on_bad_request(&self) {
        self.bad_requests.fetch_add(1, Relaxed);
    }

    /// Counts a replacement of the latency profile by measurements.
    pub(crate) fn on_correction(&self) {
        self.corrections.fetch_add(1, Relaxed);
    }

    /// Records queueing time and slack of a request part at the start of its first batch.
    pub(crate) fn on_first_start(&self, queued: Nanos, slack: Nanos) {
        self.queue_delay.add(queued);
        self.slack.add(slack.0);
    }

    /// Records the error of a prediction: predicted and actual time from first start to end.
    pub(crate) fn on_prediction(&self, predicted: Nanos, actual: Nanos) {
        let permille =
            (i128::from((predicted - actual).0) * 1000 / i128::from(actual.0.max(1))).clamp(-1000, 1_000_000_000);
        self.prediction_error.add(permille.unsigned_abs() as i64);
        self.prediction_bias.fetch_add(permille as i64, Relaxed);
    }

    /// Counts a request that was answered with outputs.
    pub fn on_success(&self, late: bool, rows: usize, response: Nanos, queued: Nanos, executed: Nanos) {
        let ending = if late { Ending::Late } else { Ending::Ok };
        self.endings[ending as usize].fetch_add(1, Relaxed);
        self.rows.fetch_add(rows as u64, Relaxed);
        self.response.add(response.0);
        self.success.add(response);
        self.queue.add(queued);
        self.compute.add(executed);
    }

    /// Counts an accepted request that ended without outputs.
    pub fn on_failure(&self, ending: Ending, after: Nanos) {
        self.endings[ending as usize].fetch_add(1, Relaxed);
        self.fail.add(after);
    }

    /// Returns a snapshot; `live` is the number of request parts that wait or run.
    pub fn snapshot(&self, live: usize) -> ModelSnapshot {
        let batch_rows = self.batch_rows.snapshot();
        let by_batch = self.by_batch.iter().map(AtomicTally::snapshot).enumerate();
        let filled = self.filled.load(Relaxed);
        ModelSnapshot {
            executed_rows: batch_rows.sum as u64 + filled,
            requests: Ending::ALL.into_iter().map(|e| (e, self.endings[e as usize].load(Relaxed))).collect(),
            rows: self.rows.load(Relaxed),
            batches: batch_rows.count,
            waiting: self.waiting.load(Relaxed),
            live,
            queue_delay: self.queue_delay.snapshot(),
            batch_rows,
            wasted_rows: self.wasted.load(Relaxed),
            padding_rows: self.padding.load(Relaxed) + filled,
            useful_elements: self.useful_elements.load(Relaxed),
            padding_elements: self.padding_elements.load(Relaxed),
            early_exits: self.early_exits.load(Relaxed),
            batches_again: self.batches_again.load(Relaxed),
            bad_requests: self.bad_requests.load(Relaxed),
            profile_corrections: self.corrections.load(Relaxed),
            skips: self.skips.load(Relaxed),
            execution: self.execution.snapshot(),
            slack: self.slack.snapshot(),
            response: self.response.snapshot(),
            prediction_error: self.prediction_error.snapshot(),
            prediction_bias: self.prediction_bias.load(Relaxed),
            success: self.success.snapshot(),
            fail: self.fail.snapshot(),
            queue: self.queue.snapshot(),
            compute: self.compute.snapshot(),
            by_batch: by_batch.filter(|(_, tally)| tally.count > 0).map(|(at, tally)| (at + 1, tally)).collect(),
            last_inference_ms: self.last_inference_ms.load(Relaxed),
        }
    }
}

/// The metrics of one device.
pub(crate) struct DeviceMetrics {
    batches: AtomicTally,
    percent: AtomicU32,
}

impl Default for DeviceMetrics {
    fn default() -> DeviceMetrics {
        DeviceMetrics { batches: AtomicTally::default(), percent: AtomicU32::new(100) }
    }
}

/// Metrics of one device at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSnapshot {
    /// Device id.
    pub id: u16,
    /// Device state.
    pub state: DeviceState,
    /// Execution time of the device's batches in percent of other devices. 100 unless the device
    /// was found to be slower.
    pub percent: u32,
    /// Number of batches executed.
    pub batches: u64,
    /// Total busy time in nanoseconds; its rate is the utilisation. A batch counts when it ends.
    pub busy_ns: u64,
    /// Number of rows copied to make batches contiguous, counted once per tensor.
    pub rows_gathered: u64,
    /// Number of batches that read the state of their requests in place.
    pub tasks_without_copy: u64,
    /// Number of batches that were gathered while another one computed.
    pub tasks_gathered_ahead: u64,
    /// Number of batches that were answered while another one computed.
    pub tasks_answered_beside: u64,
    /// Execution time of the batches by phase.
    pub spent: PhaseTimes,
}

impl DeviceMetrics {
    pub(crate) fn on_batch(&self, execution: Nanos) {
        self.batches.add(execution);
    }

    pub(crate) fn set_percent(&self, percent: u32) {
        self.percent.store(percent, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> DeviceSnapshot {
        let TallySnapshot { count, ns } = self.batches.snapshot();
        let percent = self.percent.load(Relaxed);
        DeviceSnapshot { batches: count, busy_ns: ns, percent, ..DeviceSnapshot::default() }
    }
}

/// The metrics of the scheduler's turns.
#[derive(Default)]
pub(crate) struct SchedulerMetrics(AtomicTally);

/// Metrics of the scheduler's turns at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerSnapshot {
    /// Number of turns that had work.
    pub turns: u64,
    /// Total duration of these turns in nanoseconds: reading mail, deciding, submitting tasks,
    /// answering clients.
    pub busy_ns: u64,
}

impl SchedulerMetrics {
    pub(crate) fn on_turn(&self, took: Nanos) {
        self.0.add(took);
    }

    pub(crate) fn snapshot(&self) -> SchedulerSnapshot {
        let TallySnapshot { count, ns } = self.0.snapshot();
        SchedulerSnapshot { turns: count, busy_ns: ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulative_with_inclusive_bounds() {
        let histogram = AtomicHistogram::new(&ROWS);
        for rows in [1, 2, 3, 4, 9_999] {
            histogram.add(rows);
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.cumulative[..4], [1, 2, 4, 4]);
        assert_eq!((snapshot.cumulative.len(), snapshot.cumulative[12]), (ROWS.len(), 4));
        assert_eq!((snapshot.count, snapshot.sum), (5, 10_009));
    }

    #[test]
    fn bounds_of_durations_ascend_by_at_most_eight_percent() {
        assert_eq!((DURATIONS_NS[0], DURATIONS_NS[DURATIONS_NS.len() - 1]), (10_000, 100_000_000_000));
        let near = |pair: &[i64]| pair[0] < pair[1] && pair[1] * 100 <= pair[0] * 108;
        assert!(DURATIONS_NS.windows(2).all(near));
        // SLOs that people write are bounds.
        for ms in [1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 80, 100, 150, 200, 250, 300, 500, 1_000, 2_000, 5_000] {
            assert!(DURATIONS_NS.contains(&(ms * 1_000_000)), "{ms} ms");
        }
    }

    #[test]
    fn negative_slack_falls_into_the_first_bucket() {
        let metrics = ModelMetrics::new(4);
        metrics.on_first_start(Nanos(5), Nanos(-3));
        metrics.on_first_start(Nanos(5), Nanos(10_500));
        assert_eq!(metrics.snapshot(0).slack.cumulative[..3], [1, 1, 2]);
    }

    #[test]
    fn predictions_are_off_by_a_share_of_what_came() {
        let metrics = ModelMetrics::new(4);
        metrics.on_prediction(Nanos(150), Nanos(100));
        metrics.on_prediction(Nanos(70), Nanos(100));
        let seen = metrics.snapshot(0);
        assert_eq!((seen.prediction_error.count, seen.prediction_error.sum, seen.prediction_bias), (2, 800, 200));
    }

    #[test]
    fn a_model_counts_requests_rows_and_batches_apart() {
        let metrics = ModelMetrics::new(8);
        metrics.on_batch(3, 1, Nanos(700));
        metrics.on_lost_rows(1, 2);
        metrics.on_success(false, 1, Nanos(1_000), Nanos(300), Nanos(700));
        metrics.on_success(true, 2, Nanos(2_000), Nanos(1_300), Nanos(700));
        metrics.on_failure(Ending::Expired, Nanos(50));
        metrics.on_refused();
        let seen = metrics.snapshot(7);
        assert_eq!((seen.rows, seen.batches, seen.live), (3, 1, 7));
        assert_eq!((seen.batch_rows.sum, seen.wasted_rows, seen.padding_rows), (3, 1, 3));
        assert_eq!(seen.executed_rows, 4);
        assert_eq!(seen.success, TallySnapshot { count: 2, ns: 3_000 });
        assert_eq!(seen.fail, TallySnapshot { count: 1, ns: 50 });
        assert_eq!(seen.by_batch, [(3, TallySnapshot { count: 1, ns: 700 })]);
        // One request counts as good; the late, the expired and the refused one count as bad.
        assert_eq!(seen.totals(), ModelTotals { good: 1, bad: 3, broken: 0, busy: Nanos(700), rows: 3 });
        let counted: Vec<_> = seen.requests.iter().filter(|(_, n)| *n == 1).map(|(ending, _)| ending.name()).collect();
        assert_eq!(counted, ["ok", "late", "expired", "refused"]);
    }
}
