//! Durations of tasks beyond their profile, as on a real device; by default, an emulated device is
//! exact.
//!
//! The excess is exponential: most tasks take little longer, a few much longer. The scheduler only
//! knows what it learns of it.

use ripieno_base::Nanos;
use ripieno_workload::{SeededRng, stream, unit};
use serde::Deserialize;

/// The mean excess of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Jitter {
    /// Part that does not depend on the task, in microseconds: threads that wake up late.
    pub mean_us: f64,
    /// Part in percent of the task's duration: processors that are shared, clocks that change.
    pub mean_percent: f64,
}

impl Jitter {
    pub(crate) fn check(self) -> Result<Jitter, String> {
        for (key, value, most) in [("mean_us", self.mean_us, 1e9), ("mean_percent", self.mean_percent, 1e4)] {
            if !(0.0..=most).contains(&value) {
                return Err(format!("jitter.{key} = {value}; it must be between 0 and {most}"));
            }
        }
        Ok(self)
    }

    pub(crate) fn is_none(self) -> bool {
        self == Jitter::default()
    }
}

/// Jitter with its random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Excess {
    jitter: Jitter,
    random: SeededRng,
}

impl Excess {
    pub(crate) fn new(jitter: Jitter, seed: u64) -> Excess {
        // A separate stream, so that arrivals are the same with and without jitter.
        Excess { jitter, random: stream(seed, u64::MAX - 2) }
    }

    /// Draws the excess of a task.
    pub(crate) fn of(&mut self, latency: Nanos) -> Nanos {
        let mean_ms = self.jitter.mean_us / 1e3 + latency.as_millis_f64() * self.jitter.mean_percent / 1e2;
        Nanos::from_millis_f64(-(1.0 - unit(&mut self.random)).ln() * mean_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excess_has_the_given_mean() {
        let mut excess = Excess::new(Jitter { mean_us: 100.0, mean_percent: 5.0 }, 1);
        let mean_ms = (0..100_000).map(|_| excess.of(Nanos::from_millis(4)).as_millis_f64()).sum::<f64>() / 1e5;
        assert!((0.295..0.305).contains(&mean_ms), "{mean_ms}");
    }

    #[test]
    fn a_negative_mean_is_refused() {
        let error = Jitter { mean_us: -1.0, mean_percent: 0.0 }.check().unwrap_err();
        assert_eq!(error, "jitter.mean_us = -1; it must be between 0 and 1000000000");
    }
}
