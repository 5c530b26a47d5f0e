//! One engine process, from its start to its end.
//!
//! Two threads use it. The supervisor waits for the process's end. The lane that runs a batch may
//! find the process hung or faulty and kill it. A process id may be reused after the process was
//! reaped, so a lock excludes killing during reaping.

use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use std::io;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait for the cause after a connection is lost. Usually the cause is available
/// immediately, but the system may still be writing a core dump.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// State of a process: whether it runs, and how it ended.
pub(super) struct Life {
    pid: Pid,
    state: Mutex<ProcessState>,
    /// Whether the end is recorded.
    is_over: AtomicBool,
    ended: Condvar,
}

#[derive(Default)]
struct ProcessState {
    /// Whether the process was reaped, so that its id may be reused.
    reaped: bool,
    /// Reason why the process was killed, if it was.
    killed: Option<String>,
    /// Description of the process's end, once the pool has recorded it.
    end: Option<String>,
}

impl Life {
    pub(super) fn of(child: &Child) -> Arc<Life> {
        let (state, is_over, ended) = Default::default();
        Arc::new(Life { pid: Pid::from_child(child), state, is_over, ended })
    }

    /// Waits until the process ends. Returns a description of its end.
    pub(super) fn wait(&self, child: &mut Child) -> String {
        // This wait does not reap the process, so another thread can still kill it. If this wait
        // fails, the reaping below waits as well.
        while waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .is_err_and(|cause| cause == rustix::io::Errno::INTR)
        {}
        let mut state = self.state.lock();
        // The process leads its group, whose id is not reused before the process is reaped. What
        // the process has forked would otherwise go on and hold its memory.
        let _ = kill_process_group(self.pid, Signal::KILL);
        state.reaped = true;
        let status = child.wait();
        let own = || status.map_or_else(|cause| cause.to_string(), |status| status.to_string());
        state.killed.clone().unwrap_or_else(own)
    }

    /// Publishes the process's end to waiting threads.
    pub(super) fn announce(&self, end: String) {
        self.state.lock().end = Some(end);
        self.is_over.store(true, Ordering::Release);
        self.ended.notify_all();
    }

    /// Kills the process. `why` is recorded as the reason. Without it, the process's own end is
    /// described.
    pub(super) fn kill(&self, why: Option<String>) {
        let mut state = self.state.lock();
        if !state.reaped {
            state.killed = state.killed.take().or(why);
            // Fails harmlessly if the process has just ended.
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }

    /// Whether the process has ended, and its end is recorded.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn end(&self, timeout: Duration) -> Option<String> {
        let mut state = self.state.lock();
        self.ended.wait_while_for(&mut state, |state| state.end.is_none(), timeout);
        state.end.clone()
    }
}

/// Kills a process after an exchange of at most `limit` failed with `cause`. Returns a description
/// of its end.
pub(super) fn give_up(life: &Life, limit: Duration, cause: &io::Error) -> String {
    let why = match cause.kind() {
        _ if is_timeout(cause) => Some(format!("killed after {limit:?} without an answer (task_limit_s)")),
        io::ErrorKind::Other => Some(format!("killed after a failure of its device: {cause}")),
        io::ErrorKind::InvalidData => Some(format!("killed for an answer that is none: {cause}")),
        // The process is ending or has closed its socket, so its own end is the description.
        _ => None,
    };
    life.kill(why);
    life.end(CAUSE_TIMEOUT).unwrap_or_else(|| cause.to_string())
}

/// Whether the error means that a socket's time limit expired.
pub(super) fn is_timeout(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
