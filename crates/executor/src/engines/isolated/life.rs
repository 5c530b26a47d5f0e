//! One engine process, from its start to its end.
//!
//! Two threads use it. The supervisor waits for the process's end. The lane that runs a batch may
//! find the process hung or faulty and kill it. A process id may be reused after the process was
//! reaped, so a lock excludes killing during reaping.

#[cfg(target_os = "linux")]
use super::protocol::{CellsCall, CellsReply};
use super::protocol::{RunReply, RunRequest, receive, send};
use super::sending::SendingEnd;
#[cfg(target_os = "linux")]
use super::shared::send_files;
use super::transfer::{InboundTensors, OutboundTensors};
use crate::contract::kept::{self, KeptBytes};
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use std::io::{self, Read, Write};
use std::net::Shutdown;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for the cause after a connection is lost. Usually the cause is available
/// immediately, but the system may still be writing a core dump.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a Python model to close before its process is killed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Connection to a process that has loaded its model. Dropping it kills the process, which is of no
/// use without one.
pub(super) struct ProcessConnection {
    socket: UnixStream,
    sending: Arc<Mutex<SendingEnd>>,
    inbound: InboundTensors,
    life: Arc<Life>,
    /// Longest allowed duration of one batch.
    limit: Duration,
    /// Whether the process may close its model when the connection ends.
    closes: bool,
    /// Memory that the process keeps, as its last answer tells.
    kept: KeptBytes,
}

impl ProcessConnection {
    pub(super) fn new(
        socket: UnixStream,
        (outbound, inbound): (OutboundTensors, InboundTensors),
        life: Arc<Life>,
        limit: Duration,
        closes: bool,
    ) -> io::Result<ProcessConnection> {
        socket.set_read_timeout(Some(limit))?;
        socket.set_write_timeout(Some(limit))?;
        let sending = Arc::new(Mutex::new(SendingEnd::new(socket.try_clone()?, outbound)));
        Ok(ProcessConnection { socket, sending, inbound, life, limit, closes, kept: KeptBytes::default() })
    }

    /// Returns the end that sends batches.
    pub(super) fn sending(&self) -> &Arc<Mutex<SendingEnd>> {
        &self.sending
    }

    /// Gives back the memory of this end. The process does the same by itself.
    pub(super) fn release_memory(&mut self) {
        self.inbound.buffers().release();
        self.inbound.release();
        self.sending.lock().release_memory();
        self.kept.clear();
    }

    /// Returns the bytes that the process may keep beside the other memory that is kept.
    pub(super) fn kept_bound(&self) -> usize {
        kept::bound_beside(self.kept.bytes())
    }

    pub(super) fn is_open(&self) -> bool {
        !self.life.is_over()
    }

    /// Runs a batch. Returns its reply, with the data of all tensors. While the batch runs, another
    /// thread may send the next one by what `on_sent` returns. An error means that the process is
    /// of no use any more.
    pub(super) fn run<T>(
        &mut self,
        batch: &RunRequest,
        on_sent: impl FnOnce(&Arc<Mutex<SendingEnd>>) -> T,
    ) -> io::Result<RunReply> {
        let mut exchange = self.exchange();
        send(&mut exchange, batch)?;
        let sends_ahead = on_sent(&self.sending);
        let received = receive(&mut exchange);
        drop(sends_ahead);
        let mut done: RunReply = received?;
        if done.number != batch.number {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("to batch {}", done.number)));
        }
        if let Some(cause) = done.error.as_ref().filter(|cause| is_device_failure(cause)) {
            return Err(io::Error::other(cause.clone()));
        }
        self.inbound.unpack(&mut done.outputs)?;
        self.kept.set(usize::try_from(done.kept).unwrap_or(0));
        Ok(done)
    }

    /// Calls a process of cells, and passes a socket with the call. An error means that the process
    /// is of no use any more.
    #[cfg(target_os = "linux")]
    pub(super) fn ask(
        &mut self,
        call: &CellsCall,
        socket: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> io::Result<CellsReply> {
        self.socket.set_read_timeout(Some(limit))?;
        let mut exchange = BatchExchange { socket: &self.socket, until: Instant::now() + limit };
        send(&mut exchange, call)?;
        if let Some(socket) = socket {
            send_files(&self.socket, &[socket])?;
        }
        receive(&mut exchange)
    }

    pub(super) fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// Begins an exchange. It takes at most twice the limit, however slowly the process responds.
    fn exchange(&self) -> BatchExchange<'_> {
        BatchExchange { socket: &self.socket, until: Instant::now() + self.limit }
    }

    /// Kills the process after an exchange failed with `cause`. Returns a description of its end.
    pub(super) fn give_up(self, cause: &io::Error) -> String {
        let limit = self.limit;
        let why = match cause.kind() {
            _ if is_timeout(cause) => Some(format!("killed after {limit:?} without an answer (task_limit_s)")),
            io::ErrorKind::Other => Some(format!("killed after a failure of its device: {cause}")),
            io::ErrorKind::InvalidData => Some(format!("killed for an answer that is none: {cause}")),
            // The process is ending or has closed its socket, so its own end is the description.
            _ => None,
        };
        self.life.kill(why);
        self.life.end(CAUSE_TIMEOUT).unwrap_or_else(|| cause.to_string())
    }
}

impl Drop for ProcessConnection {
    fn drop(&mut self) {
        if self.closes && !self.life.is_over() && self.socket.shutdown(Shutdown::Both).is_ok() {
            let life = Arc::clone(&self.life);
            let kill = move || {
                std::thread::sleep(CLOSE_TIMEOUT);
                life.kill(None);
            };
            if std::thread::Builder::new().name("close".to_owned()).spawn(kill).is_ok() {
                return;
            }
        }
        self.life.kill(None);
    }
}

/// Returns true if an engine's error is a failure of the GPU, after which the process can run
/// nothing more. Out of memory is no device failure: a smaller batch may fit.
fn is_device_failure(cause: &str) -> bool {
    let has = |words: &[&str]| words.iter().any(|words| cause.contains(words));
    has(&["CUDA failure", "CUDNN failure", "CUBLAS failure", "CUDA error:"]) && !has(&["out of memory", "ALLOC_FAILED"])
}

/// Whether the error means that a socket's time limit expired.
pub(super) fn is_timeout(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Exchange of messages with a process about one batch.
struct BatchExchange<'a> {
    socket: &'a UnixStream,
    until: Instant,
}

impl BatchExchange<'_> {
    fn check(&self) -> io::Result<()> {
        if Instant::now() < self.until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl Read for BatchExchange<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.socket.read(into)
    }
}

impl Write for BatchExchange<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.socket.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
