//! Detects devices that hang: a lane's current task takes far too long.
//!
//! A task may take many times its profiled latency and still end. Processors are shared, a failed
//! batch is run again in parts, or the profile is wrong. So the bound is a multiple of the profile,
//! at least twice what a batch takes whose rows all fail, and never below a floor. A lane past its
//! bound is checked a second time before its device counts as hung. If the whole server was
//! suspended meanwhile, the results that have arrived are processed between the checks. A lane runs
//! its tasks one by one, so only its first task is timed, from the earliest time at which the task
//! could begin.

use ripieno_base::{IndexedHeap, Nanos, TaskId, Time};
use ripieno_model::Block;
use ripieno_sched::CostScale;
use std::collections::VecDeque;

/// Time after which a device that does not end its task counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangBound {
    /// The bound as a multiple of the profiled latency.
    pub times: u32,
    /// Smallest bound.
    pub least: Nanos,
}

impl Default for HangBound {
    /// Returns a bound of 100 times the profiled latency and at least ten seconds, for devices that
    /// share a machine with everything else: the loss of the only one is an outage.
    fn default() -> HangBound {
        HangBound { times: 100, least: Nanos::from_millis(10_000) }
    }
}

/// Expected duration of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedCost {
    /// The profiled latency.
    pub(crate) latency: Nanos,
    /// The latency if the batch fails and is run again in halves, down to single rows.
    pub(crate) with_reruns: Nanos,
}

impl TimedCost {
    /// Returns the cost of a batch of requests of this relative cost, on a device of `percent` of
    /// the profiled latency.
    pub(crate) fn of(block: &Block, rows: usize, length: u32, percent: u32, cost: CostScale) -> TimedCost {
        let scaled = |latency: Nanos| cost.of(latency).scale(u64::from(percent), 100);
        let (mut parts, mut with_reruns) = (1, Nanos::ZERO);
        loop {
            let size = rows.div_ceil(parts).max(1);
            with_reruns += scaled(block.cost(size, length)) * parts as i64;
            if size == 1 {
                return TimedCost { latency: scaled(block.cost(rows, length)), with_reruns };
            }
            parts *= 2;
        }
    }
}

impl HangBound {
    fn of(self, cost: TimedCost) -> Nanos {
        let times = |latency: Nanos, times: u32| Nanos(latency.0.saturating_mul(i64::from(times)));
        times(cost.latency, self.times).max(times(cost.with_reruns, RERUN_FACTOR)).max(self.least)
    }
}

/// Multiple of the profiled time that a batch may take whose rows all fail.
const RERUN_FACTOR: u32 = 2;

/// Denominator of the delay before the second check, as a fraction of the bound.
const RECHECK_FRACTION: i64 = 10;

/// Times the tasks of all lanes.
pub(crate) struct HangDetector {
    bound: HangBound,
    lanes: Vec<TimedLane>,
    /// Time of the next check of each lane that has one.
    due: IndexedHeap<Time>,
}

#[derive(Default)]
struct TimedLane {
    tasks: VecDeque<TimedTask>,
    /// Whether a check has found the first task past its bound.
    overdue: bool,
}

#[derive(Clone, Copy)]
struct TimedTask {
    task: TaskId,
    not_before: Time,
    /// Longest allowed duration; `None` for no limit.
    bound: Option<Nanos>,
}

impl HangDetector {
    /// Creates a detector for `lanes` lanes that hold up to `depth` tasks each.
    pub(crate) fn new(bound: HangBound, lanes: usize, depth: usize) -> HangDetector {
        let lane = || TimedLane { tasks: VecDeque::with_capacity(depth), overdue: false };
        HangDetector { bound, lanes: (0..lanes).map(|_| lane()).collect(), due: IndexedHeap::new(lanes) }
    }

    /// Adds a task to a lane. Without a `cost`, a supervisor limits the task instead.
    pub(crate) fn start(&mut self, now: Time, lane: usize, task: TaskId, not_before: Time, cost: Option<TimedCost>) {
        let bound = cost.map(|cost| self.bound.of(cost));
        self.lanes[lane].tasks.push_back(TimedTask { task, not_before, bound });
        if self.lanes[lane].tasks.len() == 1 {
            self.time_first(now, lane);
        }
    }

    /// Removes a task that has ended.
    pub(crate) fn end(&mut self, now: Time, lane: usize, task: TaskId) {
        let tasks = &mut self.lanes[lane].tasks;
        let at = tasks.iter().position(|timed| timed.task == task);
        if at.is_some_and(|at| tasks.remove(at).is_some() && at == 0) {
            self.time_first(now, lane);
        }
    }

    /// Removes all tasks of the lane.
    pub(crate) fn clear(&mut self, lane: usize) {
        self.lanes[lane].tasks.clear();
        self.due.remove(lane);
    }

    fn time_first(&mut self, now: Time, lane: usize) {
        self.lanes[lane].overdue = false;
        let first = self.lanes[lane].tasks.front();
        match first.and_then(|first| Some(now.max(first.not_before) + first.bound?)) {
            Some(due) => self.due.set(lane, due),
            None => self.due.remove(lane),
        }
    }

    /// Time of the next check.
    pub(crate) fn next(&self) -> Time {
        self.due.peek().map_or(Time::NEVER, |(at, _)| at)
    }

    /// Returns a lane whose first task was past its bound in two checks.
    pub(crate) fn hung(&mut self, now: Time) -> Option<usize> {
        while let Some((_, at)) = self.due.peek().filter(|&(due, _)| due <= now) {
            let lane = &mut self.lanes[at];
            if std::mem::replace(&mut lane.overdue, true) {
                return Some(at);
            }
            let bound = lane.tasks.front().and_then(|first| first.bound).unwrap_or(self.bound.least);
            self.due.set(at, now + Nanos((bound.0 / RECHECK_FRACTION).max(1)));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Profile;

    fn ms(ms: i64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn at(at: i64) -> Time {
        Time::ORIGIN + ms(at)
    }

    fn cost(latency: i64) -> Option<TimedCost> {
        Some(TimedCost { latency: ms(latency), with_reruns: ms(latency) })
    }

    #[test]
    fn the_bound_follows_the_profile_and_leaves_time_for_reruns() {
        let bound = HangBound { times: 10, least: ms(1_000) };
        let of = |latency, with_reruns| bound.of(TimedCost { latency: ms(latency), with_reruns: ms(with_reruns) });
        assert_eq!([of(5, 40), of(300, 900), of(100, 4_000)], [ms(1_000), ms(3_000), ms(8_000)]);
        // Four rows of 1 ms and 2 ms a batch: 6, then 2 × 4, then 4 × 3.
        let block = Block::new("b", Profile::linear(1.0, 2.0, 4).unwrap());
        let cost = TimedCost::of(&block, 4, 1, 200, CostScale::PROFILED);
        assert_eq!((cost.latency, cost.with_reruns), (ms(12), ms(52)));
        assert_eq!(TimedCost::of(&block, 1, 1, 100, CostScale::PROFILED).with_reruns, ms(3));
    }

    fn watched() -> HangDetector {
        HangDetector::new(HangBound { times: 10, least: ms(50) }, 2, 4)
    }

    #[test]
    fn the_first_task_of_a_lane_is_timed_from_when_it_could_begin() {
        let mut hangs = watched();
        assert_eq!(hangs.next(), Time::NEVER);
        hangs.start(at(0), 0, TaskId(0), at(5), cost(10));
        hangs.start(at(0), 0, TaskId(1), at(0), cost(1));
        assert_eq!(hangs.next(), at(105));
        hangs.end(at(40), 0, TaskId(0));
        assert_eq!(hangs.next(), at(90), "the second one has at least 50 ms from then on");
        hangs.end(at(41), 0, TaskId(1));
        assert_eq!((hangs.next(), hangs.hung(at(1_000))), (Time::NEVER, None));
    }

    #[test]
    fn a_lane_hangs_if_it_has_not_ended_when_it_is_looked_at_again() {
        let mut hangs = watched();
        hangs.start(at(0), 1, TaskId(7), at(0), cost(20));
        assert_eq!((hangs.hung(at(199)), hangs.hung(at(200)), hangs.next()), (None, None, at(220)));
        assert_eq!((hangs.hung(at(219)), hangs.hung(at(220))), (None, Some(1)));
        hangs.clear(1);
        assert_eq!((hangs.hung(at(500)), hangs.next()), (None, Time::NEVER));
    }

    #[test]
    fn a_server_that_stood_still_hears_of_the_end_first() {
        let mut hangs = watched();
        hangs.start(at(0), 0, TaskId(0), at(0), cost(1));
        hangs.start(at(0), 0, TaskId(1), at(0), cost(1));
        assert_eq!(hangs.hung(at(90_000)), None);
        hangs.end(at(90_001), 0, TaskId(0));
        assert_eq!((hangs.hung(at(90_020)), hangs.next()), (None, at(90_051)));
    }

    #[test]
    fn what_is_cancelled_out_of_turn_or_seen_to_elsewhere_does_not_count() {
        let mut hangs = watched();
        hangs.start(at(0), 0, TaskId(0), at(0), None);
        hangs.start(at(0), 0, TaskId(1), at(0), cost(1));
        hangs.start(at(0), 0, TaskId(2), at(0), cost(1));
        assert_eq!(hangs.next(), Time::NEVER);
        hangs.end(at(1), 0, TaskId(1));
        hangs.end(at(2), 0, TaskId(0));
        assert_eq!(hangs.next(), at(52));
    }
}
