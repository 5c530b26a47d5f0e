//! Measuring a curve of latencies that one stall does not ruin.
//!
//! A processor that is taken away, a page that comes from disk, a clock that wakes up: they make a run longer, never shorter.
//! So medians count, few runs are not believed, and a batch size whose latency does not fit the others is measured again, the
//! shorter one counting. All of that is bounded, and tested on a clock that the tests turn.

use crate::{ExecError, LoadError};
use ripieno_base::Nanos;
use std::time::Duration;

/// One batch size measured, for a progress bar.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The batch size.
    pub batch: usize,
    /// The median of its latency, all blocks together.
    pub latency: Nanos,
    /// How many sizes are done, this one included.
    pub done: usize,
    /// How many sizes there are.
    pub sizes: usize,
}

/// What runs batches, and the clock that it is timed by.
pub(crate) trait Bench {
    /// How long the measurement has been going on.
    fn elapsed(&self) -> Duration;

    /// Runs a batch once; notes what each task took, by block.
    fn run(&mut self, batch: usize, samples: &mut [Vec<Nanos>]) -> Result<(), ExecError>;
}

/// Latencies by block and batch size.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) blocks: Vec<Vec<(usize, Nanos)>>,
    /// Why they should not be believed, though they were measured again.
    pub(crate) doubt: Option<String>,
}

/// Samples after which a median is good enough.
const SAMPLES: usize = 15;
const WARM_UPS: usize = 2;
/// One sample of three may be a stall, if there is time for three.
const LEAST_SAMPLES: usize = 3;
/// How often a batch size is measured again at most.
const REPEATS: u32 = 3;
/// Repeats may take so much beyond the budget, in percent of it.
const REPEATS_BUDGET: u32 = 50;
/// What seems too slow to be measured again within the budget is so once if all then takes at most so many times the budget.
const CONFIRM: u32 = 4;
/// Farther than this from what the other sizes let expect, a latency does not fit; in hundredths.
const FAR: i64 = 150;
/// What the other sizes let expect is never less than this: below it, wake-ups of threads decide.
const NEAR: Nanos = Nanos::from_micros(50);
/// A larger batch that takes so much less than a smaller one is not believed; in hundredths.
const FALLS: i64 = 150;
/// A line that explains less than this of what varies, where much does, is not believed.
const LEAST_R_SQUARED: f64 = 0.5;
/// Much varies where the points lie about so far from the line, relative to their mean.
const MUCH: f64 = 0.4;

/// One batch size.
struct Point {
    batch: usize,
    /// By block.
    latencies: Vec<Nanos>,
    repeats: u32,
}

impl Point {
    fn total(&self) -> Nanos {
        self.latencies.iter().copied().sum()
    }
}

struct Measuring<'a> {
    bench: &'a mut dyn Bench,
    blocks: usize,
    budget: Duration,
    points: Vec<Point>,
}

/// Measures the latencies of batches of these ascending sizes, as far as the budget goes.
pub(crate) fn measure_curve(
    bench: &mut dyn Bench,
    blocks: usize,
    sizes: &[usize],
    budget: Duration,
    progress: &mut dyn FnMut(Step),
) -> Result<Curve, LoadError> {
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
        measuring.points.push(Point { batch, latencies, repeats: 0 });
        progress(Step { batch, latency, done: at + 1, sizes: sizes.len() });
    }
    measuring.mend()?;
    let totals: Vec<(usize, Nanos)> = measuring.points.iter().map(|point| (point.batch, point.total())).collect();
    let of_block = |block: usize| measuring.points.iter().map(|point| (point.batch, point.latencies[block])).collect();
    Ok(Curve { blocks: (0..blocks).map(of_block).collect(), doubt: doubt(&totals) })
}

impl Measuring<'_> {
    fn left(&self) -> Duration {
        self.budget.saturating_sub(self.bench.elapsed())
    }

    /// What a first run at `batch` takes, should it grow in proportion.
    fn expected(&self, batch: usize) -> Duration {
        let last = self.points.last().map_or(Nanos::ZERO, |last| last.total().scale(batch as u64, last.batch as u64));
        duration(last)
    }

    fn run(&mut self, batch: usize, samples: &mut [Vec<Nanos>]) -> Result<(), LoadError> {
        let failed = |cause| LoadError(format!("a batch of {batch} failed while its latency was measured: {cause}"));
        self.bench.run(batch, samples).map_err(failed)
    }

    /// The median latency of each block, from as many runs as fit in `share`, or as are needed to tell a stall and fit in half
    /// of what is `left`. The first is not counted unless it alone takes all that is left: memory that a larger batch
    /// needs for the first time can cost many times the batch.
    fn median(&mut self, batch: usize, share: Duration, left: Duration) -> Result<Vec<Nanos>, LoadError> {
        let begun = self.bench.elapsed();
        let mut samples: Vec<Vec<Nanos>> = vec![Vec::new(); self.blocks];
        let (mut counted, mut took) = (0, Duration::ZERO);
        for run in 0..WARM_UPS + SAMPLES {
            // Where runs are slow, the second counts already.
            if run == 1 || (run > 1 && run <= WARM_UPS && took <= share) {
                samples.iter_mut().for_each(Vec::clear);
                counted = 0;
            }
            self.run(batch, &mut samples)?;
            counted += 1;
            took = self.bench.elapsed().saturating_sub(begun);
            let most = if run == 0 { left } else { share.max(left / 2) };
            if took > most || (run > 0 && took > share && counted >= LEAST_SAMPLES) {
                break;
            }
        }
        Ok(medians(samples))
    }

    /// Measures a size once more; of both latencies the shorter counts.
    fn repeat(&mut self, at: usize) -> Result<(), LoadError> {
        let batch = self.points[at].batch;
        let share = self.budget / 20;
        let begun = self.bench.elapsed();
        let mut samples: Vec<Vec<Nanos>> = vec![Vec::new(); self.blocks];
        for _ in 0..SAMPLES {
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
        point.repeats == 0 && self.bench.elapsed() + duration(point.total()) <= self.budget.saturating_mul(CONFIRM)
    }

    /// The last size seems so slow that no time is left for the next: all larger ones hang on it, so it runs once more.
    fn confirm_last(&mut self) -> Result<(), LoadError> {
        let last = self.points.len() - 1;
        if self.may_confirm(last) {
            self.repeat(last)?;
        }
        Ok(())
    }

    /// Measures again what does not fit, the worst first.
    fn mend(&mut self) -> Result<(), LoadError> {
        let until = self.budget.saturating_add(self.budget.saturating_mul(REPEATS_BUDGET) / 100);
        for _ in 0..self.points.len() * REPEATS as usize {
            let totals: Vec<(usize, Nanos)> = self.points.iter().map(|point| (point.batch, point.total())).collect();
            let left = until.saturating_sub(self.bench.elapsed());
            let fits = |at: usize| self.points[at].repeats < REPEATS && duration(totals[at].1) <= left;
            let again = |at: &usize| fits(*at) || self.may_confirm(*at);
            let suspects = (0..totals.len()).filter(again).map(|at| (excess(&totals, at), at));
            match suspects.max() {
                Some((by, at)) if by > FAR => self.repeat(at)?,
                _ => break,
            }
        }
        Ok(())
    }
}

fn duration(span: Nanos) -> Duration {
    Duration::from_nanos(span.0.unsigned_abs())
}

/// Of two samples the shorter one: the other may be a stall.
fn medians(samples: Vec<Vec<Nanos>>) -> Vec<Nanos> {
    let median = |mut of_block: Vec<Nanos>| {
        of_block.sort_unstable();
        // A cell that the example has no node for is not known to take any time.
        of_block.get(of_block.len().saturating_sub(1) / 2).copied().unwrap_or(Nanos(1))
    };
    samples.into_iter().map(median).collect()
}

/// By how much a latency exceeds what the sizes beside it let expect, in hundredths: no batch takes more than a larger one, and
/// none lies far above the line through two others.
fn excess(points: &[(usize, Nanos)], at: usize) -> i64 {
    let over = |expected: Nanos| {
        let hundredths = i128::from(points[at].1.0) * 100 / i128::from(expected.max(NEAR).0);
        i64::try_from(hundredths).unwrap_or(i64::MAX)
    };
    let falls = points[at + 1..].iter().map(|&(_, larger)| over(larger)).max().unwrap_or(0);
    let line = |a: usize, b: usize| {
        let ((b0, l0), (b1, l1)) = (points[a], points[b]);
        let rise = (l1.0 - l0.0) as f64 / (b1 as f64 - b0 as f64);
        let there = l0.0 as f64 + rise * (points[at].0 as f64 - b0 as f64);
        // The line through two that are too long themselves may fall below what a smaller batch takes.
        Nanos(there as i64).max(if at > 0 { points[at - 1].1 } else { Nanos::ZERO })
    };
    let above = match (at, points.len()) {
        // No size below bounds the first: only the rule above speaks of it.
        (0, _) => 0,
        (_, 2) => over(points[0].1.scale(points[1].0 as u64, points[0].0 as u64)),
        (at, sizes) if at + 1 == sizes => over(line(at - 2, at - 1)),
        _ => over(line(at - 1, at + 1)),
    };
    falls.max(above)
}

/// Why these latencies are not to be believed.
fn doubt(points: &[(usize, Nanos)]) -> Option<String> {
    for pair in points.windows(2) {
        let ((smaller, long), (larger, short)) = (pair[0], pair[1]);
        if i128::from(long.0) * 100 > i128::from(short.max(NEAR).0) * i128::from(FALLS) {
            let (long, short) = (long.as_millis_f64(), short.as_millis_f64());
            return Some(format!("a batch of {smaller} takes {long:.3} ms, and one of {larger} only {short:.3} ms"));
        }
    }
    let (r_squared, apart) = fit(points);
    (points.len() > 2 && r_squared < LEAST_R_SQUARED && apart > MUCH)
        .then(|| format!("the latencies lie on no line: R² = {r_squared:.2}"))
}

/// R² of the least-squares line through points, and how far they lie from it, relative to their mean.
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

    /// Runs take what `truth` says of a batch, and more where the machine stalls.
    struct Fake<F: Fn(usize) -> Nanos> {
        now: Duration,
        truth: F,
        /// Runs during which it stalls, and for how long.
        stalls: Vec<(std::ops::Range<usize>, Nanos)>,
        runs: usize,
    }

    impl<F: Fn(usize) -> Nanos> Bench for Fake<F> {
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

    fn measure(fake: &mut Fake<impl Fn(usize) -> Nanos>, budget: Duration) -> Curve {
        measure_curve(fake, 1, &SIZES, budget, &mut |_| {}).unwrap()
    }

    fn truth(batches: &[usize]) -> Vec<(usize, Nanos)> {
        batches.iter().map(|&batch| (batch, line(batch))).collect()
    }

    #[test]
    fn without_stalls_nothing_is_measured_again() {
        let mut fake = Fake { now: Duration::ZERO, truth: line, stalls: vec![], runs: 0 };
        let curve = measure(&mut fake, BUDGET);
        assert_eq!((curve.blocks[0].clone(), curve.doubt), (truth(&SIZES), None));
        assert_eq!(fake.runs, SIZES.len() * (WARM_UPS + SAMPLES));
    }

    #[test]
    fn one_stall_changes_nothing_wherever_it_strikes() {
        for budget in [BUDGET, Duration::from_millis(300)] {
            for stalled in 0..SIZES.len() * (WARM_UPS + SAMPLES) {
                let stalls = vec![(stalled..stalled + 1, MS(307))];
                let mut fake = Fake { now: Duration::ZERO, truth: line, stalls, runs: 0 };
                let curve = measure(&mut fake, budget);
                let batches: Vec<usize> = curve.blocks[0].iter().map(|&(batch, _)| batch).collect();
                assert_eq!(curve.blocks[0], truth(&batches), "{budget:?}: run {stalled}");
                assert_eq!(curve.doubt, None);
            }
        }
    }

    #[test]
    fn a_stall_of_a_whole_batch_size_is_measured_again() {
        // Seconds during which everything takes long, wherever they begin.
        for first in 0..60 {
            let mut fake =
                Fake { now: Duration::ZERO, truth: line, stalls: vec![(first..first + 20, MS(100))], runs: 0 };
            let curve = measure(&mut fake, BUDGET);
            let batches: Vec<usize> = curve.blocks[0].iter().map(|&(batch, _)| batch).collect();
            assert_eq!(curve.blocks[0], truth(&batches), "from run {first}");
            assert_eq!(curve.doubt, None);
        }
    }

    #[test]
    fn what_stays_as_it_is_is_measured_again_a_bounded_number_of_times() {
        let steep = |batch: usize| if batch == 4 { MS(100) } else { line(batch) };
        let mut fake = Fake { now: Duration::ZERO, truth: steep, stalls: vec![], runs: 0 };
        let curve = measure(&mut fake, BUDGET);
        assert_eq!(curve.blocks[0][2], (4, MS(100)), "what was measured stands");
        assert!(curve.doubt.unwrap().contains("a batch of 4 takes 100.000 ms"));
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
            assert_eq!(curve.doubt, None, "curve {at}");
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
    fn latencies_that_lie_on_no_line_are_doubted() {
        let points = |ms: [i64; 4]| [1, 2, 4, 8].into_iter().zip(ms.map(MS)).collect::<Vec<_>>();
        assert_eq!(doubt(&points([2, 3, 5, 9])), None);
        assert!(doubt(&points([2, 300, 301, 302])).unwrap().contains("R²"));
        assert!(doubt(&points([309, 2, 3, 5])).unwrap().contains("a batch of 1 takes 309.000 ms"));
    }
}
