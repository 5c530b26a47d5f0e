//! Occupancy: the time for which a task keeps its device busy, from its start until the next one
//! can start, learnt per model from the ends of tasks.
//!
//! A real engine keeps a device longer than profiled: inputs are copied, cores are shared with the
//! server, clocks change. Occupancy is learnt as a function of the profiled duration, so one table
//! covers all blocks, batch sizes and lengths of a model. Each octave of the profiled duration
//! holds the means of what was profiled and of what was measured; between two octaves the function
//! is linear. Below the shortest measured task it is proportional, above the longest it adds the
//! same excess. Both are low guesses, so tasks of an unseen duration are tried, and measured.

use ripieno_base::{MovingMean, Nanos};

/// Octaves of the profiled duration, from 1 µs to some 70 minutes.
const OCTAVES: usize = 32;
/// Binary logarithm of the shortest duration in nanoseconds that has an octave of its own.
const SHORTEST: u32 = 10;
/// Weight of the profile, in tasks.
const PRIOR: i64 = 2;
/// Largest weight of the past, in tasks: the means follow a change within some 20 of them.
const MEMORY: i64 = 16;
/// A task counts as at most this many times its expected duration, so that one stall of a device
/// does not make all requests look hopeless.
const OUTLIER_FACTOR: i64 = 8;
/// Number of mean absolute deviations that a promise adds to the mean. Of tasks with an exponential
/// excess 9 % take longer, with a normal one 6 %.
const PROMISED_DEVIATIONS: i64 = 2;

/// Measurements of the tasks of one octave.
#[derive(Clone, Copy, Debug, Default)]
struct Octave {
    /// Number of tasks so far.
    tasks: i64,
    /// Moving mean of the profiled duration, in nanoseconds.
    profiled: MovingMean<MEMORY>,
    /// Moving mean of the measured duration, in nanoseconds.
    measured: MovingMean<MEMORY>,
    /// Moving mean of the absolute difference from the mean, in nanoseconds.
    deviation: MovingMean<MEMORY>,
}

/// The occupancy of one model.
#[derive(Clone, Debug, Default)]
pub struct OccupancyEstimate {
    /// Means by profiled duration; each class is twice as long as the one before.
    octaves: [Octave; OCTAVES],
    /// Changes whenever an estimate does.
    version: u64,
}

impl Octave {
    /// Returns the expected excess over the profile; the profile counts as [`PRIOR`] tasks.
    fn excess(&self) -> Nanos {
        self.believed(self.difference())
    }

    /// Returns the mean profiled duration.
    fn profiled(&self) -> Nanos {
        Nanos(self.profiled.get())
    }

    /// Returns the mean excess of the measured over the profiled duration.
    fn difference(&self) -> Nanos {
        Nanos(self.measured.get()) - self.profiled()
    }

    /// Returns what is believed of a measured difference.
    fn believed(&self, measured: Nanos) -> Nanos {
        measured.scale(self.tasks as u64, (self.tasks + PRIOR) as u64)
    }
}

impl OccupancyEstimate {
    /// Returns a number that changes whenever an estimate does.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Learns from a task.
    pub fn observe(&mut self, profiled: Nanos, measured: Nanos) {
        let expected = self.mean(profiled);
        let measured = measured.min(Nanos(expected.0.max(1).saturating_mul(OUTLIER_FACTOR)));
        let octave = &mut self.octaves[octave(profiled)];
        let before = (octave.difference(), octave.deviation);
        octave.tasks += 1;
        octave.profiled.add(profiled.0);
        octave.measured.add(measured.0);
        octave.deviation.add((measured - expected).0.abs());
        if (octave.difference(), octave.deviation.get()) != (before.0, before.1.get()) {
            self.version += 1;
        }
    }

    /// Halves the learnt excess over the profile, and its deviation.
    pub fn halve(&mut self) {
        for octave in &mut self.octaves {
            octave.measured.set(octave.profiled.get() + octave.difference().0 / 2);
            octave.deviation.set(octave.deviation.get() / 2);
        }
        self.version += 1;
    }

    /// Returns the mean occupancy of a task of this profiled duration.
    pub fn mean(&self, profiled: Nanos) -> Nanos {
        self.at(profiled, Octave::excess)
    }

    /// Returns the mean absolute deviation from it.
    pub fn deviation(&self, profiled: Nanos) -> Nanos {
        self.at(profiled, |octave| octave.believed(Nanos(octave.deviation.get()))) - profiled
    }

    /// Returns the promised occupancy of tasks in sequence: `mean` plus a multiple of their common
    /// deviation. `mean` is the sum of the tasks' means, `squares` the sum of the squares of their
    /// deviations, in nanoseconds.
    pub fn promised(mean: Nanos, squares: u128) -> Nanos {
        mean + Nanos(squares.isqrt() as i64 * PROMISED_DEVIATIONS)
    }

    /// Returns `profiled` plus an excess that is interpolated between octaves.
    fn at(&self, profiled: Nanos, excess: impl Fn(&Octave) -> Nanos) -> Nanos {
        let at = octave(profiled);
        let seen = |octave: &&Octave| octave.tasks > 0;
        let shorter = self.octaves[..=at].iter().rev().filter(seen).find(|octave| octave.profiled() <= profiled);
        let longer = self.octaves[at..].iter().filter(seen).find(|octave| octave.profiled() > profiled);
        let share = |from: Nanos, span: Nanos, part: Nanos| from.scale(part.0 as u64, span.0 as u64);
        let more = match (shorter, longer) {
            (None, None) => Nanos::ZERO,
            (Some(shorter), None) => excess(shorter),
            (None, Some(longer)) => share(excess(longer), longer.profiled(), profiled),
            (Some(shorter), Some(longer)) => {
                let (low, high) = (excess(shorter), excess(longer));
                let span = longer.profiled() - shorter.profiled();
                low + share(high - low, span, profiled - shorter.profiled())
            }
        };
        (profiled + more).max(Nanos(1))
    }
}

fn octave(profiled: Nanos) -> usize {
    let log = profiled.0.max(1).cast_unsigned().ilog2();
    (log.saturating_sub(SHORTEST) as usize).min(OCTAVES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    fn learnt(tasks: &[(i64, i64)]) -> OccupancyEstimate {
        let mut occupancy = OccupancyEstimate::default();
        for _ in 0..64 {
            tasks.iter().for_each(|&(profiled, measured)| occupancy.observe(MS(profiled), MS(measured)));
        }
        occupancy
    }

    fn near(value: Nanos, ms: f64) {
        let off = (value.as_millis_f64() - ms).abs() / ms;
        assert!(off < 0.05, "{value:?} instead of {ms} ms");
    }

    #[test]
    fn it_is_the_profile_until_a_task_took_another_time() {
        for occupancy in [OccupancyEstimate::default(), learnt(&[(3, 3), (50, 50)])] {
            assert!([1, 7, 60, 9_000].into_iter().all(|ms| occupancy.mean(MS(ms)) == MS(ms)));
            assert_eq!((occupancy.deviation(MS(7)), occupancy.version()), (Nanos::ZERO, 0));
        }
    }

    #[test]
    fn a_factor_and_a_constant_are_learnt() {
        let late = learnt(&[(10, 14), (40, 50)]);
        near(late.mean(MS(10)), 14.0);
        near(late.mean(MS(25)), 25.0 + 7.0);
        // Shorter tasks are late in proportion, longer tasks by the same excess.
        near(late.mean(MS(5)), 7.0);
        near(late.mean(MS(100)), 110.0);
        let fast = learnt(&[(10, 5)]);
        near(fast.mean(MS(10)), 5.0);
    }

    #[test]
    fn the_spread_of_durations_is_promised() {
        let mut occupancy = OccupancyEstimate::default();
        (0..256).for_each(|at| occupancy.observe(MS(10), MS(if at % 2 == 0 { 12 } else { 8 })));
        let (mean, deviation) = (occupancy.mean(MS(10)), occupancy.deviation(MS(10)));
        near(mean, 10.0);
        assert!((1.5..2.5).contains(&deviation.as_millis_f64()), "{deviation:?}");
        assert_eq!(OccupancyEstimate::promised(MS(10), 9_000_000_000_000), MS(16));
    }

    #[test]
    fn a_stall_counts_little_and_what_was_learnt_can_be_halved() {
        let mut occupancy = learnt(&[(10, 10)]);
        occupancy.observe(MS(10), MS(10_000));
        assert!(occupancy.mean(MS(10)) < MS(16), "{:?}", occupancy.mean(MS(10)));
        (0..8).for_each(|_| occupancy.halve());
        near(occupancy.mean(MS(10)), 10.0);
    }
}
