//! Delays before a batch computes, as distributions that forget: between the processes of a
//! cluster, and by the time of the host.
//!
//! Clocks of machines differ, so only spans of one clock are compared. A message's delay is half of
//! a round trip without the time that the other side spent.

use ripieno_base::Nanos;
use ripieno_sched::NetworkDelay;
use std::time::Duration;

/// Number of buckets: four for each factor of two, from a microsecond to about a minute.
const BUCKETS: usize = 4 * 26;
/// Smallest bucket, as a power of two of nanoseconds.
const SMALLEST: u32 = 10;
/// Number of samples from which on all count half.
const MEMORY: u32 = 512;

/// A distribution of delays. Older samples count less and less.
#[derive(Clone, Debug)]
pub struct DelayEstimate {
    counts: [u32; BUCKETS],
    total: u32,
}

/// Percentiles of a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayPercentiles {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
}

impl Default for DelayEstimate {
    fn default() -> DelayEstimate {
        DelayEstimate { counts: [0; BUCKETS], total: 0 }
    }
}

impl DelayEstimate {
    /// Adds a sample.
    pub fn add(&mut self, delay: Duration) {
        if self.total >= MEMORY {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
        self.counts[bucket(delay)] += 1;
        self.total += 1;
    }

    /// Returns the smallest bound that this share of the samples does not exceed, in thousandths,
    /// rounded up to a bucket; `None` without samples.
    pub fn quantile(&self, permille: u32) -> Option<Duration> {
        let rank = (u64::from(self.total) * u64::from(permille)).div_ceil(1_000).max(1);
        let mut below = 0;
        let reaches = |count: &u32| {
            below += u64::from(*count);
            below >= rank
        };
        self.counts.iter().position(reaches).map(bound)
    }

    /// Returns the number of samples, of which older ones count less.
    pub fn samples(&self) -> u32 {
        self.total
    }

    /// Returns the percentiles; `None` without samples.
    pub fn percentiles(&self) -> Option<DelayPercentiles> {
        Some(DelayPercentiles { p50: self.quantile(500)?, p99: self.quantile(990)? })
    }
}

/// The time in which the inputs of a batch come: a part for each row, and the rest.
#[derive(Clone, Debug, Default)]
pub struct DataDelay {
    /// The time without the part for the rows.
    base: DelayEstimate,
    sums: RowSums,
}

/// Sums over batches of their rows and times, in nanoseconds, of which least squares make a line.
#[derive(Clone, Copy, Debug, Default)]
struct RowSums {
    batches: i128,
    rows: i128,
    rows_squared: i128,
    times: i128,
    rows_times: i128,
}

/// A time counts as at most this multiple of the mean, so that one pause does not tilt the line.
const OUTLIER_FACTOR: i128 = 8;

impl RowSums {
    fn add(&mut self, rows: usize, time: Duration) {
        if self.batches >= i128::from(MEMORY) {
            let RowSums { batches, rows, rows_squared, times, rows_times } = self;
            [batches, rows, rows_squared, times, rows_times].into_iter().for_each(|sum| *sum /= 2);
        }
        let (rows, mut time) = (rows as i128, time.as_nanos().cast_signed());
        if self.times > 0 {
            time = time.min(OUTLIER_FACTOR * self.times / self.batches.max(1));
        }
        self.batches += 1;
        self.rows += rows;
        self.rows_squared += rows * rows;
        self.times += time;
        self.rows_times += rows * time;
    }

    /// Returns the time of a row: the slope of the line, and zero if it falls.
    fn per_row(&self) -> Duration {
        let spread = self.batches * self.rows_squared - self.rows * self.rows;
        let rise = self.batches * self.rows_times - self.rows * self.times;
        let slope = if spread > 0 { rise.max(0) / spread } else { 0 };
        Duration::from_nanos(u64::try_from(slope).unwrap_or(u64::MAX))
    }
}

impl DataDelay {
    /// Adds a batch of this number of rows.
    pub fn add(&mut self, rows: usize, time: Duration) {
        self.sums.add(rows, time);
        let of_rows = self.sums.per_row().saturating_mul(u32::try_from(rows).unwrap_or(u32::MAX));
        self.base.add(time.saturating_sub(of_rows));
    }

    /// Returns the time of a row, rounded up to a bucket so that it changes rarely. Less than a
    /// microsecond counts as nothing.
    fn per_row(&self) -> Duration {
        let per_row = self.sums.per_row();
        if per_row < Duration::from_micros(1) { Duration::ZERO } else { bound(bucket(per_row)) }
    }

    /// Returns the number of batches, of which older ones count less.
    pub fn samples(&self) -> u32 {
        self.base.samples()
    }

    /// Returns the delay to plan with: the time of a row, and this quantile, in thousandths, of the
    /// time that does not depend on the rows.
    pub fn planned(&self, permille: u32) -> NetworkDelay {
        let nanos = |span: Duration| Nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX));
        let control = nanos(self.base.quantile(permille).unwrap_or_default());
        NetworkDelay { control, data_per_row: nanos(self.per_row()) }
    }
}

impl Extend<Duration> for DelayEstimate {
    fn extend<T: IntoIterator<Item = Duration>>(&mut self, delays: T) {
        delays.into_iter().for_each(|delay| self.add(delay));
    }
}

/// Returns the bucket of a delay.
fn bucket(delay: Duration) -> usize {
    let units = (u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX) >> SMALLEST).max(1);
    let octave = units.ilog2();
    let quarter = (units << 2 >> octave) & 3;
    (octave as usize * 4 + quarter as usize).min(BUCKETS - 1)
}

/// Returns the end of a bucket.
fn bound(bucket: usize) -> Duration {
    let (octave, quarter) = (bucket as u32 / 4, bucket as u64 % 4);
    Duration::from_nanos(((quarter + 5) << octave << SMALLEST) >> 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_least_the_sample_and_at_most_a_quarter_above() {
        for nanos in [0, 1, 1_023, 1_024, 5_000, 77_777, 1_000_000, 123_456_789, 9_000_000_000_u64] {
            let mut estimate = DelayEstimate::default();
            assert_eq!(estimate.percentiles(), None);
            estimate.add(Duration::from_nanos(nanos));
            let DelayPercentiles { p50, p99 } = estimate.percentiles().unwrap();
            assert_eq!(p50, p99);
            let (bound, most) = (p50.as_nanos() as u64, nanos.max(1_024) / 4 * 5 + 1_280);
            assert!(bound > nanos && bound <= most, "{nanos}: {bound}");
        }
        let mut estimate = DelayEstimate::default();
        estimate.add(Duration::MAX);
        assert!(estimate.quantile(500).unwrap() > Duration::from_secs(60));
    }

    #[test]
    fn percentiles_follow_the_latest_samples() {
        let (mut estimate, ms) = (DelayEstimate::default(), Duration::from_millis);
        (0..98).for_each(|_| estimate.add(ms(1)));
        (0..2).for_each(|_| estimate.add(ms(50)));
        let DelayPercentiles { p50, p99 } = estimate.percentiles().unwrap();
        assert!(p50 < ms(2) && p99 >= ms(50));
        (0..5_000).for_each(|_| estimate.add(ms(8)));
        let DelayPercentiles { p50, p99 } = estimate.percentiles().unwrap();
        assert!(p50 == p99 && p50 >= ms(8) && p99 <= ms(10), "{p50:?} {p99:?}");
    }
    #[test]
    fn the_time_of_a_row_is_separated_from_the_rest() {
        let micros = Duration::from_micros;
        let mut delay = DataDelay::default();
        for at in 0..2_000 {
            let rows = 1 + at % 32;
            delay.add(rows as usize, micros(300 + 20 * rows));
        }
        let (row, base) = (delay.per_row(), delay.base.quantile(500).unwrap());
        assert!((micros(20)..=micros(25)).contains(&row), "{row:?}");
        assert!((micros(300)..=micros(400)).contains(&base), "{base:?}");
        // One pause changes little.
        delay.add(1, Duration::from_secs(9));
        assert!(delay.per_row() >= micros(15) && delay.base.quantile(900).unwrap() <= micros(400));
        // Batches of one size say nothing about a row.
        let mut same = DataDelay::default();
        (0..100).for_each(|_| same.add(8, micros(500)));
        assert_eq!(same.per_row(), Duration::ZERO);
        assert!(same.base.quantile(500).unwrap() >= micros(500));
    }
}
