//! The latency profile ℓ(b): the time that a batch of b rows takes on one block.
//!
//! Decisions use a table, because the latency of real devices has steps. A line αb+β with its R² is
//! fitted for display only. The table is made monotone (running maximum), because in a noisy
//! measurement a larger batch may seem cheaper. So "the largest batch that fits a span" is one
//! binary search.

use crate::padded_size;
use ripieno_base::Nanos;
use std::cmp::Ordering;
use std::fmt;

/// Latency by batch size, for batch sizes `1..=max_batch`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Profile {
    /// Entry `b - 1` is ℓ(b). Entries never decrease.
    table: Box<[Nanos]>,
}

/// Least-squares line αb+β through a profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Cost of each additional row, α.
    pub alpha_ms: f64,
    /// Fixed cost of a batch, β.
    pub beta_ms: f64,
    /// Share of the variance that the line explains, from 0 to 1.
    pub r_squared: f64,
}

/// Reason why numbers are not a valid profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileError {
    /// There are no batch sizes.
    Empty,
    /// The latency is zero, negative or not a number at some batch size.
    NotPositive {
        /// Batch size that causes the error.
        batch: usize,
    },
    /// There are more batch sizes than [`Profile::MAX_BATCH`].
    TooLong {
        /// Number of batch sizes given.
        given: usize,
    },
}

impl Profile {
    /// The largest batch size that a profile may describe.
    pub const MAX_BATCH: usize = 65_536;

    /// Creates a profile from measured or published latencies: `latencies[b - 1]` is ℓ(b). The
    /// profile is made monotone.
    pub fn from_table(latencies: &[Nanos]) -> Result<Profile, ProfileError> {
        if latencies.is_empty() {
            return Err(ProfileError::Empty);
        }
        if latencies.len() > Profile::MAX_BATCH {
            return Err(ProfileError::TooLong { given: latencies.len() });
        }
        if let Some(at) = latencies.iter().position(|&latency| latency <= Nanos::ZERO) {
            return Err(ProfileError::NotPositive { batch: at + 1 });
        }
        let mut longest = Nanos::ZERO;
        let table = latencies.iter().map(|&latency| {
            longest = longest.max(latency);
            longest
        });
        Ok(Profile { table: table.collect() })
    }

    /// Creates the profile ℓ(b) = αb + β for `1..=max_batch`, in milliseconds.
    pub fn linear(alpha_ms: f64, beta_ms: f64, max_batch: usize) -> Result<Profile, ProfileError> {
        if !(alpha_ms.is_finite() && beta_ms.is_finite() && alpha_ms >= 0.0) {
            return Err(ProfileError::NotPositive { batch: 1 });
        }
        if max_batch > Profile::MAX_BATCH {
            return Err(ProfileError::TooLong { given: max_batch });
        }
        let at = |batch: usize| Nanos::from_millis_f64(alpha_ms * batch as f64 + beta_ms);
        Profile::from_table(&(1..=max_batch).map(at).collect::<Vec<_>>())
    }

    /// Creates a profile from latencies at some batch sizes, which must ascend. Interpolates
    /// linearly between them. Below the first size, the latency is the first size's.
    pub fn interpolate(points: &[(usize, Nanos)]) -> Result<Profile, ProfileError> {
        let (&(first, _), &(last, _)) = (points.first().zip(points.last())).ok_or(ProfileError::Empty)?;
        if last > Profile::MAX_BATCH {
            return Err(ProfileError::TooLong { given: last });
        }
        let mut table = vec![points[0].1; first];
        for pair in points.windows(2) {
            let ((b0, l0), (b1, l1)) = (pair[0], pair[1]);
            let rise = |b: usize| Nanos(l0.0 + (l1.0 - l0.0) * (b - b0) as i64 / (b1 - b0) as i64);
            table.extend((b0 + 1..=b1).map(rise));
        }
        Profile::from_table(&table)
    }

    /// Returns ℓ(b) for `1 <= batch <= max_batch`. A larger batch costs [`Nanos::MAX`], so that it
    /// meets no deadline.
    pub fn latency(&self, batch: usize) -> Nanos {
        debug_assert!(batch > 0);
        self.table.get(batch - 1).copied().unwrap_or(Nanos::MAX)
    }

    /// Returns the share of its device that a batch can use, in millionths: its throughput divided
    /// by the highest throughput of any batch.
    pub fn share(&self, batch: usize) -> u32 {
        let best = self.table.iter().zip(1..).map(|(&latency, rows)| WorkRate { work: rows, latency }).max();
        let best = best.expect("a profile has batch sizes");
        WorkRate { work: batch as u64, latency: self.latency(batch) }.over(best)
    }

    /// Returns the smallest batch with at least 95 % of the highest throughput.
    pub fn preferred(&self) -> usize {
        (1..=self.max_batch()).find(|&batch| self.share(batch) >= 950_000).unwrap_or(self.max_batch())
    }

    /// Whether the preferred batch sizes of a model's parts differ by a factor of two or more.
    /// Smaller differences may come from the measurement.
    pub fn prefer_differently(preferred: impl Iterator<Item = usize> + Clone) -> bool {
        preferred.clone().min().zip(preferred.max()).is_some_and(|(least, most)| most >= 2 * least)
    }

    /// Returns the largest batch size that the profile describes.
    pub fn max_batch(&self) -> usize {
        self.table.len()
    }

    /// Returns the largest b with ℓ(b) ≤ `span`; 0 if not even one row fits.
    pub fn largest_within(&self, span: Nanos) -> usize {
        self.table.partition_point(|&latency| latency <= span)
    }

    /// Returns the profile for batches of at most `max_batch` rows.
    pub fn truncated(&self, max_batch: usize) -> Profile {
        Profile { table: self.table[..max_batch.clamp(1, self.table.len())].into() }
    }

    /// Returns the profile of batches that are padded to the next of these ascending `sizes`.
    pub fn stepped(&self, sizes: &[usize]) -> Profile {
        let largest = self.max_batch();
        let padded = |batch: usize| self.latency(padded_size(sizes, batch).min(largest));
        Profile { table: (1..=largest).map(padded).collect() }
    }

    /// Returns the profile of running `blocks` one after the other. Its largest batch is the
    /// smallest among the largest batches of the blocks.
    pub fn sum<'a>(blocks: impl Iterator<Item = &'a Profile> + Clone) -> Profile {
        let max_batch = blocks.clone().map(Profile::max_batch).min().unwrap_or(0);
        assert!(max_batch > 0, "a model has at least one block");
        let total = |batch: usize| blocks.clone().map(|profile| profile.latency(batch)).sum();
        Profile { table: (1..=max_batch).map(total).collect() }
    }

    /// Returns the latencies ℓ(1), ℓ(2), …
    pub fn table(&self) -> &[Nanos] {
        &self.table
    }

    /// Fits the least-squares line through the table.
    pub fn fit(&self) -> Fit {
        let n = self.table.len() as f64;
        let points = || self.table.iter().enumerate().map(|(at, latency)| ((at + 1) as f64, latency.as_millis_f64()));
        let (mean_b, mean_l) = points().fold((0.0, 0.0), |(b, l), (x, y)| (b + x / n, l + y / n));
        let sum = |f: &dyn Fn(f64, f64) -> f64| points().map(|(x, y)| f(x - mean_b, y - mean_l)).sum::<f64>();
        let (sxx, sxy, syy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
        let alpha_ms = if sxx > 0.0 { sxy / sxx } else { 0.0 };
        let r_squared = if sxx > 0.0 && syy > 0.0 { (sxy * sxy / (sxx * syy)).min(1.0) } else { 1.0 };
        Fit { alpha_ms, beta_ms: mean_l - alpha_ms * mean_b, r_squared }
    }
}

/// Work per time, compared without rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRate {
    pub(crate) work: u64,
    pub(crate) latency: Nanos,
}

impl WorkRate {
    /// Returns this rate in millionths of `best`, which must be at least as high.
    pub(crate) fn over(self, best: WorkRate) -> u32 {
        let part = self.products(best);
        (part.0 * 1_000_000 / part.1.max(1)).min(1_000_000) as u32
    }

    /// Returns the cross products, which compare like the rates.
    fn products(self, other: WorkRate) -> (u128, u128) {
        let product =
            |rate: WorkRate, other: WorkRate| u128::from(rate.work) * u128::from(other.latency.0.unsigned_abs());
        (product(self, other), product(other, self))
    }
}

impl Ord for WorkRate {
    fn cmp(&self, other: &WorkRate) -> Ordering {
        let (this, that) = self.products(*other);
        this.cmp(&that)
    }
}

impl PartialOrd for WorkRate {
    fn partial_cmp(&self, other: &WorkRate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for WorkRate {
    fn eq(&self, other: &WorkRate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for WorkRate {}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::Empty => write!(f, "a latency profile needs at least one batch size"),
            ProfileError::NotPositive { batch } => {
                write!(f, "the latency of batch size {batch} must be a positive number")
            }
            ProfileError::TooLong { given } => {
                write!(f, "{given} batch sizes are more than the {} that a profile may have", Profile::MAX_BATCH)
            }
        }
    }
}

impl std::error::Error for ProfileError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(millis: &[i64]) -> Profile {
        Profile::from_table(&millis.iter().map(|&ms| Nanos::from_millis(ms)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_dip_is_raised_to_the_running_maximum() {
        assert_eq!(table(&[2, 5, 4, 6]).table(), table(&[2, 5, 5, 6]).table());
    }

    #[test]
    fn largest_within_is_the_inverse_of_latency() {
        let profile = Profile::linear(1.053, 5.072, 64).unwrap();
        for batch in 1..=64 {
            assert_eq!(profile.largest_within(profile.latency(batch)), batch);
            assert_eq!(profile.largest_within(profile.latency(batch) - Nanos(1)), batch - 1);
        }
        assert_eq!(profile.latency(65), Nanos::MAX);
    }

    #[test]
    fn padded_batches_cost_what_their_size_costs() {
        let profile = table(&[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(profile.stepped(&[1, 2, 4, 7]), table(&[1, 2, 4, 4, 7, 7, 7]));
        assert_eq!(profile.stepped(&[4, 16]), table(&[4, 4, 4, 4, 7, 7, 7]));
        assert_eq!(profile.stepped(&[]), profile);
    }

    #[test]
    fn the_fit_recovers_a_line_and_measures_a_bend() {
        let fit = Profile::linear(1.053, 5.072, 64).unwrap().fit();
        assert!((fit.alpha_ms - 1.053).abs() < 1e-6 && (fit.beta_ms - 5.072).abs() < 1e-4, "{fit:?}");
        assert!(fit.r_squared > 0.999_999);
        assert!(table(&[1, 1, 1, 9]).fit().r_squared < 0.7);
        assert_eq!(table(&[3]).fit(), Fit { alpha_ms: 0.0, beta_ms: 3.0, r_squared: 1.0 });
    }

    #[test]
    fn interpolation_is_linear_between_points() {
        let ms = Nanos::from_millis;
        let profile = Profile::interpolate(&[(2, ms(4)), (4, ms(8)), (5, ms(20))]).unwrap();
        assert_eq!(profile.table(), [ms(4), ms(4), ms(6), ms(8), ms(20)]);
    }

    #[test]
    fn a_batch_uses_the_device_as_far_as_it_gains_by_its_rows() {
        // The latency is constant up to four rows and proportional beyond.
        let profile = table(&[4, 4, 4, 4, 5, 6, 7, 8]);
        let shares: Vec<_> = (1..=8).map(|batch| profile.share(batch)).collect();
        assert_eq!(shares, [250_000, 500_000, 750_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000]);
        let differently = |preferred: &[usize]| Profile::prefer_differently(preferred.iter().copied());
        assert!(differently(&[4, 3, 2]) && !differently(&[5, 3, 4]) && !differently(&[3]) && !differently(&[]));
        assert_eq!((profile.preferred(), table(&[1, 2, 3]).preferred(), table(&[3, 3, 3]).preferred()), (4, 1, 3));
    }

    #[test]
    fn a_chain_costs_the_sum_of_its_blocks() {
        let (a, b) = (table(&[1, 2, 3]), table(&[10, 11]));
        assert_eq!(Profile::sum([&a, &b].into_iter()).table(), table(&[11, 13]).table());
    }

    #[test]
    fn bad_numbers_are_named() {
        assert_eq!(Profile::from_table(&[]), Err(ProfileError::Empty));
        assert_eq!(Profile::from_table(&[Nanos(3), Nanos(0)]), Err(ProfileError::NotPositive { batch: 2 }));
        assert_eq!(Profile::linear(f64::NAN, 1.0, 4), Err(ProfileError::NotPositive { batch: 1 }));
        assert_eq!(Profile::linear(1.0, 1.0, 1 << 20), Err(ProfileError::TooLong { given: 1 << 20 }));
    }
}
