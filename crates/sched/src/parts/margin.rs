//! The margin by which deadlines are moved ahead, learnt from the lateness of batches against their
//! profile.
//!
//! A deferring policy starts a batch as late as the profile allows. Real batches run later: threads
//! wake up late, processors are shared, a measured median is exceeded half of the time. The driver
//! therefore passes deadlines to the scheduler that precede the real ones by a margin. The margin
//! rises quickly when batches are late and falls slowly when they are not; on a device that keeps
//! to its profile it is close to zero. Both drivers use it: the runtime always, the simulator where
//! a scenario runs as served.
//!
//! So that the first requests are not late, it starts from a guess that is rather too large: the
//! wake-up of a thread, and a part of the model's latency, since caches and clocks of an idle
//! device are cold. The weight of the guess depends on its purpose ([`Guess`]).
//!
//! The real deadline still decides about replies to clients, and whether an answer counts as late.

use ripieno_base::Nanos;
use ripieno_model::Model;

/// Initial guess per walk: the wake-up of a thread.
const FIRST: Nanos = Nanos::from_millis(1);
/// Reciprocal of the part of a walk's latency that is added to the guess.
const FIRST_PART: i64 = 2;
/// Upper bound on the margin of a walk, as a reciprocal part of the SLO: a device that is later
/// than that is overloaded.
const MOST: i64 = 4;
/// A batch that is later than the margin raises it by this reciprocal part of the excess.
const RISE: i64 = 2;
/// Any other batch lowers it by this reciprocal part: it halves after some 1,400 batches. A few per
/// cent of the batches are later than a margin at rest.
const FALL: i64 = 2_000;
/// Weight of the prior, in batches.
const WEIGHS: u64 = 16;

/// The initial value of the margin, until lateness has been measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// None: requests start immediately, and a guess would only make them look hopeless.
    Nothing,
    /// The lateness of batches. Each end of a batch is evidence, so the weight of the guess falls:
    /// with tight SLOs it would reject requests that have time.
    Batches,
    /// The lateness of batches, and the error of predictions of whole queues. Ends of batches say
    /// nothing about the latter, so the guess falls as slowly as the learnt margin.
    Queues,
    /// None, and no margin either: the policy learns by itself how late batches are.
    Learnt,
}

/// The margin of one model. Each of the consecutive tasks of a request may be late.
#[derive(Clone, Copy, Debug)]
pub struct Margin {
    /// Margin per task: learnt from zero, and learnt from the guess.
    learnt: Nanos,
    kept: Nanos,
    /// The guess per task, and the number of batches since.
    guess: Nanos,
    seen: u64,
    most: Nanos,
    tasks: i64,
}

impl Margin {
    /// Creates the margin of a model that has not run yet.
    pub fn new(model: &Model) -> Margin {
        let (tasks, alone) = walk(model);
        Margin::starting_at(FIRST + Nanos(alone.0 / FIRST_PART), model.slo, tasks)
    }

    fn starting_at(first: Nanos, slo: Nanos, tasks: usize) -> Margin {
        let tasks = i64::try_from(tasks).unwrap_or(i64::MAX).max(1);
        let most = Nanos(slo.0 / MOST / tasks);
        let guess = Nanos(first.0 / tasks).min(most);
        Margin { learnt: Nanos::ZERO, kept: guess, guess, seen: 0, most, tasks }
    }

    /// Returns the margin after the profiles of `before` were replaced by those of `model`. It
    /// keeps the lateness of the machine and drops the error of the old profile.
    pub fn renewed(&self, before: &Model, model: &Model) -> Margin {
        let first = Margin::new(model);
        if self.seen == 0 {
            return first;
        }
        let corrected = (walk(model).1 - walk(before).1).max(Nanos::ZERO);
        let stays = |margin: Nanos| Nanos((margin * self.tasks - corrected).0 / first.tasks).min(first.most);
        let (learnt, kept) = (stays(self.learnt).max(Nanos::ZERO), stays(self.kept).max(first.guess));
        Margin { learnt, kept, seen: self.seen, ..first }
    }

    /// Returns the margin by which the scheduler's deadlines precede the real ones, with this
    /// initial guess.
    pub fn ahead(&self, guess: Guess) -> Nanos {
        let margin = match guess {
            Guess::Learnt => Nanos::ZERO,
            Guess::Nothing => self.learnt,
            Guess::Batches => self.learnt.max(self.guess.scale(WEIGHS, WEIGHS + self.seen)),
            Guess::Queues => self.kept,
        };
        margin * self.tasks
    }

    /// Records that a batch ended `by` later (earlier, if negative) than its profile predicted.
    pub fn observe(&mut self, by: Nanos) {
        for margin in [&mut self.learnt, &mut self.kept] {
            let excess = by - *margin;
            let change = if excess > Nanos::ZERO { Nanos(excess.0 / RISE) } else { Nanos(-margin.0 / FALL) };
            *margin = (*margin + change).min(self.most);
        }
        self.seen += 1;
    }
}

/// Returns the number of tasks of a lone row that may each be late, and their latency. Steps follow
/// each other on the device without a decision between them, so an unfolded walk is late once.
fn walk(model: &Model) -> (usize, Nanos) {
    match model.walk.is_unfolded() {
        true => (1, model.blocks.first().map_or(Nanos::ZERO, |block| block.profile.latency(1))),
        false => (model.blocks.len(), model.profile().latency(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Profile;

    const SLO: Nanos = Nanos::from_millis(100);

    fn margin(slo: Nanos, tasks: usize) -> Margin {
        Margin::starting_at(FIRST, slo, tasks)
    }

    #[test]
    fn a_first_request_has_room_for_a_cold_start() {
        let model = |slo: i64| Model::whole("m", Profile::linear(1.0, 3.0, 8).unwrap(), Nanos::from_millis(slo));
        assert_eq!(Margin::new(&model(100)).ahead(Guess::Queues), Nanos::from_millis(3));
        assert_eq!(
            Margin::new(&model(8)).ahead(Guess::Queues),
            Nanos::from_millis(2),
            "never more than a quarter of the SLO"
        );
    }

    #[test]
    fn a_guess_of_batches_goes_as_they_end_on_time_and_lateness_stays() {
        let mut margin = margin(SLO, 1);
        assert_eq!([Guess::Nothing, Guess::Batches].map(|guess| margin.ahead(guess)), [Nanos::ZERO, FIRST]);
        (0..64).for_each(|_| margin.observe(Nanos::ZERO));
        assert_eq!(margin.ahead(Guess::Batches), Nanos(FIRST.0 / 5));
        assert!(margin.ahead(Guess::Queues) > Nanos(FIRST.0 * 9 / 10));
        // One in ten is late by 4 ms.
        (0..1_000).for_each(|batch| margin.observe(Nanos::from_millis(if batch % 10 == 0 { 4 } else { 0 })));
        for guess in [Guess::Nothing, Guess::Batches, Guess::Queues] {
            assert!(margin.ahead(guess) > Nanos::from_millis(3), "{guess:?}: {:?}", margin.ahead(guess));
        }
    }

    #[test]
    fn a_device_that_keeps_to_its_profile_needs_no_margin() {
        let mut margin = margin(SLO, 1);
        assert_eq!(margin.ahead(Guess::Queues), FIRST);
        (0..10_000).for_each(|_| margin.observe(Nanos::ZERO));
        assert!(margin.ahead(Guess::Queues) < Nanos::from_micros(10), "{:?}", margin.ahead(Guess::Queues));
    }

    #[test]
    fn the_margin_covers_most_batches_of_a_noisy_device() {
        let mut margin = margin(SLO, 1);
        // Evenly spread between 0 and 5 ms, in a scrambled order.
        let by = |at: i64| Nanos::from_micros(at * 7_919 % 5_000);
        (0..5_000).for_each(|at| margin.observe(by(at)));
        let beyond = (0..5_000).filter(|&at| by(at) > margin.ahead(Guess::Queues)).count();
        assert!(beyond < 300, "{beyond} of 5000 beyond {:?}", margin.ahead(Guess::Queues));
        assert!(margin.ahead(Guess::Queues) <= Nanos::from_millis(5));
    }

    #[test]
    fn lateness_of_the_machine_outlives_a_profile() {
        let model = |alpha: f64| Model::whole("m", Profile::linear(alpha, 1.0, 8).unwrap(), SLO);
        let (short, right, long) = (model(1.0), model(9.0), model(309.0));
        let mut margin = Margin::new(&short);
        assert_eq!(
            margin.renewed(&short, &right).ahead(Guess::Queues),
            Margin::new(&right).ahead(Guess::Queues),
            "nothing is known yet"
        );
        // 8 ms too short, and 10 ms of noise.
        (0..100).for_each(|_| margin.observe(Nanos::from_millis(18)));
        assert_eq!(margin.renewed(&short, &right).ahead(Guess::Queues).as_millis_f64().round(), 10.0);
        let mut margin = Margin::new(&long);
        (0..100_000).for_each(|_| margin.observe(Nanos::from_millis(-300)));
        assert_eq!(
            margin.renewed(&long, &right).ahead(Guess::Queues),
            Margin::new(&right).ahead(Guess::Queues),
            "it held next to nothing"
        );
    }

    #[test]
    fn the_margin_is_bounded_by_the_slo() {
        let mut learnt = margin(SLO, 1);
        (0..100).for_each(|_| learnt.observe(Nanos::from_millis(10_000)));
        assert_eq!(learnt.ahead(Guess::Queues), Nanos::from_millis(25));
        assert_eq!(margin(Nanos::from_millis(2), 1).ahead(Guess::Queues), Nanos::from_micros(500));
    }

    #[test]
    fn a_walk_of_many_tasks_has_one_bound() {
        let mut margin = margin(SLO, 50);
        assert_eq!(margin.ahead(Guess::Queues), FIRST);
        margin.observe(Nanos::from_micros(220));
        assert_eq!(margin.ahead(Guess::Queues), Nanos::from_micros(50 * 120), "each of the 50 may slip so");
        (0..100).for_each(|_| margin.observe(Nanos::from_millis(10_000)));
        assert_eq!(margin.ahead(Guess::Queues), Nanos::from_millis(25));
    }
}
