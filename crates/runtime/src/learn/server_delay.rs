//! The time that a server spends on a request before and after the engine: it decodes the request,
//! and the task of the connection wakes up and sends the answer.
//!
//! Clients count this time, the scheduler does not see it. So deadlines are moved ahead by a moving
//! mean of it and two mean absolute deviations.

use ripieno_base::{MovingMean, Nanos};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Weight of the past, in answers.
const MEMORY: i64 = 64;
/// Number of mean absolute deviations above the mean.
const DEVIATIONS: i64 = 2;

/// A moving estimate. Answers that are counted at the same instant may be lost, which does no harm.
#[derive(Debug, Default)]
pub(crate) struct ServerDelay {
    mean: AtomicI64,
    deviation: AtomicI64,
}

impl ServerDelay {
    /// Learns from an answered request.
    pub(crate) fn observe(&self, delay: Nanos) {
        let (mean, deviation) = (self.mean.load(Relaxed), self.deviation.load(Relaxed));
        let next = |mean: i64, value: i64| {
            let mut moving = MovingMean::<MEMORY>::guess(mean, MEMORY);
            moving.add(value);
            moving.get()
        };
        self.mean.store(next(mean, delay.0), Relaxed);
        self.deviation.store(next(deviation, (delay.0 - mean).abs()), Relaxed);
    }

    /// Returns the time by which deadlines are moved ahead.
    pub(crate) fn reserve(&self) -> Nanos {
        Nanos(self.mean.load(Relaxed) + self.deviation.load(Relaxed) * DEVIATIONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_delays_are_below_the_reserve() {
        let delay = ServerDelay::default();
        assert_eq!(delay.reserve(), Nanos::ZERO);
        (0..2_000).for_each(|at: i64| delay.observe(Nanos(at % 10 * 100_000)));
        let reserve = delay.reserve();
        assert!((Nanos(800_000)..Nanos(1_100_000)).contains(&reserve), "{reserve:?}");
        (0..2_000).for_each(|_| delay.observe(Nanos(50_000)));
        assert!(delay.reserve() < Nanos(60_000), "{:?}", delay.reserve());
    }
}
