//! A device whose lanes run concurrently.
//!
//! Each running task can use a share of the device. While the sum of the shares is at most the
//! whole device, tasks run as fast as alone. Beyond it, all tasks slow down by the same factor. So
//! the end of a task is not known when the task begins: it changes whenever another task begins or
//! ends. The simulator uses this rule. A driver uses it to compute how late a reported end was.

use ripieno_base::{LaneId, Nanos, TaskId, Time};
use std::collections::VecDeque;

/// The whole device, in millionths.
const WHOLE: u64 = 1_000_000;
/// Parts of a nanosecond in which work is counted, so that repeated slowdowns cause no rounding
/// errors.
const PARTS: u128 = 1_000_000;

/// A task as submitted to a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneTask {
    /// The task.
    pub task: TaskId,
    /// Earliest start.
    pub earliest: Time,
    /// Duration if the task runs alone.
    pub alone: Nanos,
    /// Share of the device that the task can use, in millionths.
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
    /// Waiting tasks of each lane, in order.
    waiting: Vec<VecDeque<LaneTask>>,
    /// Running tasks in the order of their starts, at most one per lane.
    running: Vec<RunningTask>,
    /// Time up to which the work of the running tasks is counted.
    since: Time,
}

impl Lanes {
    /// Creates idle lanes.
    pub fn new(lanes: usize) -> Lanes {
        Lanes { waiting: vec![VecDeque::new(); lanes], running: Vec::with_capacity(lanes), since: Time::ORIGIN }
    }

    /// Adds a task, which begins after the earlier tasks of its lane.
    pub fn push(&mut self, now: Time, lane: LaneId, job: LaneTask) {
        self.waiting[lane.index()].push_back(job);
        self.advance(now);
    }

    /// Returns the time of the next end of a task, if no task begins before.
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

    /// Returns the time at which the next task begins on a free lane; [`Time::NEVER`] if no task
    /// waits on a free lane.
    pub fn next_begin(&self) -> Time {
        let free = |&lane: &usize| self.running.iter().all(|running| running.lane != lane);
        let heads = (0..self.waiting.len()).filter(free).filter_map(|lane| self.waiting[lane].front());
        heads.map(|job| job.earliest).min().unwrap_or(Time::NEVER)
    }

    /// Advances the running tasks to `now` and starts tasks that may begin.
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

    /// Removes a task that has ended, and returns it with its start. The next task of its lane
    /// begins immediately.
    pub fn pop_ended(&mut self, now: Time) -> Option<(TaskId, Time)> {
        let at = self.running.iter().position(|running| running.left == 0)?;
        let RunningTask { task, began, .. } = self.running.remove(at);
        self.advance(now);
        Some((task, began))
    }

    /// Removes a task, running or not, and returns its start.
    pub fn remove(&mut self, now: Time, task: TaskId) -> Option<Time> {
        self.waiting.iter_mut().for_each(|lane| lane.retain(|job| job.task != task));
        let at = self.running.iter().position(|running| running.task == task)?;
        let began = self.running.remove(at).began;
        self.advance(now);
        Some(began)
    }

    /// Advances to `now`. Calls `ended` with each task that ends, its start and its end.
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

    /// Returns the slowdown factor in millionths: the sum of the shares of running tasks, but at
    /// least a whole device.
    fn crowd(&self) -> u64 {
        self.crowd_with(0)
    }

    /// Returns the slowdown factor with one more task of this share.
    fn crowd_with(&self, share: u32) -> u64 {
        self.running.iter().map(|running| running.share).sum::<u64>().saturating_add(share.into()).max(WHOLE)
    }
}

/// Expected ends of tasks, for a driver to which ends are reported late.
#[derive(Clone, Debug)]
pub struct ExpectedEnds {
    lanes: Lanes,
    /// Tasks that should have ended but were not reported yet, with start and end.
    over: Vec<(TaskId, Time, Time)>,
}

impl ExpectedEnds {
    /// Creates the state of an idle device with `lanes` lanes.
    pub fn new(lanes: usize) -> ExpectedEnds {
        ExpectedEnds { lanes: Lanes::new(lanes), over: Vec::new() }
    }

    /// Adds a started task. Times must not decrease.
    pub fn start(&mut self, now: Time, lane: LaneId, job: LaneTask) {
        self.advance(now);
        self.lanes.push(now, lane, job);
    }

    /// Removes a task that was reported as ended. Returns its expected start and end. If the task
    /// ended early, the expected end is `now`.
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

    /// Returns the expected end of a started task if no other task begins. `None` if the task
    /// should have ended by now.
    pub fn end_of(&self, task: TaskId) -> Option<Time> {
        let (mut lanes, mut end) = (self.lanes.clone(), None);
        while end.is_none() && !lanes.is_idle() {
            let next = lanes.next_end().min(lanes.next_begin());
            lanes.work_until(next, |ended, _, at| end = end.or((ended == task).then_some(at)));
        }
        end
    }

    /// Returns the duration of an additional task with this share that takes `alone` when it runs
    /// alone. Assumes that the set of running tasks stays the same.
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
        // The tasks end by the rule at 5 and 7 ms. The second one is reported first, and the third
        // begins when the first one should have ended.
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

    /// Runs all tasks to their ends. Returns task, start and end in milliseconds.
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
        // One task runs alone for 1 ms, then two at half speed. When the first one ends at 5 ms,
        // the other has done half of its 4 ms.
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
