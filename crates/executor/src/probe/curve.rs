//! Measurement of a latency curve that is robust against stalls.
//!
//! Preemption, page faults and slow clocks make a run longer, never shorter. So the measurement
//! uses medians and does not trust few runs. If the latency of a batch size does not fit the other
//! sizes, the size is measured again and the shorter latency is kept. The number of repetitions is
//! bounded.

use crate::{ExecError, LoadError};
use ripieno_base::Nanos;
use std::time::Duration;

/// Progress of the measurement after one batch size.
#[derive(Clone, Copy, Debug)]
pub struct MeasurementProgress {
    /// The batch size.
    pub batch: usize,
    /// Median latency of the size, summed over all blocks.
    pub latency: Nanos,
    /// Number of sizes measured, including this one.
    pub done: usize,
    /// Number of sizes in total.
    pub sizes: usize,
}

/// Runs batches and provides the clock that times them.
pub(crate) trait BatchRunner {
    /// Returns the time since the start of the measurement.
    fn elapsed(&self) -> Duration;

    /// Runs a batch once and appends the duration of each task to its block's samples.
    fn run(&mut self, batch: usize, samples: &mut [Vec<Nanos>]) -> Result<(), ExecError>;
}

/// Latencies by block and batch size.
#[derive(Debug)]
pub(crate) struct LatencyCurve {
    pub(crate) blocks: Vec<Vec<(usize, Nanos)>>,
    /// Reason why the latencies are unreliable even after outliers were measured again.
    pub(crate) unreliable: Option<String>,
}

/// Number of samples after which the median is accurate enough.
const MAX_SAMPLES: usize = 15;
const WARM_UPS: usize = 2;
/// Smallest number of samples, if there is time for them. The median of three is correct if one of
/// them is a stall.
const MIN_SAMPLES: usize = 3;
/// Largest number of repeated measurements of a batch size.
const MAX_REPEATS: u32 = 3;
/// Time for repeated measurements, in percent of the budget and in addition to it.
const REPEATS_BUDGET: u32 = 50;
/// Largest total time, in budgets, up to which a size that seems too slow is measured once more.
const CONFIRM_BUDGET_FACTOR: u32 = 4;
/// Latency in percent of the expected latency above which a size is an outlier.
const MAX_EXCESS: i64 = 150;
/// Smallest expected latency. Shorter latencies consist mostly of thread wake-ups.
const MIN_EXPECTED: Nanos = Nanos::from_micros(50);
/// Latency of a batch, in percent of a larger batch's latency, above which the curve is unreliable.
const MAX_FALL: i64 = 150;
/// R² below which a curve with a wide spread is unreliable.
const MIN_R_SQUARED: f64 = 0.5;
/// Residual relative to the mean above which the spread counts as wide.
const MIN_SPREAD: f64 = 0.4;

/// One batch size.
struct SizePoint {
    batch: usize,
    /// Latency of each block.
    latencies: Vec<Nanos>,
    repeats: u32,
}

impl SizePoint {
    fn total(&self) -> Nanos {
        self.latencies.iter().copied().sum()
    }
}

struct Measuring<'a> {
    bench: &'a mut dyn BatchRunner,
    blocks: usize,
    budget: Duration,
    points: Vec<SizePoint>,
}

/// Measures the latencies of `sizes`, which ascend, as far as the budget allows.
pub(crate) fn measure_curve(
    bench: &mut dyn BatchRunner,
    blocks: usize,
    sizes: &[usize],
    budget: Duration,
    progress: &mut dyn FnMut(MeasurementProgress),
) -> Result<LatencyCurve, LoadError> {
    let mut measuring = Measuring { bench, blocks, budget, points: Vec::new() };
    for (at, &batch) in sizes.iter().enumerate() {
        if at > 0 && measuring.expected(batch) > measuring.left() {
            measuring.confirm_last()?;
            if measuring.expected(batch) > measuring.left() {
                break;
            }
        }
        let left = measuring.left();
        let latencies = measuring.median(batch, left / (sizes.len() - at) as u32, left)?;
        let latency = latencies.iter().copied().sum();
        measuring.points.push(SizePoint { batch, latencies, repeats: 0 });
        progress(MeasurementProgress { batch, latency, done: at + 1, sizes: sizes.len() });
    }
    measuring.repeat_outliers()?;
    let totals: Vec<(usize, Nanos)> = measuring.points.iter().map(|point| (point.batch, point.total())).collect();
    let of_block = |block: usize| measuring.points.iter().map(|point| (point.batch, point.latencies[block])).collect();
    Ok(LatencyCurve { blocks: (0..blocks).map(of_block).collect(), unreliable: unreliable_reason(&totals) })
}

impl Measuring<'_> {
    fn left(&self) -> Duration {
        self.budget.saturating_sub(self.bench.elapsed())
    }

    /// Expected time of the first run at `batch`, extrapolated in proportion from the last size.
    fn expected(&self, batch: usize) -> Duration {
        let last = self.points.last().map_or(Nanos::ZERO, |last| last.total().scale(batch as u64, last.batch as u64));
        duration(last)
    }

    fn run(&mut self, batch: usize, samples: &mut [Vec<Nanos>]) -> Result<(), LoadError> {
        let failed = |cause| {
            LoadError(format!(
                "a batch of {batch} failed while its latency was measured: {cause}; if the model refuses made-up values, \
                 give its inputs `min` and `max` in model.toml"
            ))
        };
        self.bench.run(batch, samples).map_err(failed)
    }

    /// Returns the median latency of each block. Runs as often as fits in `share`, or as often as
    /// needed to detect a stall within half of `left`. The first run does not count, because it
    /// allocates memory and may take many times longer. It counts only if it alone uses up `left`.
    fn median(&mut self, batch: usize, share: Duration, left: Duration) -> Result<Vec<Nanos>, LoadError> {
        let begun = self.bench.elapsed();
        let mut samples: Vec<Vec<Nanos>> = vec![Vec::new(); self.blocks];
        let (mut counted, mut took) = (0, Duration::ZERO);
        for run in 0..WARM_UPS + MAX_SAMPLES {
            // After a slow first run, the second run already counts.
            if run == 1 || (run > 1 && run <= WARM_UPS && took <= share) {
                samples.iter_mut().for_each(Vec::clear);
                counted = 0;
            }
            self.run(batch, &mut samples)?;
            counted += 1;
            took = self.bench.elapsed().saturating_sub(begun);
            let most = if run == 0 { left } else { share.max(left / 2) };
            if took > most || (run > 0 && took > share && counted >= MIN_SAMPLES) {
                break;
            }
        }
        Ok(medians(samples))
    }

    /// Measures a size once more and keeps the shorter latency of each block.
    fn repeat(&mut self, at: usize) -> Result<(), LoadError> {
        let batch = self.points[at].batch;
        let share = self.budget / 20;
        let begun = self.bench.elapsed();
        let mut samples: Vec<Vec<Nanos>> = vec![Vec::new(); self.blocks];
        for _ in 0..MAX_SAMPLES {
            self.run(batch, &mut samples)?;
            if self.bench.elapsed().saturating_sub(begun) > share {
                break;
            }
        }
        let point = &mut self.points[at];
        point.repeats += 1;
        for (latency, again) in point.latencies.iter_mut().zip(medians(samples)) {
            *latency = again.min(*latency);
        }
        Ok(())
    }

    fn may_confirm(&self, at: usize) -> bool {
        let point = &self.points[at];
        point.repeats == 0
            && self.bench.elapsed() + duration(point.total()) <= self.budget.saturating_mul(CONFIRM_BUDGET_FACTOR)
    }

    /// Measures the last size again if no time seems left for the next size, because all larger
    /// sizes are extrapolated from it.
    fn confirm_last(&mut self) -> Result<(), LoadError> {
        let last = self.points.len() - 1;
        if self.may_confirm(last) {
            self.repeat(last)?;
        }
        Ok(())
    }

    /// Measures outliers again, the worst first.
    fn repeat_outliers(&mut self) -> Result<(), LoadError> {
        let until = self.budget.saturating_add(self.budget.saturating_mul(REPEATS_BUDGET) / 100);
        for _ in 0..self.points.len() * MAX_REPEATS as usize {
            let totals: Vec<(usize, Nanos)> = self.points.iter().map(|point| (point.batch, point.total())).collect();
            let left = until.saturating_sub(self.bench.elapsed());
            let fits = |at: usize| self.points[at].repeats < MAX_REPEATS && duration(totals[at].1) <= left;
            let again = |at: &usize| fits(*at) || self.may_confirm(*at);
            let suspects = (0..totals.len()).filter(again).map(|at| (excess(&totals, at), at));
            match suspects.max() {
                Some((by, at)) if by > MAX_EXCESS => self.repeat(at)?,
                _ => break,
            }
        }
        Ok(())
    }
}

fn duration(span: Nanos) -> Duration {
    Duration::from_nanos(span.0.unsigned_abs())
}

/// Returns the median of each block. Of two samples it returns the shorter one, because the other
/// may be a stall.
fn medians(samples: Vec<Vec<Nanos>>) -> Vec<Nanos> {
    let median = |mut of_block: Vec<Nanos>| {
        of_block.sort_unstable();
        // The example may have no node that runs this cell, so its duration is unknown.
        of_block.get(of_block.len().saturating_sub(1) / 2).copied().unwrap_or(Nanos(1))
    };
    samples.into_iter().map(median).collect()
}

/// Returns a latency in percent of the latency that the other sizes suggest. A batch should not
/// take longer than a larger batch, nor lie far above the line through two other sizes.
fn excess(points: &[(usize, Nanos)], at: usize) -> i64 {
    let over = |expected: Nanos| {
        let hundredths = i128::from(points[at].1.0) * 100 / i128::from(expected.max(MIN_EXPECTED).0);
        i64::try_from(hundredths).unwrap_or(i64::MAX)
    };
    let falls = points[at + 1..].iter().map(|&(_, larger)| over(larger)).max().unwrap_or(0);
    let line = |a: usize, b: usize| {
        let ((b0, l0), (b1, l1)) = (points[a], points[b]);
        let rise = (l1.0 - l0.0) as f64 / (b1 as f64 - b0 as f64);
        let there = l0.0 as f64 + rise * (points[at].0 as f64 - b0 as f64);
        // If both neighbours are outliers, the line through them may fall below the latency of a
        // smaller batch.
        Nanos(there as i64).max(if at > 0 { points[at - 1].1 } else { Nanos::ZERO })
    };
    let above = match (at, points.len()) {
        // The first size has no lower neighbour, so no line is possible.
        (0, _) => 0,
        (_, 2) => over(points[0].1.scale(points[1].0 as u64, points[0].0 as u64)),
        (at, sizes) if at + 1 == sizes => over(line(at - 2, at - 1)),
        _ => over(line(at - 1, at + 1)),
    };
    falls.max(above)
}

/// Returns the reason why these latencies are unreliable, if any.
fn unreliable_reason(points: &[(usize, Nanos)]) -> Option<String> {
    for pair in points.windows(2) {
        let ((smaller, long), (larger, short)) = (pair[0], pair[1]);
        if i128::from(long.0) * 100 > i128::from(short.max(MIN_EXPECTED).0) * i128::from(MAX_FALL) {
            let (long, short) = (long.as_millis_f64(), short.as_millis_f64());
            return Some(format!("a batch of {smaller} takes {long:.3} ms, and one of {larger} only {short:.3} ms"));
        }
    }
    let (r_squared, apart) = fit(points);
    (points.len() > 2 && r_squared < MIN_R_SQUARED && apart > MIN_SPREAD)
        .then(|| format!("the latencies lie on no line: R² = {r_squared:.2}"))
}

/// Fits a least-squares line through the points. Returns its R², and its residual relative to the
/// mean.
fn fit(points: &[(usize, Nanos)]) -> (f64, f64) {
    let n = points.len() as f64;
    let all = || points.iter().map(|&(batch, latency)| (batch as f64, latency.0 as f64));
    let (mean_b, mean_l) = all().fold((0.0, 0.0), |(b, l), (x, y)| (b + x / n, l + y / n));
    let sum = |f: &dyn Fn(f64, f64) -> f64| all().map(|(x, y)| f(x - mean_b, y - mean_l)).sum::<f64>();
    let (sxx, sxy, syy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
    if sxx <= 0.0 || syy <= 0.0 {
        return (1.0, 0.0);
    }
    let r_squared = (sxy * sxy / (sxx * syy)).min(1.0);
    (r_squared, (syy * (1.0 - r_squared) / n).sqrt() / mean_l.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulated runs. A batch takes `truth` of its size, and longer during a stall.
    struct Fake<F: Fn(usize) -> Nanos> {
        now: Duration,
        truth: F,
        /// Ranges of stalled runs, with the delay of each run.
        stalls: Vec<(std::ops::Range<usize>, Nanos)>,
        runs: usize,
    }

    impl<F: Fn(usize) -> Nanos> BatchRunner for Fake<F> {
        fn elapsed(&self) -> Duration {
            self.now
        }

        fn run(&mut self, batch: usize, samples: &mut [Vec<Nanos>]) -> Result<(), ExecError> {
            let stall = self.stalls.iter().find(|(runs, _)| runs.contains(&self.runs));
            let took = (self.truth)(batch) + stall.map_or(Nanos::ZERO, |&(_, by)| by);
            self.runs += 1;
            self.now += duration(took);
            samples[0].push(took);
            Ok(())
        }
    }

    const MS: fn(i64) -> Nanos = Nanos::from_millis;
    const SIZES: [usize; 6] = [1, 2, 4, 8, 16, 32];
    const BUDGET: Duration = Duration::from_secs(3);

    /// ℓ(b) = b + 1 ms.
    fn line(batch: usize) -> Nanos {
        MS(batch as i64 + 1)
    }

    fn measure(fake: &mut Fake<impl Fn(usize) -> Nanos>, budget: Duration) -> LatencyCurve {
        measure_curve(fake, 1, &SIZES, budget, &mut |_| {}).unwrap()
    }

    fn truth(batches: &[usize]) -> Vec<(usize, Nanos)> {
        batches.iter().map(|&batch| (batch, line(batch))).collect()
    }

    #[test]
    fn without_stalls_nothing_is_measured_again() {
        let mut fake = Fake { now: Duration::ZERO, truth: line, stalls: vec![], runs: 0 };
        let curve = measure(&mut fake, BUDGET);
        assert_eq!((curve.blocks[0].clone(), curve.unreliable), (truth(&SIZES), None));
        assert_eq!(fake.runs, SIZES.len() * (WARM_UPS + MAX_SAMPLES));
    }

    #[test]
    fn one_stall_changes_nothing_wherever_it_strikes() {
        for budget in [BUDGET, Duration::from_millis(300)] {
            for stalled in 0..SIZES.len() * (WARM_UPS + MAX_SAMPLES) {
                let stalls = vec![(stalled..stalled + 1, MS(307))];
                let mut fake = Fake { now: Duration::ZERO, truth: line, stalls, runs: 0 };
                let curve = measure(&mut fake, budget);
                let batches: Vec<usize> = curve.blocks[0].iter().map(|&(batch, _)| batch).collect();
                assert_eq!(curve.blocks[0], truth(&batches), "{budget:?}: run {stalled}");
                assert_eq!(curve.unreliable, None);
            }
        }
    }

    #[test]
    fn a_stall_of_a_whole_batch_size_is_measured_again() {
        // A stall of several seconds begins at any run.
        for first in 0..60 {
            let mut fake =
                Fake { now: Duration::ZERO, truth: line, stalls: vec![(first..first + 20, MS(100))], runs: 0 };
            let curve = measure(&mut fake, BUDGET);
            let batches: Vec<usize> = curve.blocks[0].iter().map(|&(batch, _)| batch).collect();
            assert_eq!(curve.blocks[0], truth(&batches), "from run {first}");
            assert_eq!(curve.unreliable, None);
        }
    }

    #[test]
    fn what_stays_as_it_is_is_measured_again_a_bounded_number_of_times() {
        let steep = |batch: usize| if batch == 4 { MS(100) } else { line(batch) };
        let mut fake = Fake { now: Duration::ZERO, truth: steep, stalls: vec![], runs: 0 };
        let curve = measure(&mut fake, BUDGET);
        assert_eq!(curve.blocks[0][2], (4, MS(100)), "what was measured stands");
        assert!(curve.unreliable.unwrap().contains("a batch of 4 takes 100.000 ms"));
        assert!(fake.now < BUDGET + BUDGET * REPEATS_BUDGET / 100 + duration(MS(100)), "{:?}", fake.now);
    }

    #[test]
    fn curves_of_real_devices_are_believed() {
        let flat = |_: usize| MS(10);
        let bent = |batch: usize| MS(10).max(MS(batch as i64));
        let steps = |batch: usize| MS(4) * (batch as i64 + 7).div_euclid(8);
        let noisy = |batch: usize| Nanos(1_000_000 + (batch as i64 * 7_919) % 200_000);
        let curves: [&dyn Fn(usize) -> Nanos; 4] = [&flat, &bent, &steps, &noisy];
        for (at, truth) in curves.into_iter().enumerate() {
            let mut fake = Fake { now: Duration::ZERO, truth, stalls: vec![], runs: 0 };
            let curve = measure(&mut fake, BUDGET);
            assert_eq!(curve.unreliable, None, "curve {at}");
            assert!(curve.blocks[0].iter().all(|&(batch, latency)| latency == truth(batch)), "curve {at}");
        }
    }

    #[test]
    fn a_slow_model_takes_little_more_than_its_budget() {
        let slow = |batch: usize| MS(2_000) * batch as i64;
        let mut fake = Fake { now: Duration::ZERO, truth: slow, stalls: vec![], runs: 0 };
        assert_eq!(measure(&mut fake, BUDGET).blocks[0], [(1, MS(2_000))]);
        assert!(fake.runs <= 3, "{} runs", fake.runs);
        let slower = |_: usize| MS(60_000);
        let mut fake = Fake { now: Duration::ZERO, truth: slower, stalls: vec![], runs: 0 };
        assert_eq!(measure(&mut fake, BUDGET).blocks[0], [(1, MS(60_000))]);
        assert_eq!(fake.runs, 1);
    }

    #[test]
    fn latencies_that_lie_on_no_line_are_suspect() {
        let points = |ms: [i64; 4]| [1, 2, 4, 8].into_iter().zip(ms.map(MS)).collect::<Vec<_>>();
        assert_eq!(unreliable_reason(&points([2, 3, 5, 9])), None);
        assert!(unreliable_reason(&points([2, 300, 301, 302])).unwrap().contains("R²"));
        assert!(unreliable_reason(&points([309, 2, 3, 5])).unwrap().contains("a batch of 1 takes 309.000 ms"));
    }
}
