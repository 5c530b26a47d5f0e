//! The arbiter: which offer a free device takes.
//!
//! Of two offers, the one whose start costs less goes first. The cost of a start has three parts:
//!
//! * the wait of the other offer's members,
//! * the members of the other offer that become late,
//! * the device time that the task wastes, for which all requests wait.
//!
//! A batch that goes before a step of cells costs no wait, because it would delay as many requests
//! later. A batch that lets a step go first waits until as many requests have come again.
//!
//! Without deadlines at stake this is Smith's rule, most weight by time. With all deadlines at
//! stake it is "fewest lost". Near saturation it prefers full batches.

use super::load::MOST_UTILISATION;
use crate::tables::cohorts::CohortId;
use ripieno_base::{BlockId, ModelId, Nanos, Permille, RequestSlot, Time};

/// The cost of a request that waits for its whole SLO, in the unit of weights times nanoseconds.
pub(super) const ONE: i128 = 1 << 48;

/// The next task of a model for a free device.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskOffer {
    /// Model that makes the offer.
    pub(super) model: ModelId,
    /// The task.
    pub(super) task: OfferedTask,
    /// Urgency of the members.
    pub(super) outlook: OfferOutlook,
    /// Time until the device can decide anew, for a step of cells. Zero for a batch, which commits
    /// the device to all of its blocks.
    pub(super) span: Nanos,
    /// Mean time until the members are answered, if nothing comes in between.
    pub(super) whole: Nanos,
    /// Time in which as many rows come again as a new batch has.
    pub(super) doubles_in: Nanos,
    /// Rows of a step; 0 for batches.
    pub(super) rows: usize,
    /// Ready rows of the cell type that a step leaves waiting; 0 for batches.
    pub(super) left: usize,
    /// Most rows that the cell type takes; 0 for batches.
    pub(super) max_rows: usize,
    /// Part of the task's device time that is wasted compared with the best batches.
    pub(super) waste: Permille,
    /// Cost of one member that is late.
    pub(super) late_cost: i128,
    /// True if no other device can run the task.
    pub(super) pinned: bool,
}

/// The urgency of the members of an offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfferOutlook {
    /// The member that must start first; `None` if there is no member.
    pub(super) most_urgent: Option<(Time, RequestSlot)>,
    /// Sum of the members' waiting costs, per nanosecond.
    pub(super) weight: i128,
    /// Rows that can be in time.
    pub(super) savable: u32,
    /// The first of the times at which the rows that can be in time must start.
    pub(super) first_start: Time,
    /// The last of these times.
    pub(super) last_start: Time,
}

/// The task that an offer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferedTask {
    /// A new batch from the queue, with this first request and number of rows.
    Batch { first: u32, rows: usize },
    /// A new batch of a padded model: the group with this index.
    Group(usize),
    /// The next block of a cohort on the device.
    Resume(CohortId),
    /// Newcomers of this number of rows, which catch up with a cohort on the device.
    Join { rows: usize },
    /// Requests that were passed over.
    Overdue,
    /// A step of a cell type.
    Cell(BlockId),
}

impl OfferOutlook {
    /// The outlook of no request.
    pub(super) const NONE: OfferOutlook =
        OfferOutlook { most_urgent: None, weight: 0, savable: 0, first_start: Time::NEVER, last_start: Time(i64::MIN) };

    /// Adds a member.
    pub(super) fn add(&mut self, now: Time, (slot, rows): (RequestSlot, u32), weight: i128, latest_start: Time) {
        self.weight += weight * i128::from(rows);
        if self.most_urgent.is_none_or(|(start, _)| latest_start < start) {
            self.most_urgent = Some((latest_start, slot));
        }
        if latest_start >= now {
            self.savable += rows;
            self.first_start = self.first_start.min(latest_start);
            self.last_start = self.last_start.max(latest_start);
        }
    }

    /// Returns the number of rows that are late, of those that could be in time, if the offer
    /// starts at `at`: linear between the first and the last latest start.
    fn late(&self, at: Time) -> i128 {
        if at <= self.first_start || self.savable == 0 {
            return 0;
        }
        let (passed, range) = ((at - self.first_start).0, (self.last_start - self.first_start).0.max(1));
        1 + i128::from(self.savable - 1) * i128::from(passed.min(range)) / i128::from(range)
    }
}

impl TaskOffer {
    /// Returns the cost of a nanosecond in which the members and the rows behind them wait.
    fn weight_of_all(&self) -> i128 {
        self.outlook.weight + self.outlook.weight * self.left as i128 / self.rows.max(1) as i128
    }

    fn is_cell(&self) -> bool {
        matches!(self.task, OfferedTask::Cell(_))
    }

    /// Returns the cost for all other offers if this one goes before `other`; another device is
    /// free after `others_free`.
    fn cost_before(&self, other: &TaskOffer, now: Time, others_free: Nanos, price: i128) -> i128 {
        let elsewhere = if other.pinned { Nanos::MAX } else { others_free };
        // Requests in cells join at the next step, so nothing is wasted among them. Of one model's
        // steps, the one with the most weight goes first.
        let kinds = (self.is_cell(), other.is_cell());
        let held = match kinds {
            (true, true) if self.model == other.model => Nanos(1),
            // The other devices run steps, too, so a free one is no help.
            (true, true) => self.whole,
            (true, false) => other.doubles_in,
            (false, _) => self.whole.min(elsewhere),
        };
        let wasted = if kinds == (true, true) {
            0
        } else {
            i128::from(self.whole.0) * i128::from(self.waste.parts()) * price / 1_000
        };
        // Counted as if the other offer waited for all blocks, though the arbiter decides anew at
        // each block border.
        let committed = if self.is_cell() { self.span } else { self.whole }.min(elsewhere);
        let late = other.outlook.late(now + committed) * other.late_cost;
        // As many requests in cells come as end, so a batch delays as many of them whenever it
        // runs.
        let delayed = if kinds == (false, true) { 0 } else { other.outlook.weight };
        i128::from(held.0) * delayed + late + wasted
    }
}

/// Returns the offer that goes first. `utilisation` is the part of the device time that the best
/// batches need. The nearer it is to the whole, the more requests wait for the time that one batch
/// wastes: the members of all offers, and the rows of cells behind them.
pub(super) fn choose(now: Time, offers: &[TaskOffer], others_free: Nanos, utilisation: Permille) -> Option<TaskOffer> {
    let (first, rest) = offers.split_first()?;
    let all: i128 = offers.iter().map(TaskOffer::weight_of_all).sum();
    let used = i128::from(utilisation.min(MOST_UTILISATION).parts());
    let price = all * used / (1_000 - used);
    let best = rest.iter().fold(first, |best, offer| {
        let sooner =
            offer.cost_before(best, now, others_free, price) < best.cost_before(offer, now, others_free, price);
        if sooner { offer } else { best }
    });
    Some(*best)
}

/// Returns the most urgent offer of other models than the chosen one's, if there is one.
pub(super) fn loser<'a>(offers: &'a [TaskOffer], chosen: &TaskOffer) -> Option<&'a TaskOffer> {
    let others = offers.iter().filter(|offer| offer.model != chosen.model && offer.outlook.most_urgent.is_some());
    others.min_by_key(|offer| offer.outlook.most_urgent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;
    const NOW: Time = Time(1_000_000_000);

    /// An offer of one row of this weight, which takes `ms` and must start within `start_ms`.
    fn offer(model: u16, ms: i64, weight: i128, start_ms: i64) -> TaskOffer {
        let mut outlook = OfferOutlook::NONE;
        outlook.add(NOW, (RequestSlot(model.into()), 1), weight, NOW + MS(start_ms));
        TaskOffer {
            model: ModelId(model),
            task: OfferedTask::Overdue,
            outlook,
            span: MS(ms),
            whole: MS(ms),
            doubles_in: MS(500),
            rows: 1,
            left: 0,
            max_rows: 1,
            waste: Permille::ZERO,
            late_cost: 100 * ONE,
            pinned: false,
        }
    }

    fn first(offers: &[TaskOffer], permille: u64) -> u16 {
        let utilisation = Permille::from_parts(permille);
        let forward = choose(NOW, offers, Nanos::MAX, utilisation).unwrap().model.0;
        let reversed: Vec<_> = offers.iter().rev().copied().collect();
        assert_eq!(choose(NOW, &reversed, Nanos::MAX, utilisation).unwrap().model.0, forward, "{offers:?}");
        forward
    }

    #[test]
    fn with_time_left_most_weight_by_time_goes_first() {
        assert!(choose(NOW, &[], Nanos::MAX, Permille::ZERO).is_none());
        assert_eq!(first(&[offer(0, 10, 1_000, 500), offer(1, 2, 1_000, 500)], 0), 1);
        let offers = [offer(0, 10, 9_000, 500), offer(1, 2, 1_000, 500), offer(2, 2, 1_000, 400)];
        assert_eq!(first(&offers, 0), 0);
        assert_eq!(loser(&offers, &offers[0]).unwrap().model.0, 2);
        assert!(loser(&offers[..1], &offers[0]).is_none());
    }

    #[test]
    fn a_request_that_would_be_late_goes_first() {
        let (heavy, urgent) = (offer(0, 10, 9_000, 500), offer(1, 2, 1_000, 5));
        assert_eq!(first(&[heavy, urgent], 0), 1);
        // Unless another device will be free in time.
        assert_eq!(choose(NOW, &[heavy, urgent], MS(1), Permille::ZERO).unwrap().model.0, 0);
        assert_eq!(
            choose(NOW, &[heavy, TaskOffer { pinned: true, ..urgent }], MS(1), Permille::ZERO).unwrap().model.0,
            1
        );
    }

    #[test]
    fn near_saturation_full_batches_go_first() {
        let wasteful = TaskOffer { waste: Permille::from_parts(600), ..offer(0, 2, 1_000, 500) };
        let full = offer(1, 3, 1_000, 500);
        assert_eq!((first(&[wasteful, full], 0), first(&[wasteful, full], 900)), (0, 1));
    }

    #[test]
    fn a_batch_goes_before_a_step_unless_a_request_would_be_late_for_it() {
        let batch = offer(0, 30, 1, 500);
        let step = |start_ms| TaskOffer { task: OfferedTask::Cell(BlockId(0)), ..offer(1, 1, 1_000_000, start_ms) };
        assert_eq!((first(&[batch, step(500)], 0), first(&[batch, step(5)], 0)), (0, 1));
    }

    #[test]
    fn steps_of_a_short_walk_go_first_also_where_another_device_is_soon_free() {
        let step = |model, ms, weight| TaskOffer {
            task: OfferedTask::Cell(BlockId(0)),
            whole: MS(ms),
            ..offer(model, 1, weight, 500)
        };
        let (long, short) = (step(0, 2_000, 20_000), step(1, 5, 1_000));
        for others_free in [Nanos::MAX, MS(1)] {
            assert_eq!(choose(NOW, &[long, short], others_free, Permille::ZERO).unwrap().model.0, 1);
        }
    }

    #[test]
    fn a_wasteful_batch_waits_for_steps_while_others_soon_fill_it() {
        let step = TaskOffer { task: OfferedTask::Cell(BlockId(0)), ..offer(1, 1, 10_000, 500) };
        let batch = |doubles_ms| TaskOffer {
            waste: Permille::from_parts(600),
            doubles_in: MS(doubles_ms),
            ..offer(0, 10, 1_000, 500)
        };
        let chosen = |doubles_ms, others_free| {
            choose(NOW, &[batch(doubles_ms), step], others_free, Permille::from_parts(500)).unwrap().model.0
        };
        assert_eq!((chosen(5, Nanos::MAX), chosen(400, Nanos::MAX)), (1, 0));
        assert_eq!((chosen(5, MS(1)), chosen(400, MS(1))), (1, 0), "another device runs steps, too");
    }

    #[test]
    fn of_the_steps_of_one_model_that_with_the_most_weight_goes_first() {
        let cell = |ms: i64, weight| TaskOffer { task: OfferedTask::Cell(BlockId(0)), ..offer(0, ms, weight, 500) };
        let (encoder, decoder) = (cell(40, 1_001), cell(30, 1_000));
        let chosen = |offers: &[TaskOffer]| choose(NOW, offers, Nanos::MAX, Permille::ZERO).unwrap().whole;
        assert_eq!(chosen(&[encoder, decoder]), encoder.whole);
        assert_eq!(chosen(&[decoder, TaskOffer { model: ModelId(1), ..encoder }]), decoder.whole, "of two models");
    }
}
