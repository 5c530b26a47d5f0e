//! The request rate of a model, measured over a sliding window.
//!
//! The window is five seconds in samples of 50 ms: long enough that the rate of a busy model is
//! known within a few percent, short enough to follow a change of load within seconds. The rate is
//! kept as rows per window, two integers, so that comparisons of rates are exact. The dispersion of
//! the samples shows how regularly rows arrive.
//!
//! If the last requests came more than twice as fast as the window says, their rate counts
//! immediately. This hardly happens by chance.

use ripieno_base::{MovingMean, Nanos, Permille, Time};

const SAMPLE_NS: i64 = 50_000_000;
const SAMPLES: usize = 100;
/// Requests in the mean time between rows.
const LAST_REQUESTS: i64 = 64;

/// A counter of rows in a sliding window.
#[derive(Clone, Debug)]
pub struct RateMeter {
    /// Rows of each of the last samples, by number modulo [`SAMPLES`].
    rows: [u32; SAMPLES],
    /// Sum of the samples.
    total: u64,
    /// The sum of the squares of the samples.
    squares: u64,
    /// Number of the current sample.
    sample: i64,
    /// Time of the first arrival; [`Time::NEVER`] before.
    first: Time,
    /// Time of the last arrival.
    last: Time,
    /// Mean time between the last rows, in nanoseconds.
    gap: MovingMean<LAST_REQUESTS>,
}

/// A measured rate: `rows` in `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of rows that arrived within the window.
    pub rows: u64,
    /// Duration of the window.
    pub window: Nanos,
}

impl Default for RateMeter {
    fn default() -> RateMeter {
        RateMeter::new()
    }
}

impl RateMeter {
    /// Creates a meter that has counted nothing.
    pub const fn new() -> RateMeter {
        let gap = MovingMean::guess(SAMPLE_NS, LAST_REQUESTS);
        RateMeter { rows: [0; SAMPLES], total: 0, squares: 0, sample: 0, first: Time::NEVER, last: Time::ORIGIN, gap }
    }

    /// Counts `rows` that arrived at `now`. Returns whether a new sample began, so that values
    /// derived from the rate can be updated.
    pub fn record(&mut self, now: Time, rows: u32) -> bool {
        let began = self.advance(now);
        let gap = (now - self.last).0.min(SAMPLE_NS * SAMPLES as i64);
        self.gap.add(gap / i64::from(rows.max(1)));
        self.last = now;
        let sample = &mut self.rows[(self.sample % SAMPLES as i64) as usize];
        let before = u64::from(*sample);
        *sample += rows;
        self.total += u64::from(rows);
        self.squares += u64::from(*sample).pow(2) - before.pow(2);
        began
    }

    /// Returns the time of the last arrival.
    pub fn last(&self) -> Time {
        self.last
    }

    /// Forgets samples that have left the window since the last row.
    pub fn catch_up(&mut self, now: Time) {
        if self.first != Time::NEVER {
            self.advance(now);
        }
    }

    fn advance(&mut self, now: Time) -> bool {
        let sample = now.0.max(0) / SAMPLE_NS;
        if self.first == Time::NEVER {
            (self.first, self.sample) = (now, sample);
            return true;
        }
        let passed = sample - self.sample;
        for at in self.sample + 1..=self.sample + passed.min(SAMPLES as i64) {
            let rows = &mut self.rows[(at % SAMPLES as i64) as usize];
            let gone = u64::from(std::mem::take(rows));
            self.total -= gone;
            self.squares -= gone.pow(2);
        }
        if passed > SAMPLES as i64 {
            // The indices wrap at most once above; all samples are empty whatever their index.
            debug_assert_eq!(self.total, 0);
        }
        self.sample = sample;
        passed > 0
    }

    /// Returns the rate at `now`; `None` until a whole sample has been seen.
    pub fn rate(&self, now: Time) -> Option<Rate> {
        let window = self.window(now);
        let known = self.first != Time::NEVER && window.0 >= SAMPLE_NS && self.total > 0;
        let gap = Nanos(self.gap.get().max((now - self.last).0).max(1));
        let rate = Rate { rows: self.total, window };
        let surges = self.total >= LAST_REQUESTS.cast_unsigned() && gap * 2 < rate.gather_time(1);
        known.then_some(if surges { Rate { rows: 1_000, window: gap * 1_000 } } else { rate })
    }

    /// Returns the span that the samples cover.
    fn window(&self, now: Time) -> Nanos {
        now - Time((self.sample - SAMPLES as i64 + 1) * SAMPLE_NS).max(self.first)
    }

    /// Returns the index of dispersion of the samples: 1 for Poisson arrivals. `None` while there
    /// is no rate.
    pub fn dispersion(&self, now: Time) -> Option<Permille> {
        self.rate(now)?;
        let samples = (self.window(now).0 / SAMPLE_NS).cast_unsigned().max(1);
        Some(
            Permille::from_parts(1_000 * self.squares / self.total)
                - Permille::from_parts(1_000 * self.total / samples),
        )
    }
}

impl Rate {
    /// Returns the time in which `rows` rows arrive at this rate.
    pub fn gather_time(&self, rows: usize) -> Nanos {
        self.window.scale(rows as u64, self.rows)
    }

    /// Returns the number of rows that arrive within `span` at this rate.
    pub fn rows_in(&self, span: Nanos) -> u64 {
        span.scale(self.rows, self.window.0.cast_unsigned()).0.max(0).cast_unsigned()
    }

    /// Returns the number of devices that this rate keeps busy, if each batch has `batch` rows and
    /// takes `latency`.
    pub fn load(&self, batch: usize, latency: Nanos) -> Permille {
        let time = latency.scale(self.rows * 1_000, (self.window.0 as u64).saturating_mul(batch as u64));
        Permille::from_parts(time.0.max(0).cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn measures_a_steady_rate_and_forgets_it() {
        let mut meter = RateMeter::new();
        assert_eq!(meter.rate(Time(0)), None);
        for at in 0..10_000 {
            meter.record(Time(at * MS), 2);
        }
        let rate = meter.rate(Time(10_000 * MS)).unwrap();
        assert_eq!(rate.gather_time(1_000), Nanos(500 * MS).scale(rate.window.0 as u64, rate.rows * MS as u64 / 2));
        assert!((rate.rows as f64 / rate.window.as_secs_f64() - 2_000.0).abs() < 1.0, "{rate:?}");
        meter.record(Time(60_000 * MS), 1);
        assert_eq!(meter.rate(Time(60_000 * MS)).map(|rate| rate.rows), Some(1));
    }

    #[test]
    fn a_flow_that_has_doubled_counts_immediately() {
        let mut meter = RateMeter::new();
        for at in 0..4_000 {
            meter.record(Time(at * MS), 1);
        }
        let per_second = |meter: &RateMeter, at| meter.rate(Time(at)).unwrap().rows_in(Nanos(1_000 * MS));
        assert_eq!(per_second(&meter, 4_000 * MS), 1_000);
        for at in 0..600 {
            meter.record(Time(4_000 * MS + at * MS / 10), 1);
        }
        let surge = per_second(&meter, 4_060 * MS);
        assert!((9_000..11_000).contains(&surge), "{surge}");
        let silent = per_second(&meter, 4_070 * MS);
        assert!(silent < 1_200, "nothing has come for as long as 100 rows took: {silent}");
    }

    #[test]
    fn the_dispersion_is_that_of_the_arrivals() {
        let (mut steady, mut bursts) = (RateMeter::new(), RateMeter::new());
        for sample in 0..100 {
            steady.record(Time(sample * SAMPLE_NS), 10);
            bursts.record(Time(sample * SAMPLE_NS), if sample % 10 == 0 { 100 } else { 0 });
        }
        let dispersion = |meter: &RateMeter| meter.dispersion(Time(100 * SAMPLE_NS));
        // Variance over mean.
        let parts = |meter| dispersion(meter).map(Permille::parts);
        assert_eq!((parts(&steady), parts(&bursts)), (Some(0), Some(90_000)));
        assert_eq!(dispersion(&RateMeter::new()), None);
    }

    #[test]
    fn says_nothing_before_a_whole_sample() {
        let mut meter = RateMeter::new();
        assert!(meter.record(Time(7 * MS), 1));
        assert!(!meter.record(Time(8 * MS), 1));
        assert_eq!(meter.rate(Time(56 * MS)), None);
        assert_eq!(meter.rate(Time(57 * MS)), Some(Rate { rows: 2, window: Nanos(50 * MS) }));
    }

    #[test]
    fn load_is_rate_times_latency_per_row() {
        let rate = Rate { rows: 5_000, window: Nanos(1_000 * MS) };
        // 5,000 rows/s in batches of 10 that take 4 ms keep two devices busy.
        assert_eq!(rate.load(10, Nanos(4 * MS)).parts(), 2_000);
    }
}
