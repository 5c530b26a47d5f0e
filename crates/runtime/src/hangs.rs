//! Which lane is at a task for much too long: its device hangs.
//!
//! A task may take many times what its profile says and still end: processors are shared, a batch that fails is run again in
//! parts, a profile may be wrong. So the bound is far out, and a lane that has passed it is looked at once more a while later:
//! if the whole server stood still meanwhile, what has ended is heard of before that. Tasks of a lane follow each other, so
//! only its first one is timed, from when it could begin.

use ripieno_base::{IndexedHeap, Nanos, TaskId, Time};
use std::collections::VecDeque;

/// When a device that does not end its task is given up as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangBound {
    /// As many times as long as the profile says,
    pub times: u32,
    /// but at least so long.
    pub least: Nanos,
}

impl Default for HangBound {
    /// A hundred times the profile: a batch that fails in each of its rows is run again in up to 64 parts.
    fn default() -> HangBound {
        HangBound { times: 100, least: Nanos::from_millis(10_000) }
    }
}

/// A lane is looked at again after so large a part of the bound.
const LOOK_AGAIN_AFTER: i64 = 10;

/// The tasks of all lanes.
pub(crate) struct Hangs {
    bound: HangBound,
    lanes: Vec<Lane>,
    /// When lanes are to be looked at.
    due: IndexedHeap<Time>,
}

#[derive(Default)]
struct Lane {
    tasks: VecDeque<Timed>,
    /// Whether its first task has passed its bound.
    suspect: bool,
}

#[derive(Clone, Copy)]
struct Timed {
    task: TaskId,
    not_before: Time,
    /// How long it may take; for ever if none.
    bound: Option<Nanos>,
}

impl Hangs {
    /// Of so many lanes that hold up to `depth` tasks each.
    pub(crate) fn new(bound: HangBound, lanes: usize, depth: usize) -> Hangs {
        let lane = || Lane { tasks: VecDeque::with_capacity(depth), suspect: false };
        Hangs { bound, lanes: (0..lanes).map(|_| lane()).collect(), due: IndexedHeap::new(lanes) }
    }

    /// A lane is given a task that should take so long; none if somebody else sees to its end.
    pub(crate) fn start(&mut self, now: Time, lane: usize, task: TaskId, not_before: Time, latency: Option<Nanos>) {
        let HangBound { times, least } = self.bound;
        let bound = latency.map(|latency| Nanos(latency.0.saturating_mul(i64::from(times))).max(least));
        self.lanes[lane].tasks.push_back(Timed { task, not_before, bound });
        if self.lanes[lane].tasks.len() == 1 {
            self.time_first(now, lane);
        }
    }

    /// A lane's task has ended.
    pub(crate) fn end(&mut self, now: Time, lane: usize, task: TaskId) {
        let tasks = &mut self.lanes[lane].tasks;
        let at = tasks.iter().position(|timed| timed.task == task);
        if at.is_some_and(|at| tasks.remove(at).is_some() && at == 0) {
            self.time_first(now, lane);
        }
    }

    /// The lane holds nothing any more.
    pub(crate) fn clear(&mut self, lane: usize) {
        self.lanes[lane].tasks.clear();
        self.due.remove(lane);
    }

    fn time_first(&mut self, now: Time, lane: usize) {
        self.lanes[lane].suspect = false;
        let first = self.lanes[lane].tasks.front();
        match first.and_then(|first| Some(now.max(first.not_before) + first.bound?)) {
            Some(due) => self.due.set(lane, due),
            None => self.due.remove(lane),
        }
    }

    /// When to look next.
    pub(crate) fn next(&self) -> Time {
        self.due.peek().map_or(Time::NEVER, |(at, _)| at)
    }

    /// A lane whose task should have ended long ago.
    pub(crate) fn hung(&mut self, now: Time) -> Option<usize> {
        while let Some((_, at)) = self.due.peek().filter(|&(due, _)| due <= now) {
            let lane = &mut self.lanes[at];
            if std::mem::replace(&mut lane.suspect, true) {
                return Some(at);
            }
            let bound = lane.tasks.front().and_then(|first| first.bound).unwrap_or(self.bound.least);
            self.due.set(at, now + Nanos((bound.0 / LOOK_AGAIN_AFTER).max(1)));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: i64) -> Nanos {
        Nanos::from_millis(ms)
    }

    fn at(at: i64) -> Time {
        Time::ORIGIN + ms(at)
    }

    fn watched() -> Hangs {
        Hangs::new(HangBound { times: 10, least: ms(50) }, 2, 4)
    }

    #[test]
    fn the_first_task_of_a_lane_is_timed_from_when_it_could_begin() {
        let mut hangs = watched();
        assert_eq!(hangs.next(), Time::NEVER);
        hangs.start(at(0), 0, TaskId(0), at(5), Some(ms(10)));
        hangs.start(at(0), 0, TaskId(1), at(0), Some(ms(1)));
        assert_eq!(hangs.next(), at(105));
        hangs.end(at(40), 0, TaskId(0));
        assert_eq!(hangs.next(), at(90), "the second one has at least 50 ms from then on");
        hangs.end(at(41), 0, TaskId(1));
        assert_eq!((hangs.next(), hangs.hung(at(1_000))), (Time::NEVER, None));
    }

    #[test]
    fn a_lane_hangs_if_it_has_not_ended_when_it_is_looked_at_again() {
        let mut hangs = watched();
        hangs.start(at(0), 1, TaskId(7), at(0), Some(ms(20)));
        assert_eq!((hangs.hung(at(199)), hangs.hung(at(200)), hangs.next()), (None, None, at(220)));
        assert_eq!((hangs.hung(at(219)), hangs.hung(at(220))), (None, Some(1)));
        hangs.clear(1);
        assert_eq!((hangs.hung(at(500)), hangs.next()), (None, Time::NEVER));
    }

    #[test]
    fn a_server_that_stood_still_hears_of_the_end_first() {
        let mut hangs = watched();
        hangs.start(at(0), 0, TaskId(0), at(0), Some(ms(1)));
        hangs.start(at(0), 0, TaskId(1), at(0), Some(ms(1)));
        assert_eq!(hangs.hung(at(90_000)), None);
        hangs.end(at(90_001), 0, TaskId(0));
        assert_eq!((hangs.hung(at(90_020)), hangs.next()), (None, at(90_051)));
    }

    #[test]
    fn what_is_cancelled_out_of_turn_or_seen_to_elsewhere_does_not_count() {
        let mut hangs = watched();
        hangs.start(at(0), 0, TaskId(0), at(0), None);
        hangs.start(at(0), 0, TaskId(1), at(0), Some(ms(1)));
        hangs.start(at(0), 0, TaskId(2), at(0), Some(ms(1)));
        assert_eq!(hangs.next(), Time::NEVER);
        hangs.end(at(1), 0, TaskId(1));
        hangs.end(at(2), 0, TaskId(0));
        assert_eq!(hangs.next(), at(52));
    }
}
