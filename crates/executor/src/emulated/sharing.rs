//! How the lanes of an emulated device share it: by the rule of [`ripieno_model::Lanes`], by which schedulers are simulated, too.
//!
//! Progress is reckoned, not waited for: from the instants at which batches could have begun and have ended by the rule, in the
//! order of time, however late the threads wake up. So late wake-ups do not add up, and a saturated device yields what it
//! promises.

use crate::ExecError;
use crate::abort::Abort;
use parking_lot::Mutex;
use ripieno_base::{LaneId, Nanos, TaskId, Time};
use ripieno_model::{Due, Job};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One device, shared by its lanes.
pub(crate) struct Sharing {
    state: Mutex<State>,
    /// Of each lane.
    aborts: Vec<Arc<Abort>>,
}

/// Who runs, and how far they are.
struct State {
    /// What instants are counted from.
    origin: Instant,
    /// A task has the number of its lane: there is at most one of each.
    due: Due,
    lanes: Vec<Lane>,
}

#[derive(Clone, Copy)]
struct Lane {
    /// When its last batch ended by the rule.
    busy_until: Time,
    /// When the batch that it has just begun had ended by the rule before the thread woke up, if it had.
    ended: Option<Time>,
}

impl Sharing {
    pub(crate) fn new(aborts: Vec<Arc<Abort>>) -> Sharing {
        Sharing { state: Mutex::new(State::new(Instant::now(), aborts.len())), aborts }
    }

    /// Waits as long as a batch takes that could have begun at `ready` and costs `work` alone; an error if it is cancelled.
    pub(crate) fn run(&self, lane: usize, ready: Instant, work: Duration, share: u32) -> Result<(), ExecError> {
        self.state.lock().begin(Instant::now(), lane, ready, work, share);
        self.others_look_again(lane);
        let waited = self.aborts[lane].wait(|| self.state.lock().end_of(lane, Instant::now()));
        self.state.lock().leave(lane, Instant::now());
        self.others_look_again(lane);
        waited
    }

    /// Whoever waits for his end reckons it anew.
    fn others_look_again(&self, lane: usize) {
        self.aborts.iter().enumerate().filter(|&(at, _)| at != lane).for_each(|(_, abort)| abort.nudge());
    }
}

impl State {
    fn new(origin: Instant, lanes: usize) -> State {
        let lane = Lane { busy_until: Time::ORIGIN, ended: None };
        State { origin, due: Due::new(lanes), lanes: vec![lane; lanes] }
    }

    fn begin(&mut self, now: Instant, lane: usize, ready: Instant, work: Duration, share: u32) {
        let (now, ready) = (self.time(now), self.time(ready));
        self.due.advance(now);
        // What a late wake-up has missed since it could have begun is done, or more than that.
        let missed = now - ready.max(self.lanes[lane].busy_until).min(now);
        let (alone, span) = (nanos(work), self.due.span_beside(share, nanos(work)));
        if span <= missed {
            self.lanes[lane].ended = Some(now - (missed - span));
            return;
        }
        let alone = Nanos(alone.0 - (i128::from(alone.0) * i128::from(missed.0) / i128::from(span.0)) as i64);
        self.due.start(now, LaneId(lane as u16), Job { task: task(lane), earliest: now, alone, share });
    }

    /// When the lane's batch will end if nobody comes; none if it has.
    fn end_of(&mut self, lane: usize, now: Instant) -> Option<Instant> {
        self.due.advance(self.time(now));
        let end = if self.lanes[lane].ended.is_some() { None } else { self.due.end_of(task(lane)) };
        end.map(|end| self.origin + Duration::from_nanos(end.0.unsigned_abs()))
    }

    fn leave(&mut self, lane: usize, now: Instant) {
        let now = self.time(now);
        let ended = self.lanes[lane].ended.unwrap_or_else(|| self.due.end(now, task(lane)).1);
        self.lanes[lane] = Lane { busy_until: ended, ended: None };
    }

    fn time(&self, at: Instant) -> Time {
        Time::ORIGIN + nanos(at.saturating_duration_since(self.origin))
    }
}

fn nanos(span: Duration) -> Nanos {
    Nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}

fn task(lane: usize) -> TaskId {
    TaskId(lane as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn state(lanes: usize) -> (State, Instant) {
        let now = Instant::now();
        (State::new(now, lanes), now)
    }

    #[test]
    fn shares_that_fit_do_not_slow_each_other_down_and_others_do() {
        let (mut state, t) = state(2);
        state.begin(t, 0, t, 8 * MS, 750_000);
        assert_eq!(state.end_of(0, t), Some(t + 8 * MS));
        state.begin(t + 2 * MS, 1, t + 2 * MS, 3 * MS, 250_000);
        let ends = [0, 1].map(|lane| state.end_of(lane, t + 2 * MS));
        assert_eq!(ends, [Some(t + 8 * MS), Some(t + 5 * MS)]);
        state.leave(1, t + 5 * MS);
        // Half of each other's speed from now on, until the second has done its 2 ms; then the first is alone with 1.
        state.begin(t + 5 * MS, 1, t + 5 * MS, 2 * MS, 1_250_000);
        let ends = [0, 1].map(|lane| state.end_of(lane, t + 5 * MS));
        assert_eq!(ends, [Some(t + 10 * MS), Some(t + 9 * MS)]);
    }

    #[test]
    fn one_after_the_other_is_exact_however_late_the_thread_wakes_up() {
        let (mut state, t) = state(1);
        state.begin(t, 0, t, 4 * MS, 1_000_000);
        assert_eq!(state.end_of(0, t + 7 * MS), None);
        state.leave(0, t + 7 * MS);
        // It was ready at 1 ms, could begin at 4, and has done 3 of its 5 ms at 7.
        state.begin(t + 7 * MS, 0, t + MS, 5 * MS, 1_000_000);
        assert_eq!(state.end_of(0, t + 7 * MS), Some(t + 9 * MS));
        state.leave(0, t + 9 * MS);
        // Shorter than what it missed: it ended in the past, and the next one begins there.
        state.begin(t + 20 * MS, 0, t + 10 * MS, 2 * MS, 1_000_000);
        assert_eq!(state.end_of(0, t + 20 * MS), None);
        state.leave(0, t + 20 * MS);
        assert_eq!(state.lanes[0].busy_until, state.time(t + 12 * MS));
    }

    #[test]
    fn who_is_stopped_makes_room_for_the_others() {
        let (mut state, t) = state(2);
        state.begin(t, 0, t, 10 * MS, 1_000_000);
        state.begin(t, 1, t, 10 * MS, 1_000_000);
        assert_eq!(state.end_of(0, t), Some(t + 20 * MS));
        state.leave(1, t + 4 * MS);
        assert_eq!(state.end_of(0, t + 4 * MS), Some(t + 12 * MS));
        assert_eq!(state.lanes[1].busy_until, state.time(t + 4 * MS));
    }
}
