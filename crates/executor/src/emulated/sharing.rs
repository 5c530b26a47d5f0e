//! How the lanes of an emulated device share it.
//!
//! Each running batch can use a part of the device, its share. All of them progress at full speed while the shares together fit
//! into one device, and slower by their sum once they do not: 1 / max(1, sum of shares). It is the rule that schedulers are
//! simulated with. A batch alone takes exactly what its block costs.
//!
//! Progress is reckoned, not waited for: from the instants at which batches could have begun and have ended by the rule, in the
//! order of time, however late the threads wake up. So late wake-ups do not add up, and a saturated device yields what it
//! promises.

use crate::ExecError;
use crate::abort::Abort;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A whole device, in the unit of shares.
const WHOLE: u128 = 1_000_000;

/// One device, shared by its lanes.
pub(crate) struct Sharing {
    state: Mutex<State>,
    /// Of each lane.
    aborts: Vec<Arc<Abort>>,
}

/// Who runs, and how far they are.
#[derive(Clone)]
struct State {
    /// Until when progress is reckoned.
    now: Instant,
    /// At most one of each lane.
    batches: Vec<Batch>,
    /// When each lane's last batch ended by the rule.
    busy_until: Vec<Instant>,
}

#[derive(Clone)]
struct Batch {
    lane: usize,
    share: u32,
    /// Nanoseconds of work left, in millionths.
    left: u128,
    /// When it had none left.
    ended: Option<Instant>,
}

impl Sharing {
    pub(crate) fn new(aborts: Vec<Arc<Abort>>) -> Sharing {
        let now = Instant::now();
        let state = State { now, batches: Vec::with_capacity(aborts.len()), busy_until: vec![now; aborts.len()] };
        Sharing { state: Mutex::new(state), aborts }
    }

    /// Waits as long as a batch takes that could have begun at `ready` and costs `work` alone; an error if it is cancelled.
    pub(crate) fn run(&self, lane: usize, ready: Instant, work: Duration, share: u32) -> Result<(), ExecError> {
        self.state.lock().begin(Instant::now(), lane, ready, work, share);
        self.others_look_again(lane);
        let waited = self.aborts[lane].wait(|| {
            let mut state = self.state.lock();
            state.advance(Instant::now());
            state.end_of(lane)
        });
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
    fn begin(&mut self, now: Instant, lane: usize, ready: Instant, work: Duration, share: u32) {
        self.advance(now);
        self.batches.push(Batch { lane, share, left: work.as_nanos() * WHOLE, ended: None });
        // What a late wake-up has missed since it could have begun.
        let missed = now.saturating_duration_since(ready.max(self.busy_until[lane]));
        let load = self.load();
        let batch = self.batches.last_mut().expect("it was pushed");
        let (done, over) = progress(missed, load).min_and_rest(batch.left);
        batch.left -= done;
        if batch.left == 0 {
            batch.ended = now.checked_sub(time_for(over, load)).or(Some(now));
        }
    }

    /// Lets everything progress until `until`, from one end of a batch to the next.
    fn advance(&mut self, until: Instant) {
        while let Some((at, end)) = self.next_end().filter(|&(_, end)| end <= until) {
            self.progress_to(end);
            (self.batches[at].left, self.batches[at].ended) = (0, Some(end));
        }
        self.progress_to(until);
    }

    fn progress_to(&mut self, until: Instant) {
        let done = progress(until.saturating_duration_since(self.now), self.load());
        self.batches.iter_mut().for_each(|batch| batch.left = batch.left.saturating_sub(done));
        self.now = self.now.max(until);
    }

    /// Which of the batches that run ends first, and when.
    fn next_end(&self) -> Option<(usize, Instant)> {
        let running = self.batches.iter().enumerate().filter(|(_, batch)| batch.ended.is_none());
        let (at, batch) = running.min_by_key(|(_, batch)| batch.left)?;
        Some((at, self.now + time_for(batch.left, self.load())))
    }

    /// When the lane's batch will end if nobody comes; none if it has.
    fn end_of(&self, lane: usize) -> Option<Instant> {
        let mut ahead = self.clone();
        let ended = |state: &State| state.batches.iter().find(|batch| batch.lane == lane).and_then(|batch| batch.ended);
        if ended(self).is_some() {
            return None;
        }
        while ended(&ahead).is_none() {
            let (_, end) = ahead.next_end()?;
            ahead.advance(end);
        }
        ended(&ahead)
    }

    fn leave(&mut self, lane: usize, now: Instant) {
        self.advance(now);
        let at = self.batches.iter().position(|batch| batch.lane == lane);
        let batch = self.batches.remove(at.expect("it has begun"));
        self.busy_until[lane] = batch.ended.unwrap_or(now);
    }

    /// By how much everything is slowed down, in millionths; never less than [`WHOLE`].
    fn load(&self) -> u128 {
        let running = self.batches.iter().filter(|batch| batch.ended.is_none());
        running.map(|batch| u128::from(batch.share)).sum::<u128>().max(WHOLE)
    }
}

/// What is done in a span under a load.
fn progress(span: Duration, load: u128) -> u128 {
    span.as_nanos() * WHOLE * WHOLE / load
}

/// How long so much takes under a load.
fn time_for(left: u128, load: u128) -> Duration {
    let nanos = (left * load).div_ceil(WHOLE * WHOLE);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX >> 1))
}

/// A part of something, and what remains.
trait MinAndRest: Sized {
    fn min_and_rest(self, most: Self) -> (Self, Self);
}

impl MinAndRest for u128 {
    fn min_and_rest(self, most: u128) -> (u128, u128) {
        let taken = self.min(most);
        (taken, self - taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn state(lanes: usize) -> (State, Instant) {
        let now = Instant::now();
        (State { now, batches: Vec::new(), busy_until: vec![now; lanes] }, now)
    }

    #[test]
    fn shares_that_fit_do_not_slow_each_other_down_and_others_do() {
        let (mut state, t) = state(2);
        state.begin(t, 0, t, 8 * MS, 750_000);
        assert_eq!(state.end_of(0), Some(t + 8 * MS));
        state.begin(t + 2 * MS, 1, t + 2 * MS, 3 * MS, 250_000);
        assert_eq!((state.end_of(0), state.end_of(1)), (Some(t + 8 * MS), Some(t + 5 * MS)));
        state.leave(1, t + 5 * MS);
        // Half of each other's speed from now on, until the second has done its 2 ms; then the first is alone with 1.
        state.begin(t + 5 * MS, 1, t + 5 * MS, 2 * MS, 1_250_000);
        assert_eq!((state.end_of(0), state.end_of(1)), (Some(t + 10 * MS), Some(t + 9 * MS)));
    }

    #[test]
    fn one_after_the_other_is_exact_however_late_the_thread_wakes_up() {
        let (mut state, t) = state(1);
        state.begin(t, 0, t, 4 * MS, 1_000_000);
        state.advance(t + 7 * MS);
        assert_eq!(state.end_of(0), None);
        state.leave(0, t + 7 * MS);
        // It was ready at 1 ms, could begin at 4, and has done 3 of its 5 ms at 7.
        state.begin(t + 7 * MS, 0, t + MS, 5 * MS, 1_000_000);
        assert_eq!(state.end_of(0), Some(t + 9 * MS));
        state.leave(0, t + 9 * MS);
        // Shorter than what it missed: it ended in the past, and the next one begins there.
        state.begin(t + 20 * MS, 0, t + 10 * MS, 2 * MS, 1_000_000);
        assert_eq!(state.end_of(0), None);
        state.leave(0, t + 20 * MS);
        assert_eq!(state.busy_until[0], t + 12 * MS);
    }

    #[test]
    fn who_is_stopped_makes_room_for_the_others() {
        let (mut state, t) = state(2);
        state.begin(t, 0, t, 10 * MS, 1_000_000);
        state.begin(t, 1, t, 10 * MS, 1_000_000);
        assert_eq!(state.end_of(0), Some(t + 20 * MS));
        state.leave(1, t + 4 * MS);
        assert_eq!((state.end_of(0), state.busy_until[1]), (Some(t + 12 * MS), t + 4 * MS));
    }
}
