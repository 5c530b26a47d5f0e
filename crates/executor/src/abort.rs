//! Cancellation of tasks: the tasks that a lane holds, their stop requests, and waits that end
//! early for a stopped task.
//!
//! An engine that computes cannot be interrupted, so only waits are stopped: tasks that have not
//! begun, and emulated devices, which only wait. A stop request names a task and counts only while
//! the lane holds it: ids are reused, and a request that comes late must not stop the next task
//! with the same id.

use crate::ExecError;
use crate::clock::SPIN;
use parking_lot::{Condvar, Mutex};
use ripieno_base::TaskId;
use std::time::Instant;

/// Shared by a lane's thread and the threads that submit to it.
#[derive(Default)]
pub(crate) struct Abort {
    state: Mutex<AbortState>,
    changed: Condvar,
}

/// Has as many entries as the lane holds tasks.
#[derive(Default)]
struct AbortState {
    /// The tasks held, with their stop requests.
    held: Vec<(TaskId, bool)>,
    running: Option<TaskId>,
}

impl Abort {
    /// Registers a task before the lane holds it.
    pub(crate) fn hold(&self, id: TaskId) {
        self.state.lock().held.push((id, false));
    }

    /// Marks the task as running; waits are its waits.
    pub(crate) fn begin(&self, id: TaskId) {
        self.state.lock().running = Some(id);
    }

    /// Removes a task that the lane no longer holds.
    pub(crate) fn release(&self, id: TaskId) {
        let mut state = self.state.lock();
        state.held.retain(|&(held, _)| held != id);
        state.running = state.running.filter(|&running| running != id);
    }

    /// Requests a stop of a task, if it is held.
    pub(crate) fn request_stop(&self, id: TaskId) {
        for (held, stop) in &mut self.state.lock().held {
            *stop |= *held == id;
        }
        self.changed.notify_all();
    }

    /// Whether a stop was requested for a task that the lane holds.
    pub(crate) fn is_stopped(&self, id: TaskId) -> bool {
        self.state.lock().held.contains(&(id, true))
    }

    /// Waits until `instant`. Returns early, with the error for the task to report, if a stop of
    /// the running task is requested.
    pub(crate) fn wait_until(&self, instant: Instant) -> Result<(), ExecError> {
        self.wait(|| Some(instant).filter(|&instant| instant > Instant::now()))
    }

    /// Waits until an instant that may change. `end` returns it and is called again after a
    /// [`recheck`](Abort::recheck) and at that instant; `None` ends the wait. Returns early as
    /// above.
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
                _ => parking_lot::MutexGuard::unlocked(&mut state, || crate::clock::wait_until(instant)),
            }
        }
    }

    /// Makes a [`wait`](Abort::wait) call its `end` again.
    pub(crate) fn recheck(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }
}
