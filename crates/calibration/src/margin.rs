//! The margin by which deadlines are moved ahead, learnt from the lateness of batches against their
//! profile.
//!
//! A deferring policy starts a batch as late as the profile allows. Real batches run later: threads
//! wake up late, processors are shared, a measured median is exceeded half of the time. Unless the
//! policy learns occupancy itself, the driver passes deadlines to it that precede the real ones by
//! a margin: the moving mean of the lateness and two mean absolute deviations. The mean starts from
//! a guess: the wake-up of a thread, and a part of the model's latency, since caches and clocks of
//! an idle device are cold.
//!
//! The real deadline still decides about replies to clients, and whether an answer counts as late.

use ripieno_base::{MovingMean, Nanos};
use ripieno_model::Model;

/// Initial guess per walk: the wake-up of a thread.
const FIRST: Nanos = Nanos::from_millis(1);
/// Reciprocal of the part of a walk's latency that is added to the guess.
const FIRST_PART: i64 = 2;
/// Upper bound on the margin of a walk, as a reciprocal part of the SLO: a device that is later
/// than that is overloaded.
const MOST: i64 = 4;
/// Weight of the guess, in batches.
const WEIGHS: i64 = 16;
/// Largest weight of the past, in batches.
const MEMORY: i64 = 256;
/// Number of mean absolute deviations above the mean.
const DEVIATIONS: i64 = 2;

/// The margin of one model. Each of the consecutive tasks of a request may be late.
#[derive(Clone, Copy, Debug)]
pub struct Margin {
    /// Moving mean of the lateness of a task, in nanoseconds.
    mean: MovingMean<MEMORY>,
    /// Moving mean of the absolute deviation from it.
    deviation: MovingMean<MEMORY>,
    /// Upper bound on the margin of a task.
    most: Nanos,
    /// Number of consecutive tasks of a request.
    tasks: i64,
}

impl Margin {
    /// Creates the margin of a model that has not run yet.
    pub fn new(model: &Model) -> Margin {
        // Steps of cells follow each other without a decision in between, so a walk is late once.
        let (tasks, alone) = match model.walk.is_unfolded() {
            true => (1, model.blocks.first().map_or(Nanos::ZERO, |block| block.profile.latency(1))),
            false => (model.blocks.len() as i64, model.profile().latency(1)),
        };
        let most = Nanos(model.slo.0 / MOST / tasks);
        let guess = FIRST + Nanos(alone.0 / FIRST_PART);
        let mean = Nanos(guess.0 / tasks).min(most);
        let guess = |value| MovingMean::guess(value, WEIGHS);
        Margin { mean: guess(mean.0), deviation: guess(0), most, tasks }
    }

    /// Returns the margin by which the scheduler's deadlines precede the real ones.
    pub fn ahead(&self) -> Nanos {
        Nanos(self.mean.get() + self.deviation.get() * DEVIATIONS).clamp(Nanos::ZERO, self.most) * self.tasks
    }

    /// Records that a batch ended `by` later (earlier, if negative) than its profile predicted.
    pub fn observe(&mut self, by: Nanos) {
        // A stall of the device counts as the largest margin.
        let by = by.0.clamp(-self.most.0, self.most.0);
        self.deviation.add((by - self.mean.get()).abs());
        self.mean.add(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Profile;

    /// The margin of a model that takes 4 ms for a row, with this SLO in milliseconds.
    fn margin(slo: i64) -> Margin {
        Margin::new(&Model::whole("m", Profile::linear(1.0, 3.0, 8).unwrap(), Nanos::from_millis(slo)))
    }

    #[test]
    fn a_first_request_has_room_for_a_cold_start() {
        assert_eq!(margin(100).ahead(), Nanos::from_millis(3));
        assert_eq!(margin(8).ahead(), Nanos::from_millis(2));
    }

    #[test]
    fn a_device_that_keeps_to_its_profile_needs_no_margin() {
        let mut margin = margin(100);
        (0..16).for_each(|_| margin.observe(Nanos::ZERO));
        assert!(margin.ahead() < Nanos::from_millis(5));
        (0..4_000).for_each(|_| margin.observe(Nanos::ZERO));
        assert!(margin.ahead() < Nanos::from_micros(10), "{:?}", margin.ahead());
    }

    #[test]
    fn few_batches_are_later_than_the_margin() {
        let mut margin = margin(100);
        let by = |at: i64| Nanos::from_micros(at * 7_919 % 2_000);
        (0..2_000).for_each(|at| margin.observe(by(at)));
        let beyond = (0..2_000).filter(|&at| by(at) > margin.ahead()).count();
        assert!(beyond < 100, "{beyond} of 2000 beyond {:?}", margin.ahead());
        assert!(margin.ahead() <= Nanos::from_millis(3));
    }

    #[test]
    fn a_stall_counts_as_the_largest_margin() {
        let mut margin = margin(100);
        (0..500).for_each(|_| margin.observe(Nanos::ZERO));
        margin.observe(Nanos::from_millis(10_000));
        assert!(margin.ahead() < Nanos::from_millis(1), "{:?}", margin.ahead());
        (0..500).for_each(|_| margin.observe(Nanos::from_millis(10_000)));
        assert!(margin.ahead() > Nanos::from_millis(24) && margin.ahead() <= Nanos::from_millis(25));
    }
}
