//! How much later batches end than their profile says, so that the core can plan for it.
//!
//! A deferring policy starts a batch at the last moment that the profile allows. Live that moment is too late: threads
//! wake up late, processors are shared, a measured median is exceeded half of the time. So the core is given deadlines
//! that lie ahead of the real ones by a margin that is learnt from what batches have really done. It rises quickly when
//! batches slip and falls slowly when they do not; on a device that keeps to its profile it is next to nothing.
//!
//! The real deadline still decides what a client is told, and whether an answer counts as late.

use ripieno_base::Nanos;

/// Of a walk, before anything is known.
const FIRST: Nanos = Nanos::from_millis(1);
/// The margin of a walk never takes more than this share of the SLO: a device that slips more is overloaded, not late.
const MOST: i64 = 4;
/// A batch that slips beyond the margin raises it by this share of the excess.
const RISE: i64 = 2;
/// Any other lowers it by this share: it takes some 1,400 batches to halve. Few in a hundred slip beyond a margin at rest.
const FALL: i64 = 2_000;

/// The margin of one model, whose requests pass through so many tasks one after the other: each of them slips.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slip {
    /// Of one task.
    margin: Nanos,
    most: Nanos,
    tasks: i64,
}

impl Slip {
    pub(crate) fn new(slo: Nanos, tasks: usize) -> Slip {
        let tasks = i64::try_from(tasks).unwrap_or(i64::MAX).max(1);
        let most = Nanos(slo.0 / MOST / tasks);
        Slip { margin: Nanos(FIRST.0 / tasks).min(most), most, tasks }
    }

    /// By how much the core's deadlines lie ahead of the real ones.
    pub(crate) fn margin(&self) -> Nanos {
        self.margin * self.tasks
    }

    /// A batch ended `by` later (or earlier, if negative) than its profile said.
    pub(crate) fn observe(&mut self, by: Nanos) {
        let excess = by - self.margin;
        let change = if excess > Nanos::ZERO { Nanos(excess.0 / RISE) } else { Nanos(-self.margin.0 / FALL) };
        self.margin = (self.margin + change).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Nanos = Nanos::from_millis(100);

    #[test]
    fn a_device_that_keeps_to_its_profile_needs_no_margin() {
        let mut slip = Slip::new(SLO, 1);
        assert_eq!(slip.margin(), FIRST);
        (0..10_000).for_each(|_| slip.observe(Nanos::ZERO));
        assert!(slip.margin() < Nanos::from_micros(10), "{:?}", slip.margin());
    }

    #[test]
    fn the_margin_covers_most_batches_of_a_noisy_device() {
        let mut slip = Slip::new(SLO, 1);
        // Evenly spread between 0 and 5 ms, in a scrambled order.
        let by = |at: i64| Nanos::from_micros(at * 7_919 % 5_000);
        (0..5_000).for_each(|at| slip.observe(by(at)));
        let beyond = (0..5_000).filter(|&at| by(at) > slip.margin()).count();
        assert!(beyond < 300, "{beyond} of 5000 beyond {:?}", slip.margin());
        assert!(slip.margin() <= Nanos::from_millis(5));
    }

    #[test]
    fn the_margin_is_bounded_by_the_slo() {
        let mut slip = Slip::new(SLO, 1);
        (0..100).for_each(|_| slip.observe(Nanos::from_millis(10_000)));
        assert_eq!(slip.margin(), Nanos::from_millis(25));
        assert_eq!(Slip::new(Nanos::from_millis(2), 1).margin(), Nanos::from_micros(500));
    }

    #[test]
    fn a_walk_of_many_tasks_has_one_bound() {
        let mut slip = Slip::new(SLO, 50);
        assert_eq!(slip.margin(), FIRST);
        slip.observe(Nanos::from_micros(220));
        assert_eq!(slip.margin(), Nanos::from_micros(50 * 120), "each of the 50 may slip so");
        (0..100).for_each(|_| slip.observe(Nanos::from_millis(10_000)));
        assert_eq!(slip.margin(), Nanos::from_millis(25));
    }
}
