//! Divides the waiting rows among devices: the number of rows that a free device takes.
//!
//! # Why
//!
//! A device that takes all rows leaves none to the device that becomes free a moment later. Where a
//! row costs much and a launch little, all rows then wait for a batch that gains nothing.
//!
//! # The rule
//!
//! The rows are cut into batches of b rows. N devices together start a batch every ℓ(b)/N; idle
//! devices start theirs immediately. Let q be the waiting rows, r the rate of arrivals, and T the
//! time after which all of these are done. The total wait is q·ℓ(b) + (q + r·T)·T/2, and the cut is
//! the b with the least.
//!
//! If batches of b rows do not carry the load, T is infinite. So the higher the load, the larger
//! the batches, up to all waiting rows.

use crate::estimate::rate::Rate;
use ripieno_base::{Nanos, Permille};

/// The rows to divide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Rows that may run together now.
    pub(super) rows: usize,
    /// All waiting rows.
    pub(super) queue: u64,
    /// Arrival rate.
    pub(super) rate: Rate,
    /// Upper bound on the wait of a row.
    pub(super) slo: Nanos,
    /// Smallest batch size that keeps utilisation within the planned 90 %.
    pub(super) least: usize,
}

/// Use of the devices by other models.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others {
    /// Number of devices that other models do not keep busy.
    pub(super) spare: Permille,
    /// Waiting rows of other models.
    pub(super) rows: u64,
    /// Device time that these rows take.
    pub(super) work: Nanos,
    /// Rows of other models that arrive per second.
    pub(super) rate: u64,
    /// Number of idle devices besides the one that the batch is for.
    pub(super) idle: usize,
}

impl Waiting {
    /// Returns the number of rows of the first batch; `cost` is the mean duration of one.
    pub(super) fn cut(&self, others: &Others, cost: impl Fn(usize) -> Nanos) -> usize {
        let wait = |batch: usize| self.wait(others, batch, cost(batch));
        let most = self.rows;
        let mut best = (most, wait(most));
        let mut parts = 2;
        while parts <= most {
            let batch = most.div_ceil(parts);
            if batch < self.least {
                break;
            }
            let wait = wait(batch);
            if wait.is_some_and(|wait| best.1.is_none_or(|least| wait < least)) {
                best = (batch, wait);
            }
            // The smallest number of parts that gives the next smaller batch.
            parts = if batch == 1 { usize::MAX } else { most.div_ceil(batch - 1).max(parts + 1) };
        }
        best.0
    }

    /// Returns the total wait for answers in batches of `batch` rows, in rows times nanoseconds;
    /// `None` if the load is not carried or the wait exceeds the SLO.
    fn wait(&self, others: &Others, batch: usize, cost: Nanos) -> Option<u128> {
        let left = self.queue.saturating_sub((batch * (others.idle + 1)) as u64);
        let answered = u128::from(self.queue) * cost.0 as u128;
        let work = others.work + cost.scale(left, batch as u64);
        if work == Nanos::ZERO {
            return Some(answered);
        }
        let spare = others.spare - self.rate.load(batch, cost);
        if spare == Permille::ZERO {
            return None;
        }
        let span = work.scale(1_000, spare.parts());
        if span > self.slo {
            return None;
        }
        let meanwhile = self.rate.rows_in(span) + span.scale(others.rate, 1_000_000_000).0 as u64;
        Some(answered + u128::from(self.queue + others.rows + meanwhile) * span.0 as u128 / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(i64) -> Nanos = Nanos::from_millis;
    const ALONE: Others = Others { spare: Permille::from_parts(8_000), rows: 0, work: Nanos::ZERO, rate: 0, idle: 0 };

    fn waiting(queue: usize, per_second: u64) -> Waiting {
        let rate = Rate { rows: per_second, window: MS(1_000) };
        Waiting { rows: queue.min(32), queue: queue as u64, rate, slo: MS(1_000), least: 1 }
    }

    /// 3 ms per row, and 3 ms for a launch.
    fn rows_cost(rows: usize) -> Nanos {
        MS(3) * rows as i64 + MS(3)
    }

    /// 20 ms, and 0.1 ms per row.
    fn launches_cost(rows: usize) -> Nanos {
        MS(20) + Nanos::from_micros(100) * rows as i64
    }

    #[test]
    fn rows_that_gain_nothing_together_are_divided_among_devices() {
        assert_eq!(waiting(1, 0).cut(&ALONE, rows_cost), 1);
        assert!(waiting(16, 0).cut(&ALONE, rows_cost) <= 4);
        assert_eq!(waiting(16, 0).cut(&Others { idle: 15, ..ALONE }, rows_cost), 1);
        assert_eq!(waiting(16, 0).cut(&ALONE, launches_cost), 16);
    }

    #[test]
    fn the_higher_the_load_the_larger_the_batch() {
        let batch = |per_second: u64| waiting(32, per_second).cut(&ALONE, rows_cost);
        let batches = [0, 1_000, 1_800, 2_300].map(batch);
        assert!(batches.is_sorted() && batches[0] < batches[3], "{batches:?}");
        assert_eq!(batch(4_000), 32, "no batch carries it");
        let busy = Others { spare: Permille::from_parts(1_200), rows: 64, work: MS(200), rate: 500, ..ALONE };
        assert!(waiting(16, 100).cut(&busy, rows_cost) > waiting(16, 100).cut(&ALONE, rows_cost));
    }
}
