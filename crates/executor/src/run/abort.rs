//! Cancellation of the tasks that a lane holds, and waits that end early for a cancelled task.
//!
//! A computing engine cannot be interrupted. So only waits are stopped: tasks that have not begun,
//! and emulated devices, which only wait. A stop request names a task and has an effect only while
//! the lane holds the task. Ids are reused, and a late request must not stop the next task with the
//! same id.

use crate::ExecError;
use crate::contract::clock::SPIN;
use parking_lot::{Condvar, Mutex};
use ripieno_base::TaskId;
use std::time::Instant;

/// Cancellation state of a lane.
#[derive(Default)]
pub(crate) struct Abort {
    /// Tasks of the lane, and which of them are cancelled.
    state: Mutex<AbortState>,
    /// Signals a change of `state` to a waiting thread.
    changed: Condvar,
}

/// Tasks of the lane. It has as many entries as the lane holds tasks.
#[derive(Default)]
struct AbortState {
    /// Each held task, with a flag for a requested stop.
    held: Vec<(TaskId, bool)>,
    running: Option<TaskId>,
}

impl Abort {
    /// Registers a task before it enters the lane's queue.
    pub(crate) fn hold(&self, id: TaskId) {
        self.state.lock().held.push((id, false));
    }

    /// Marks a task as running. A stop of this task then ends the lane's waits.
    pub(crate) fn begin(&self, id: TaskId) {
        self.state.lock().running = Some(id);
    }

    /// Removes a task that the lane no longer holds.
    pub(crate) fn release(&self, id: TaskId) {
        let mut state = self.state.lock();
        state.held.retain(|&(held, _)| held != id);
        state.running = state.running.filter(|&running| running != id);
    }

    /// Requests that a task stops, if the lane holds it.
    pub(crate) fn request_stop(&self, id: TaskId) {
        for (held, stop) in &mut self.state.lock().held {
            *stop |= *held == id;
        }
        self.changed.notify_all();
    }

    /// Whether the lane holds the task and a stop was requested.
    pub(crate) fn is_stopped(&self, id: TaskId) -> bool {
        self.state.lock().held.contains(&(id, true))
    }

    /// Waits until `instant`. If a stop of the running task is requested, returns early with the
    /// error to report for the task.
    pub(crate) fn wait_until(&self, instant: Instant) -> Result<(), ExecError> {
        self.wait(|| Some(instant).filter(|&instant| instant > Instant::now()))
    }

    /// Waits until an instant that may change. `end` returns the instant, or `None` to end the
    /// wait. It is called again at the instant and after a [`recheck`](Abort::recheck). Returns an
    /// error early if a stop is requested.
    pub(crate) fn wait(&self, mut end: impl FnMut() -> Option<Instant>) -> Result<(), ExecError> {
        let mut state = self.state.lock();
        loop {
            if state.running.is_some_and(|running| state.held.contains(&(running, true))) {
                return Err(ExecError("the task was cancelled".to_owned()));
            }
            let Some(instant) = end() else { return Ok(()) };
            let left = instant.saturating_duration_since(Instant::now());
            match left.checked_sub(SPIN) {
                Some(sleep) if !sleep.is_zero() => {
                    self.changed.wait_for(&mut state, sleep);
                }
                _ => parking_lot::MutexGuard::unlocked(&mut state, || crate::contract::clock::wait_until(instant)),
            }
        }
    }

    /// Makes [`wait`](Abort::wait) call its `end` again.
    pub(crate) fn recheck(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}
