//! Delays between the processes of a cluster, as distributions that forget.
//!
//! Clocks of machines differ, so only spans of one clock are compared. A message's delay is half of
//! a round trip without the time that the other side spent.

use std::time::Duration;

/// Number of buckets: four for each factor of two, from a microsecond to about a minute.
const BUCKETS: usize = 4 * 26;
/// Smallest bucket, as a power of two of nanoseconds.
const SMALLEST: u32 = 10;
/// Number of samples from which on all count half.
const MEMORY: u32 = 512;

/// A distribution of delays. Older samples count less and less.
#[derive(Clone, Debug)]
pub(crate) struct DelayEstimate {
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
    pub(crate) fn add(&mut self, delay: Duration) {
        if self.total >= MEMORY {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
        self.counts[bucket(delay)] += 1;
        self.total += 1;
    }

    /// Returns the smallest bound that this share of the samples does not exceed, in thousandths,
    /// rounded up to a bucket; `None` without samples.
    pub(crate) fn quantile(&self, permille: u32) -> Option<Duration> {
        let rank = (u64::from(self.total) * u64::from(permille)).div_ceil(1_000).max(1);
        let mut below = 0;
        let reaches = |count: &u32| {
            below += u64::from(*count);
            below >= rank
        };
        self.counts.iter().position(reaches).map(bound)
    }

    /// Returns the percentiles; `None` without samples.
    pub(crate) fn percentiles(&self) -> Option<DelayPercentiles> {
        Some(DelayPercentiles { p50: self.quantile(500)?, p99: self.quantile(990)? })
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
}
