//! A device whose lanes run concurrently.
//!
//! Each running task can use a share of the device. While the shares do not exceed the whole, tasks
//! run as if alone; beyond that, all of them progress at the same fraction of their speed alone. So
//! the end of a task is not known when it begins: it moves whenever another task begins or ends.
//! The simulator uses this rule, and so does a driver to compute how late a reported end was.

use ripieno_base::{LaneId, Nanos, TaskId, Time};
use std::collections::VecDeque;

/// A whole device, in the unit of shares.
const WHOLE: u64 = 1_000_000;
/// Work is counted in these fractions of a nanosecond, so that repeated slowdowns lose nothing to
/// rounding.
const PARTS: u128 = 1_000_000;

/// A task as submitted to a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneTask {
    /// The task.
    pub task: TaskId,
    /// Earliest start.
    pub earliest: Time,
    /// Duration when it runs alone.
    pub alone: Nanos,
    /// The share of the device that it can use, in millionths.
    pub share: u32,
}

/// A task that runs on the device.
#[derive(Clone, Copy, Debug)]
struct RunningTask {
    lane: usize,
    task: TaskId,
    began: Time,
    share: u64,
    left: u128,
}

/// The lanes of a device.
#[derive(Clone, Debug)]
pub struct Lanes {
    /// Tasks that wait on each lane.
    waiting: Vec<VecDeque<LaneTask>>,
    /// Running tasks, at most one per lane, in the order in which they began.
    running: Vec<RunningTask>,
    /// Time up to which their work is counted.
    since: Time,
}

impl Lanes {
    /// Creates idle lanes.
    pub fn new(lanes: usize) -> Lanes {
        Lanes { waiting: vec![VecDeque::new(); lanes], running: Vec::with_capacity(lanes), since: Time::ORIGIN }
    }

    /// Adds a task; it begins after those that its lane holds.
    pub fn push(&mut self, now: Time, lane: LaneId, job: LaneTask) {
        self.waiting[lane.index()].push_back(job);
        self.advance(now);
    }

    /// Returns the next instant at which a task ends, if none begins before.
    pub fn next_end(&self) -> Time {
        let crowd = self.crowd();
        let end = |running: &RunningTask| {
            let span = (running.left * u128::from(crowd)).div_ceil(PARTS * u128::from(WHOLE));
            self.since + Nanos(span as i64)
        };
        self.running.iter().map(end).min().unwrap_or(Time::NEVER)
    }

    /// Returns the number of lanes.
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the next instant at which a task begins on a free lane; [`Time::NEVER`] if none
    /// waits there.
    pub fn next_begin(&self) -> Time {
        let free = |&lane: &usize| self.running.iter().all(|running| running.lane != lane);
        let heads = (0..self.waiting.len()).filter(free).filter_map(|lane| self.waiting[lane].front());
        heads.map(|job| job.earliest).min().unwrap_or(Time::NEVER)
    }

    /// Advances the running tasks to `now`, and starts those that may begin.
    pub fn advance(&mut self, now: Time) {
        let crowd = u128::from(self.crowd());
        let span = (now - self.since).0 as u128;
        for running in &mut self.running {
            running.left = running.left.saturating_sub(span * PARTS * u128::from(WHOLE) / crowd);
        }
        self.since = now;
        for lane in 0..self.waiting.len() {
            if self.running.iter().any(|running| running.lane == lane) {
                continue;
            }
            let Some(LaneTask { task, alone, share, .. }) = self.waiting[lane].pop_front_if(|job| job.earliest <= now)
            else {
                continue;
            };
            let left = alone.0 as u128 * PARTS;
            self.running.push(RunningTask { lane, task, began: now, share: u64::from(share.max(1)), left });
        }
    }

    /// Removes a task that has ended; returns it with its start. The next task of its lane begins
    /// immediately.
    pub fn pop_ended(&mut self, now: Time) -> Option<(TaskId, Time)> {
        let at = self.running.iter().position(|running| running.left == 0)?;
        let RunningTask { task, began, .. } = self.running.remove(at);
        self.advance(now);
        Some((task, began))
    }

    /// Removes a task, running or not; returns its start.
    pub fn remove(&mut self, now: Time, task: TaskId) -> Option<Time> {
        self.waiting.iter_mut().for_each(|lane| lane.retain(|job| job.task != task));
        let at = self.running.iter().position(|running| running.task == task)?;
        let began = self.running.remove(at).began;
        self.advance(now);
        Some(began)
    }

    /// Advances to `now` and calls `ended` with each task that ends: its start and end.
    fn work_until(&mut self, now: Time, mut ended: impl FnMut(TaskId, Time, Time)) {
        loop {
            let next = self.next_end().min(self.next_begin());
            if next > now {
                return self.advance(now);
            }
            self.advance(next);
            while let Some((task, began)) = self.pop_ended(next) {
                ended(task, began, next);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.iter().all(VecDeque::is_empty)
    }

    /// The slowdown factor: the sum of the shares of running tasks, at least a whole.
    fn crowd(&self) -> u64 {
        self.crowd_with(0)
    }

    /// The slowdown factor with one more task of this share.
    fn crowd_with(&self, share: u32) -> u64 {
        self.running.iter().map(|running| running.share).sum::<u64>().saturating_add(share.into()).max(WHOLE)
    }
}

/// Expected ends of tasks, for a driver that learns of their ends late.
#[derive(Clone, Debug)]
pub struct ExpectedEnds {
    lanes: Lanes,
    /// Tasks that should have ended but are not reported yet: start and end.
    over: Vec<(TaskId, Time, Time)>,
}

impl ExpectedEnds {
    /// Creates the state of an idle device with this number of lanes.
    pub fn new(lanes: usize) -> ExpectedEnds {
        ExpectedEnds { lanes: Lanes::new(lanes), over: Vec::new() }
    }

    /// Adds a started task. Times must not decrease.
    pub fn start(&mut self, now: Time, lane: LaneId, job: LaneTask) {
        self.advance(now);
        self.lanes.push(now, lane, job);
    }

    /// Removes a task that was reported as ended; returns its expected start and end. For a task
    /// that ended early, the expected end is `now`.
    pub fn end(&mut self, now: Time, task: TaskId) -> (Time, Time) {
        self.advance(now);
        match self.over.iter().position(|&(over, ..)| over == task) {
            Some(at) => {
                let (_, began, ended) = self.over.swap_remove(at);
                (began, ended)
            }
            None => (self.lanes.remove(now, task).unwrap_or(now), now),
        }
    }

    /// Returns the expected end of a started task if no other begins; `None` if it should have
    /// ended by now.
    pub fn end_of(&self, task: TaskId) -> Option<Time> {
        let (mut lanes, mut end) = (self.lanes.clone(), None);
        while end.is_none() && !lanes.is_idle() {
            let next = lanes.next_end().min(lanes.next_begin());
            lanes.work_until(next, |ended, _, at| end = end.or((ended == task).then_some(at)));
        }
        end
    }

    /// Returns the duration of a task with this share that takes `alone` by itself, beside the
    /// running tasks.
    pub fn span_beside(&self, share: u32, alone: Nanos) -> Nanos {
        alone.scale(self.lanes.crowd_with(share), WHOLE)
    }

    /// Advances the time to `now`.
    pub fn advance(&mut self, now: Time) {
        let over = &mut self.over;
        self.lanes.work_until(now, |task, began, ended| over.push((task, began, ended)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_late_is_late_by_what_sharing_does_not_explain() {
        let mut due = ExpectedEnds::new(2);
        due.start(at(0.0), LaneId(0), job(0, 0.0, 3.0, 1_000_000));
        due.start(at(1.0), LaneId(1), job(1, 1.0, 4.0, 1_000_000));
        // By the rule they end at 5 and 7 ms; the second is reported first, and the third begins
        // where the first should have ended.
        assert_eq!(due.end(at(7.5), TaskId(1)), (at(1.0), at(7.0)));
        assert_eq!(due.end(at(7.5), TaskId(0)), (at(0.0), at(5.0)));
        due.start(at(8.0), LaneId(0), job(2, 8.0, 2.0, 1_000_000));
        assert_eq!(due.end(at(9.0), TaskId(2)), (at(8.0), at(9.0)), "before its time");
        due.start(at(9.0), LaneId(0), job(3, 10.0, 2.0, 1_000_000));
        assert_eq!(due.end(at(12.25), TaskId(3)), (at(10.0), at(12.0)));
    }

    fn at(millis: f64) -> Time {
        Time::ORIGIN + Nanos::from_millis_f64(millis)
    }

    fn job(task: u32, earliest: f64, alone_ms: f64, share: u32) -> LaneTask {
        LaneTask { task: TaskId(task), earliest: at(earliest), alone: Nanos::from_millis_f64(alone_ms), share }
    }

    /// Runs until nothing is left; returns task, start and end in milliseconds.
    fn drain(lanes: &mut Lanes) -> Vec<(u32, f64, f64)> {
        let mut ended = Vec::new();
        loop {
            let now = lanes.next_end().min(lanes.next_begin());
            if now == Time::NEVER {
                return ended;
            }
            lanes.advance(now);
            while let Some((task, began)) = lanes.pop_ended(now) {
                ended.push((task.0, began.as_millis_f64(), now.as_millis_f64()));
            }
        }
    }

    #[test]
    fn tasks_that_fit_beside_each_other_run_as_if_alone() {
        let mut lanes = Lanes::new(2);
        lanes.push(at(0.0), LaneId(0), job(0, 0.0, 2.0, 750_000));
        lanes.push(at(0.0), LaneId(1), job(1, 0.0, 4.0, 250_000));
        assert_eq!(drain(&mut lanes), [(0, 0.0, 2.0), (1, 0.0, 4.0)]);
    }

    #[test]
    fn beyond_a_whole_device_all_slow_down_alike() {
        let mut lanes = Lanes::new(2);
        lanes.push(at(0.0), LaneId(0), job(0, 0.0, 3.0, 1_000_000));
        // Alone for 1 ms, then two at half speed: the other one has done half of its 4 ms when the
        // first ends at 5.
        lanes.push(at(0.0), LaneId(1), job(1, 1.0, 4.0, 1_000_000));
        assert_eq!(drain(&mut lanes), [(0, 0.0, 5.0), (1, 1.0, 7.0)]);
    }

    #[test]
    fn tasks_of_a_lane_run_one_after_the_other() {
        let mut lanes = Lanes::new(2);
        for task in 0..3 {
            lanes.push(at(0.0), LaneId(0), job(task, 0.0, 1.0, 1_000_000));
        }
        lanes.push(at(0.0), LaneId(1), job(3, 0.0, 1.0, 500_000));
        assert_eq!(drain(&mut lanes), [(0, 0.0, 1.5), (3, 0.0, 1.5), (1, 1.5, 2.5), (2, 2.5, 3.5)]);
    }

    #[test]
    fn what_is_taken_off_makes_room() {
        let mut lanes = Lanes::new(2);
        lanes.push(at(0.0), LaneId(0), job(0, 0.0, 4.0, 1_000_000));
        lanes.push(at(0.0), LaneId(1), job(1, 0.0, 4.0, 1_000_000));
        lanes.push(at(0.0), LaneId(1), job(2, 0.0, 1.0, 1_000_000));
        lanes.advance(at(2.0));
        assert_eq!(lanes.remove(at(2.0), TaskId(2)), None);
        assert_eq!(lanes.remove(at(2.0), TaskId(1)), Some(at(0.0)));
        assert_eq!(drain(&mut lanes), [(0, 0.0, 5.0)]);
    }
}
