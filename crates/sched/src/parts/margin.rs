//! How much later batches end than their profile says, so that deadlines are planned for it.
//!
//! A deferring policy starts a batch at the last moment that the profile allows. Where batches run later than profiled that
//! moment is too late: threads wake up late, processors are shared, a measured median is exceeded half of the time. So a
//! driver gives the core deadlines that lie ahead of the real ones by a margin that is learnt from what batches have
//! really done. It rises quickly when batches are late and falls slowly when they are not; on a device that keeps to its
//! profile it is next to nothing. Both drivers use it: the runtime always, the simulator where a scenario is run as served.
//!
//! The first requests must not be what the margin is learnt from, so it starts with a guess that is rather too large: the
//! wake-up of a thread, and a part of what the model takes, since caches and clocks of a device that idled are cold. Where the
//! scheduler puts nothing off the guess would only make requests look hopeless; there it starts at nothing.
//!
//! The real deadline still decides what a client is told, and whether an answer counts as late.

use ripieno_base::Nanos;
use ripieno_model::Model;

/// Of a walk, before anything is known: the wake-up of a thread.
const FIRST: Nanos = Nanos::from_millis(1);
/// And this part of what the walk takes alone.
const FIRST_PART: i64 = 2;
/// The margin of a walk never takes more than this part of the SLO: a device that is later than that is overloaded.
const MOST: i64 = 4;
/// A batch that is later than the margin raises it by this part of the excess.
const RISE: i64 = 2;
/// Any other lowers it by this part: it takes some 1,400 batches to halve. Few in a hundred are later than a margin at rest.
const FALL: i64 = 2_000;

/// The margin of one model, whose requests pass through so many tasks one after the other: each of them may be late.
#[derive(Clone, Copy, Debug)]
pub struct Margin {
    /// Of one task.
    margin: Nanos,
    most: Nanos,
    tasks: i64,
    /// Whether it has been learnt, be it in part.
    learnt: bool,
    /// Whether it began with a guess.
    guessed: bool,
}

impl Margin {
    /// Of a model of which nothing has run yet.
    pub fn new(model: &Model) -> Margin {
        let (tasks, alone) = walk(model);
        Margin::starting_at(FIRST + Nanos(alone.0 / FIRST_PART), model.slo, tasks)
    }

    /// The same without a guess, for who starts what is there: nothing is put off to a last moment that could prove too late.
    pub fn unguessed(model: &Model) -> Margin {
        Margin { guessed: false, ..Margin::starting_at(Nanos::ZERO, model.slo, walk(model).0) }
    }

    fn starting_at(first: Nanos, slo: Nanos, tasks: usize) -> Margin {
        let tasks = i64::try_from(tasks).unwrap_or(i64::MAX).max(1);
        let most = Nanos(slo.0 / MOST / tasks);
        Margin { margin: Nanos(first.0 / tasks).min(most), most, tasks, learnt: false, guessed: true }
    }

    /// After the profiles of `before` were replaced by those of `model`. How late threads wake up, and what else was learnt of
    /// the machine, stays; that batches took longer than the old profile said does not.
    pub fn renewed(&self, before: &Model, model: &Model) -> Margin {
        let first = if self.guessed { Margin::new(model) } else { Margin::unguessed(model) };
        if !self.learnt {
            return first;
        }
        let ((tasks, alone), (_, was)) = (walk(model), walk(before));
        let corrected = (alone - was).max(Nanos::ZERO);
        let kept = (self.ahead() - corrected).max(first.ahead());
        Margin { learnt: true, guessed: self.guessed, ..Margin::starting_at(kept, model.slo, tasks) }
    }

    /// By how much the core's deadlines lie ahead of the real ones.
    pub fn ahead(&self) -> Nanos {
        self.margin * self.tasks
    }

    /// A batch ended `by` later (or earlier, if negative) than its profile said.
    pub fn observe(&mut self, by: Nanos) {
        let excess = by - self.margin;
        let change = if excess > Nanos::ZERO { Nanos(excess.0 / RISE) } else { Nanos(-self.margin.0 / FALL) };
        self.margin = (self.margin + change).min(self.most);
        self.learnt = true;
    }
}

/// How many tasks of a lone row may each be late, and what they take. Steps follow each other on the device without a decision
/// between them, so an unfolded walk is late once.
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
        assert_eq!(Margin::new(&model(100)).ahead(), Nanos::from_millis(3));
        assert_eq!(Margin::new(&model(8)).ahead(), Nanos::from_millis(2), "never more than a quarter of the SLO");
    }

    #[test]
    fn a_device_that_keeps_to_its_profile_needs_no_margin() {
        let mut margin = margin(SLO, 1);
        assert_eq!(margin.ahead(), FIRST);
        (0..10_000).for_each(|_| margin.observe(Nanos::ZERO));
        assert!(margin.ahead() < Nanos::from_micros(10), "{:?}", margin.ahead());
    }

    #[test]
    fn the_margin_covers_most_batches_of_a_noisy_device() {
        let mut margin = margin(SLO, 1);
        // Evenly spread between 0 and 5 ms, in a scrambled order.
        let by = |at: i64| Nanos::from_micros(at * 7_919 % 5_000);
        (0..5_000).for_each(|at| margin.observe(by(at)));
        let beyond = (0..5_000).filter(|&at| by(at) > margin.ahead()).count();
        assert!(beyond < 300, "{beyond} of 5000 beyond {:?}", margin.ahead());
        assert!(margin.ahead() <= Nanos::from_millis(5));
    }

    #[test]
    fn what_was_learnt_of_the_machine_outlives_a_profile() {
        let model = |alpha: f64| Model::whole("m", Profile::linear(alpha, 1.0, 8).unwrap(), SLO);
        let (short, right, long) = (model(1.0), model(9.0), model(309.0));
        let mut margin = Margin::new(&short);
        assert_eq!(margin.renewed(&short, &right).ahead(), Margin::new(&right).ahead(), "nothing is known yet");
        // 8 ms too short, and 10 ms of noise.
        (0..100).for_each(|_| margin.observe(Nanos::from_millis(18)));
        assert_eq!(margin.renewed(&short, &right).ahead().as_millis_f64().round(), 10.0);
        let mut margin = Margin::new(&long);
        (0..100_000).for_each(|_| margin.observe(Nanos::from_millis(-300)));
        assert_eq!(margin.renewed(&long, &right).ahead(), Margin::new(&right).ahead(), "it held next to nothing");
    }

    #[test]
    fn the_margin_is_bounded_by_the_slo() {
        let mut learnt = margin(SLO, 1);
        (0..100).for_each(|_| learnt.observe(Nanos::from_millis(10_000)));
        assert_eq!(learnt.ahead(), Nanos::from_millis(25));
        assert_eq!(margin(Nanos::from_millis(2), 1).ahead(), Nanos::from_micros(500));
    }

    #[test]
    fn a_walk_of_many_tasks_has_one_bound() {
        let mut margin = margin(SLO, 50);
        assert_eq!(margin.ahead(), FIRST);
        margin.observe(Nanos::from_micros(220));
        assert_eq!(margin.ahead(), Nanos::from_micros(50 * 120), "each of the 50 may slip so");
        (0..100).for_each(|_| margin.observe(Nanos::from_millis(10_000)));
        assert_eq!(margin.ahead(), Nanos::from_millis(25));
    }
}
