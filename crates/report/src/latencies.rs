//! A latency distribution of fixed size.
//!
//! An HDR histogram keeps three significant digits from a microsecond to an hour, merges without
//! loss and never grows. Mean and maximum are exact, and quantiles are clamped to the observed
//! range, so that a run with equal latencies reports exactly that latency.

use hdrhistogram::Histogram;
use ripieno_base::Nanos;

const LOWEST_NS: u64 = 1_000;
const HIGHEST_NS: u64 = 3_600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// Latencies from 1 µs to 1 h with three significant digits; a value outside counts as the nearest
/// bound.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: i128,
    min_ns: i64,
    max_ns: i64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    /// Returns an empty distribution.
    pub fn new() -> Latencies {
        let histogram = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS)
            .expect("the bounds are constants that the histogram accepts");
        Latencies { histogram, sum_ns: 0, min_ns: i64::MAX, max_ns: 0 }
    }

    /// Counts one latency; a negative one counts as zero.
    pub fn record(&mut self, latency: Nanos) {
        let ns = latency.0.max(0);
        self.histogram.saturating_record(ns as u64);
        self.sum_ns += i128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Latencies) {
        self.histogram.add(&other.histogram).expect("all distributions have the same bounds");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the latency that the fraction `quantile` (0 to 1) does not exceed, in ms; `None` if
    /// nothing was counted.
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        // The lower end of the bin: deadline-driven schedules finish much work exactly at the SLO,
        // and the upper end would report it as late.
        let ns = self.histogram.lowest_equivalent(self.histogram.value_at_quantile(quantile)) as i64;
        (self.count() > 0).then(|| Nanos(ns.clamp(self.min_ns, self.max_ns)).as_millis_f64())
    }

    /// Returns the median in ms.
    pub fn p50_ms(&self) -> Option<f64> {
        self.quantile_ms(0.5)
    }

    /// Returns the 90th percentile in ms.
    pub fn p90_ms(&self) -> Option<f64> {
        self.quantile_ms(0.9)
    }

    /// Returns the 99th percentile in ms.
    pub fn p99_ms(&self) -> Option<f64> {
        self.quantile_ms(0.99)
    }

    /// Returns the exact mean in ms.
    pub fn mean_ms(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum_ns as f64 / self.count() as f64 / 1e6)
    }

    /// Returns the exact maximum in ms.
    pub fn max_ms(&self) -> Option<f64> {
        (self.count() > 0).then(|| Nanos(self.max_ns).as_millis_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_have_three_digits() {
        let mut latencies = Latencies::new();
        (1..=100_000).for_each(|us| latencies.record(Nanos::from_micros(us)));
        for (quantile, ms) in [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0)] {
            let measured = latencies.quantile_ms(quantile).unwrap();
            assert!((measured / ms - 1.0).abs() < 1e-3, "{quantile}: {measured}");
        }
        assert_eq!((latencies.mean_ms(), latencies.max_ms()), (Some(50.0005), Some(100.0)));
    }

    #[test]
    fn equal_latencies_are_reported_exactly() {
        let mut latencies = Latencies::new();
        (0..10).for_each(|_| latencies.record(Nanos(12_345_678)));
        assert_eq!((latencies.p50_ms(), latencies.p99_ms()), (Some(12.345678), Some(12.345678)));
    }

    #[test]
    fn merging_equals_recording_together() {
        let (mut all, mut even, mut odd) = (Latencies::new(), Latencies::new(), Latencies::new());
        for ms in 1..500 {
            all.record(Nanos::from_millis(ms));
            if ms % 2 == 0 { &mut even } else { &mut odd }.record(Nanos::from_millis(ms));
        }
        even.merge(&odd);
        assert_eq!((even.p99_ms(), even.mean_ms(), even.count()), (all.p99_ms(), all.mean_ms(), all.count()));
    }

    #[test]
    fn nothing_counted_has_no_quantiles_and_extremes_do_not_panic() {
        let mut latencies = Latencies::new();
        assert_eq!((latencies.p50_ms(), latencies.mean_ms(), latencies.max_ms()), (None, None, None));
        latencies.record(Nanos(-5));
        latencies.record(Nanos::MAX);
        assert_eq!(latencies.count(), 2);
    }
}
