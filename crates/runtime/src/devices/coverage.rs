//! Busy time of a device: the union of its batches' execution spans. The lanes of a device run
//! batches in parallel, so the spans may overlap.
//!
//! Batches are reported when they end. So a long batch may cover a span that counted as idle when
//! shorter batches ended. To correct this, the last few gaps are kept. A gap that is no longer kept
//! stays idle.

use ripieno_base::{Nanos, Time};

/// Number of gaps kept per lane.
const GAPS_A_LANE: usize = 8;

/// The time that the batches of one device cover.
#[derive(Debug)]
pub(crate) struct Coverage {
    /// Latest end of a batch.
    until: Time,
    /// Uncovered spans before `until`, ascending.
    gaps: Vec<(Time, Time)>,
    most: usize,
}

impl Coverage {
    pub(crate) fn new(lanes: usize) -> Coverage {
        let most = GAPS_A_LANE * lanes.max(1);
        Coverage { until: Time::ORIGIN, gaps: Vec::with_capacity(2 * most), most }
    }

    /// Adds a batch that ran from `started` to `finished`. Returns how much of this span no earlier
    /// batch covered.
    pub(crate) fn add(&mut self, started: Time, finished: Time) -> Nanos {
        let mut fresh = Nanos::ZERO;
        for at in (0..self.gaps.len()).rev() {
            let (from, to) = self.gaps[at];
            if to <= started {
                break;
            }
            let (left, right) = (started.max(from), finished.min(to));
            if left >= right {
                continue;
            }
            fresh += right - left;
            self.gaps[at] = (from, left);
            if right < to {
                self.gaps.insert(at + 1, (right, to));
            }
        }
        self.gaps.retain(|(from, to)| from < to);
        if started > self.until {
            self.gaps.push((self.until, started));
        }
        if finished > self.until {
            fresh += finished - started.max(self.until);
            self.until = finished;
        }
        let beyond = self.gaps.len().saturating_sub(self.most);
        self.gaps.drain(..beyond);
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_workload::{below, stream};

    fn at(ms: i64) -> Time {
        Time::ORIGIN + Nanos::from_millis(ms)
    }

    #[test]
    fn one_after_the_other_each_counts_whole() {
        let mut coverage = Coverage::new(1);
        let spans = [(1, 3), (3, 4), (7, 9)];
        let told: Vec<i64> = spans.iter().map(|&(from, to)| coverage.add(at(from), at(to)).0 / 1_000_000).collect();
        assert_eq!(told, [2, 1, 2]);
    }

    #[test]
    fn side_by_side_no_instant_counts_twice_and_gaps_are_filled_late() {
        let mut coverage = Coverage::new(2);
        let mut add = |from, to| coverage.add(at(from), at(to)).0 / 1_000_000;
        assert_eq!((add(0, 2), add(4, 5), add(7, 8)), (2, 1, 1));
        // This batch overlaps the last two and fills the gaps between them.
        assert_eq!(add(3, 10), 1 + 2 + 2);
        assert_eq!((add(3, 9), add(2, 3), add(1, 12)), (0, 1, 2));
    }

    #[test]
    fn any_spans_cover_what_a_drawing_of_them_covers() {
        let mut random = stream(1, 0);
        let mut next = |bound: u64| below(&mut random, bound) as i64;
        // There are few enough spans that all gaps are kept.
        for _ in 0..200 {
            let (mut coverage, mut drawing, mut total) = (Coverage::new(4), vec![false; 100], 0);
            for _ in 0..12 {
                let from = next(90);
                let to = from + 1 + next(9);
                total += coverage.add(at(from), at(to)).0 / 1_000_000;
                drawing[from as usize..to as usize].fill(true);
            }
            assert_eq!(total as usize, drawing.iter().filter(|&&covered| covered).count());
        }
    }
}
