//! Sharing of an emulated device by its lanes, by the rule of [`ripieno_model::Lanes`], which the
//! simulator uses as well.
//!
//! Progress is computed from the times at which batches could begin and end by the rule, in order
//! of time. It does not depend on when threads wake up. So late wake-ups do not accumulate, and a
//! saturated device has the throughput of its profile.

use crate::ExecError;
use crate::run::abort::Abort;
use parking_lot::Mutex;
use ripieno_base::{LaneId, Nanos, TaskId, Time};
use ripieno_model::{ExpectedEnds, LaneTask};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One device and its lanes.
pub(crate) struct Sharing {
    state: Mutex<SharingState>,
    /// Cancellation of each lane's wait.
    aborts: Vec<Arc<Abort>>,
}

/// Running batches and their progress.
struct SharingState {
    /// Instant of time 0.
    origin: Instant,
    /// Expected ends of running batches. A lane has at most one batch, so its number serves as the
    /// task id.
    due: ExpectedEnds,
    lanes: Vec<LaneClock>,
}

#[derive(Clone, Copy)]
struct LaneClock {
    /// End of the lane's last batch by the rule.
    busy_until: Time,
    /// End by the rule of the lane's current batch, if that end was before its thread woke up.
    ended: Option<Time>,
}

impl Sharing {
    pub(crate) fn new(aborts: Vec<Arc<Abort>>) -> Sharing {
        Sharing { state: Mutex::new(SharingState::new(Instant::now(), aborts.len())), aborts }
    }

    /// Waits for the duration of a batch that could begin at `ready` and takes `work` if it runs
    /// alone. Returns an error if the batch is cancelled.
    pub(crate) fn run(&self, lane: usize, ready: Instant, work: Duration, share: u32) -> Result<(), ExecError> {
        self.state.lock().begin(Instant::now(), lane, ready, work, share);
        self.wake_others(lane);
        let waited = self.aborts[lane].wait(|| self.state.lock().end_of(lane, Instant::now()));
        self.state.lock().leave(lane, Instant::now());
        self.wake_others(lane);
        waited
    }

    /// Makes the other lanes compute their ends again.
    fn wake_others(&self, lane: usize) {
        self.aborts.iter().enumerate().filter(|&(at, _)| at != lane).for_each(|(_, abort)| abort.recheck());
    }
}

impl SharingState {
    fn new(origin: Instant, lanes: usize) -> SharingState {
        let lane = LaneClock { busy_until: Time::ORIGIN, ended: None };
        SharingState { origin, due: ExpectedEnds::new(lanes), lanes: vec![lane; lanes] }
    }

    fn begin(&mut self, now: Instant, lane: usize, ready: Instant, work: Duration, share: u32) {
        let (now, ready) = (self.time(now), self.time(ready));
        self.due.advance(now);
        // The time that a late wake-up missed counts as work done, up to the whole batch.
        let missed = now - ready.max(self.lanes[lane].busy_until).min(now);
        let (alone, span) = (nanos(work), self.due.span_beside(share, nanos(work)));
        if span <= missed {
            self.lanes[lane].ended = Some(now - (missed - span));
            return;
        }
        let alone = Nanos(alone.0 - (i128::from(alone.0) * i128::from(missed.0) / i128::from(span.0)) as i64);
        self.due.start(now, LaneId(lane as u16), LaneTask { task: task(lane), earliest: now, alone, share });
    }

    /// Returns the expected end of the lane's batch if no other batch begins; `None` if the batch
    /// has ended.
    fn end_of(&mut self, lane: usize, now: Instant) -> Option<Instant> {
        self.due.advance(self.time(now));
        let end = if self.lanes[lane].ended.is_some() { None } else { self.due.end_of(task(lane)) };
        end.map(|end| self.origin + Duration::from_nanos(end.0.unsigned_abs()))
    }

    fn leave(&mut self, lane: usize, now: Instant) {
        let now = self.time(now);
        let ended = self.lanes[lane].ended.unwrap_or_else(|| self.due.end(now, task(lane)).1);
        self.lanes[lane] = LaneClock { busy_until: ended, ended: None };
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

    fn state(lanes: usize) -> (SharingState, Instant) {
        let now = Instant::now();
        (SharingState::new(now, lanes), now)
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
        // Both batches run at half speed until the second one has done its 2 ms. The first one then
        // has 1 ms left and runs alone.
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
        // The batch was ready at 1 ms and could begin at 4 ms. At 7 ms it has done 3 of its 5 ms.
        state.begin(t + 7 * MS, 0, t + MS, 5 * MS, 1_000_000);
        assert_eq!(state.end_of(0, t + 7 * MS), Some(t + 9 * MS));
        state.leave(0, t + 9 * MS);
        // The batch is shorter than the missed time. It ended in the past, and the next batch
        // begins at that time.
        state.begin(t + 20 * MS, 0, t + 10 * MS, 2 * MS, 1_000_000);
        assert_eq!(state.end_of(0, t + 20 * MS), None);
        state.leave(0, t + 20 * MS);
        assert_eq!(state.lanes[0].busy_until, state.time(t + 12 * MS));
    }

    #[test]
    fn a_stopped_batch_makes_room_for_the_others() {
        let (mut state, t) = state(2);
        state.begin(t, 0, t, 10 * MS, 1_000_000);
        state.begin(t, 1, t, 10 * MS, 1_000_000);
        assert_eq!(state.end_of(0, t), Some(t + 20 * MS));
        state.leave(1, t + 4 * MS);
        assert_eq!(state.end_of(0, t + 4 * MS), Some(t + 12 * MS));
        assert_eq!(state.lanes[1].busy_until, state.time(t + 4 * MS));
    }
}
