//! Costs of requests by the size of their inputs, learnt from tasks.
//!
//! A profile is measured at one size of a model's open dimensions. A request of another size counts
//! as its model's profile times a factor, which is the mean of the measured over the profiled
//! duration of tasks of about its size. Sizes are the product of the open dimensions, in buckets of
//! a factor of 1.4, so that a model whose every request has a size of its own learns, too.
//!
//! A size without a task counts as the most that its neighbours say at least: as much as a smaller
//! one, and in proportion to a larger one. That guess is low, so the size is tried and measured. A
//! size that is refused and has not run for [`SILENCE`] counts half as much until it runs, so that
//! one stall of a device refuses no size for ever.

use ripieno_base::{MovingMean, Nanos, Time};
use ripieno_sched::CostScale;

/// Number of buckets, half doublings of the size.
const BUCKETS: usize = 128;
/// Steps of [`CostScale`] in a doubling, and those from a bucket to the next in proportion.
const DOUBLING: i32 = 8;
const PROPORTION: i32 = 4;
/// Largest weight of the past, in tasks.
const MEMORY: i64 = 8;
/// Number of tasks after which the factor of a size is known well enough to judge devices by.
const KNOWN: i64 = 4;
/// Upper bound on the change by one task, in steps: a factor of 8.
const OUTLIER: i64 = 24;
/// Fixed-point scale of the means: 256 is one step.
const PART: i64 = 256;
/// Time without a task after which a refused size counts less.
const SILENCE: Nanos = Nanos::from_millis(10_000);

/// The learnt costs of one model.
#[derive(Debug)]
pub(crate) struct ShapeCosts([SizeCost; BUCKETS]);

#[derive(Clone, Copy, Debug)]
struct SizeCost {
    /// Moving mean of the factor over the tasks so far; [`PART`] is one step.
    mean: MovingMean<MEMORY>,
    /// Number of steps that refusals have taken from it.
    lowered: i32,
    /// Time of the last task, or of the last lowering.
    since: Time,
}

/// The bucket of a request's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeBucket(u8);

impl SizeBucket {
    /// Returns the bucket of the sizes of a request's open dimensions.
    pub(crate) fn of(sizes: &[i64]) -> SizeBucket {
        let elements = sizes.iter().fold(1_u64, |product, &size| product.saturating_mul(size.max(1).cast_unsigned()));
        SizeBucket((u128::from(elements) * u128::from(elements)).ilog2() as u8)
    }
}

impl ShapeCosts {
    pub(crate) fn new() -> ShapeCosts {
        ShapeCosts([SizeCost { mean: MovingMean::guess(0, 0), lowered: 0, since: Time::ORIGIN }; BUCKETS])
    }

    /// Returns the factor of a size.
    pub(crate) fn scale(&self, bucket: SizeBucket) -> CostScale {
        let own = &self.0[usize::from(bucket.0)];
        let steps = if own.ran() { own.steps() } else { self.guess(bucket) };
        CostScale(steps.clamp(-i32::from(i8::MAX), i32::from(i8::MAX)) as i8)
    }

    /// Returns the steps of a size without tasks; 0 if no size has run.
    fn guess(&self, bucket: SizeBucket) -> i32 {
        let at = usize::from(bucket.0);
        let ran = |(_, size): &(i32, &SizeCost)| size.ran();
        let smaller = (1..).zip(self.0[..at].iter().rev()).find(ran).map(|(_, size)| size.steps());
        let larger = (1..).zip(&self.0[at + 1..]).find(ran).map(|(away, size)| size.steps() - PROPORTION * away);
        smaller.into_iter().chain(larger).max().unwrap_or(0)
    }

    /// Returns whether enough tasks of a size have run to judge a device by the next one.
    pub(crate) fn is_known(&self, bucket: SizeBucket) -> bool {
        self.0[usize::from(bucket.0)].mean.seen() >= KNOWN
    }

    /// Learns from a task of this size.
    pub(crate) fn observe(&mut self, now: Time, bucket: SizeBucket, took: Nanos, profiled: Nanos) {
        let size = &mut self.0[usize::from(bucket.0)];
        let sample = i64::from(CostScale::measured(took, profiled).0) * PART;
        let mean = size.mean.get();
        let most = if size.ran() { OUTLIER * PART } else { i64::MAX / 2 };
        size.mean.add(mean + (sample - mean).clamp(-most, most));
        (size.lowered, size.since) = (0, now);
    }

    /// Records that a request of this size was refused because it could not be in time.
    pub(crate) fn on_hopeless(&mut self, now: Time, bucket: SizeBucket) {
        let size = &mut self.0[usize::from(bucket.0)];
        if size.ran() && now - size.since >= SILENCE {
            (size.lowered, size.since) = (size.lowered + DOUBLING, now);
        }
    }

    /// Forgets all factors, after a change of the profile that they are relative to.
    pub(crate) fn forget(&mut self) {
        *self = ShapeCosts::new();
    }
}

impl SizeCost {
    /// Returns whether a task of this size has run.
    fn ran(&self) -> bool {
        self.mean.seen() > 0
    }

    fn steps(&self) -> i32 {
        (self.mean.get() + PART / 2).div_euclid(PART) as i32 - self.lowered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    fn at(ms: i64) -> Time {
        Time::ORIGIN + MS(ms)
    }

    fn pixels(side: i64) -> SizeBucket {
        SizeBucket::of(&[side, side])
    }

    /// Costs of images, of which each took these milliseconds where the profile has 10.
    fn learnt(tasks: &[(i64, i64)]) -> ShapeCosts {
        let mut costs = ShapeCosts::new();
        tasks.iter().for_each(|&(side, took)| costs.observe(at(0), pixels(side), MS(took), MS(10)));
        costs
    }

    #[test]
    fn a_size_costs_what_its_tasks_took() {
        let costs = learnt(&[(64, 1), (512, 52), (64, 1), (512, 50)]);
        let of = |side| costs.scale(pixels(side)).of(MS(10)).as_millis_f64();
        assert!((0.9..1.1).contains(&of(64)) && (48.0..55.0).contains(&of(512)), "{} {}", of(64), of(512));
        // Between and beyond them it is the most that they say at least.
        assert!((12.0..14.0).contains(&of(256)), "a quarter of the larger one: {}", of(256));
        assert!((1.4..2.3).contains(&of(96)), "in proportion to the larger one: {}", of(96));
        assert!((48.0..55.0).contains(&of(2_048)), "as much as the smaller one: {}", of(2_048));
        assert!(of(16) < 0.1, "in proportion: {}", of(16));
    }

    #[test]
    fn without_tasks_the_profile_counts_and_sizes_are_bounded() {
        let costs = ShapeCosts::new();
        assert_eq!(costs.scale(pixels(224)), CostScale::PROFILED);
        assert_eq!(SizeBucket::of(&[i64::MAX, i64::MAX]), SizeBucket(127));
        assert_eq!((SizeBucket::of(&[0, -1]), SizeBucket::of(&[])), (SizeBucket(0), SizeBucket(0)));
        assert_eq!(costs.scale(SizeBucket(127)), CostScale::PROFILED);
    }

    #[test]
    fn a_change_is_followed_within_a_dozen_tasks_and_a_stall_counts_little() {
        let mut costs = learnt(&[(64, 10); 20]);
        costs.observe(at(1), pixels(64), MS(10_000), MS(10));
        assert!(costs.scale(pixels(64)).of(MS(10)) < MS(14));
        (0..12).for_each(|ms| costs.observe(at(ms), pixels(64), MS(80), MS(10)));
        assert!(costs.scale(pixels(64)).of(MS(10)) > MS(50));
    }

    #[test]
    fn a_refused_size_that_does_not_run_is_tried_again() {
        let mut costs = learnt(&[(64, 10_000)]);
        let cost = |costs: &ShapeCosts| costs.scale(pixels(64)).of(MS(10));
        costs.on_hopeless(at(9_000), pixels(64));
        assert!(cost(&costs) > MS(9_000));
        (1..=3).for_each(|turn| costs.on_hopeless(at(turn * 10_000), pixels(64)));
        assert!(cost(&costs) < MS(1_500), "half as much each ten seconds: {:?}", cost(&costs));
        costs.observe(at(31_000), pixels(64), MS(10_000), MS(10));
        assert!(cost(&costs) > MS(9_000), "the size has run");
    }
}
