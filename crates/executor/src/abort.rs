//! Stopping tasks: which tasks a device holds, which of them shall stop, and a wait that ends early for one that shall.
//!
//! An engine that computes cannot be interrupted, so what is stopped is whatever waits: a task that has not begun, and
//! the emulated devices, which do nothing but wait. A request to stop names a task, and counts only while the device
//! holds it: ids are reused, and the next task of this id must not pay for the last one's lateness.

use crate::ExecError;
use crate::clock::SPIN;
use parking_lot::{Condvar, Mutex};
use ripieno_base::TaskId;
use std::time::Instant;

/// Shared by a lane's thread and those that submit to it.
#[derive(Default)]
pub(crate) struct Abort {
    state: Mutex<AbortState>,
    asked: Condvar,
}

/// As many entries as the lane holds tasks.
#[derive(Default)]
struct AbortState {
    /// The tasks held, and whether each shall stop.
    held: Vec<(TaskId, bool)>,
    running: Option<TaskId>,
}

impl Abort {
    /// The lane is about to hold a task.
    pub(crate) fn hold(&self, id: TaskId) {
        self.state.lock().held.push((id, false));
    }

    /// The task runs now; waits are its waits.
    pub(crate) fn begin(&self, id: TaskId) {
        self.state.lock().running = Some(id);
    }

    /// The lane does not hold the task any more.
    pub(crate) fn release(&self, id: TaskId) {
        let mut state = self.state.lock();
        state.held.retain(|&(held, _)| held != id);
        state.running = state.running.filter(|&running| running != id);
    }

    /// Asks to stop a task, if it is held.
    pub(crate) fn ask(&self, id: TaskId) {
        for (held, stop) in &mut self.state.lock().held {
            *stop |= *held == id;
        }
        self.asked.notify_all();
    }

    /// Whether a task that the lane holds shall stop.
    pub(crate) fn is_stopped(&self, id: TaskId) -> bool {
        self.state.lock().held.contains(&(id, true))
    }

    /// Waits until `instant`. Returns early, with the error that the task is to report, if the task that runs shall stop.
    pub(crate) fn wait_until(&self, instant: Instant) -> Result<(), ExecError> {
        self.wait(|| Some(instant).filter(|&instant| instant > Instant::now()))
    }

    /// Waits until an instant that may change: `end` tells it, and is asked again after a [`nudge`](Abort::nudge) and at that
    /// instant; none ends the wait. Returns early as above.
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
                    self.asked.wait_for(&mut state, sleep);
                }
                _ => parking_lot::MutexGuard::unlocked(&mut state, || crate::clock::wait_until(instant)),
            }
        }
    }

    /// Has a [`wait`](Abort::wait) ask again when it is over.
    pub(crate) fn nudge(&self) {
        let _state = self.state.lock();
        self.asked.notify_all();
    }
}
