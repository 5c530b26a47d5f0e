//! One process of an engine, from its start to its end.
//!
//! Two threads look at it: its supervisor waits for its end, and whoever uses it may find it hung or mad and kill it. A process id
//! is another's once its process has been reaped, so reaping and killing exclude each other.

use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long whoever loses a connection waits to hear why. It is there at once, unless the system is still writing a core dump.
const CAUSE_WITHIN: Duration = Duration::from_secs(1);

/// Whether a process lives, and how it ended.
pub(super) struct Life {
    pid: Pid,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Its id may be another's.
    reaped: bool,
    /// Why it was killed, if it was.
    killed: Option<String>,
    /// How it ended; set when that is known everywhere else.
    end: Option<String>,
}

impl Life {
    pub(super) fn of(child: &Child) -> Arc<Life> {
        Arc::new(Life { pid: Pid::from_child(child), state: Mutex::default(), ended: Condvar::new() })
    }

    /// Waits until it ends; says how.
    pub(super) fn outlive(&self, child: &mut Child) -> String {
        // It is not reaped yet, so it can still be killed meanwhile. Should waiting fail, reaping waits as well.
        while waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .is_err_and(|cause| cause == rustix::io::Errno::INTR)
        {}
        let mut state = self.state.lock();
        state.reaped = true;
        let status = child.wait();
        let own = || status.map_or_else(|cause| cause.to_string(), |status| status.to_string());
        state.killed.clone().unwrap_or_else(own)
    }

    /// Whoever waits for its end is told.
    pub(super) fn announce(&self, end: String) {
        self.state.lock().end = Some(end);
        self.ended.notify_all();
    }

    /// Makes sure of its end. Without a reason, it ended as it did if it is ending already.
    pub(super) fn kill(&self, why: Option<String>) {
        let mut state = self.state.lock();
        if !state.reaped {
            state.killed = state.killed.take().or(why);
            // There is nobody to kill if it has just ended by itself.
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }

    fn is_over(&self) -> bool {
        self.state.lock().end.is_some()
    }

    fn end(&self, patience: Duration) -> Option<String> {
        let mut state = self.state.lock();
        self.ended.wait_while_for(&mut state, |state| state.end.is_none(), patience);
        state.end.clone()
    }
}

/// To a process that has loaded its model. A process without one is of no use: it is killed.
pub(super) struct Connection {
    socket: UnixStream,
    life: Arc<Life>,
    /// The longest that it may take over one batch.
    limit: Duration,
}

impl Connection {
    pub(super) fn new(socket: UnixStream, life: Arc<Life>, limit: Duration) -> io::Result<Connection> {
        socket.set_read_timeout(Some(limit))?;
        socket.set_write_timeout(Some(limit))?;
        Ok(Connection { socket, life, limit })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.life.is_over()
    }

    /// What is said through this takes at most twice the limit, however slowly the process goes on.
    pub(super) fn exchange(&self) -> Exchange<'_> {
        Exchange { socket: &self.socket, until: Instant::now() + self.limit }
    }

    /// It failed with this: makes sure of its end, and says how it ended.
    pub(super) fn give_up(self, cause: &io::Error) -> String {
        let limit = self.limit;
        let why = match cause.kind() {
            _ if is_timeout(cause) => Some(format!("killed after {limit:?} without an answer (task_limit_s)")),
            io::ErrorKind::InvalidData => Some(format!("killed for an answer that is none: {cause}")),
            // It ends, or has shut its ears.
            _ => None,
        };
        self.life.kill(why);
        self.life.end(CAUSE_WITHIN).unwrap_or_else(|| cause.to_string())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.life.kill(None);
    }
}

/// What a socket with a time limit says when that is over.
pub(super) fn is_timeout(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// What is said to a process about one batch.
pub(super) struct Exchange<'a> {
    socket: &'a UnixStream,
    until: Instant,
}

impl Exchange<'_> {
    fn check(&self) -> io::Result<()> {
        if Instant::now() < self.until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl Read for Exchange<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.socket.read(into)
    }
}

impl Write for Exchange<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.socket.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
