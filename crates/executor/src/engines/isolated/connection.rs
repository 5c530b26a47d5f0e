//! A connection to a process that has loaded its model.

use super::life::{Life, give_up};
#[cfg(target_os = "linux")]
use super::protocol::{CellsCall, CellsReply, receive};
use super::protocol::{RunReply, RunRequest, send};
use super::receiving::{BatchExchange, FollowingOutputs, ReceivingEnd};
use super::sending::SendingEnd;
#[cfg(target_os = "linux")]
use super::shared::send_files;
use super::transfer::{InboundTensors, OutboundTensors};
use crate::contract::kept::{self, KeptBytes};
use parking_lot::Mutex;
use std::io;
use std::net::Shutdown;
#[cfg(target_os = "linux")]
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for a Python model to close before its process is killed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connection to a process that has loaded its model. Dropping it kills the process, which is of no
/// use without one.
pub(super) struct ProcessConnection {
    socket: UnixStream,
    sending: Arc<Mutex<SendingEnd>>,
    receiving: Arc<ReceivingEnd>,
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
        let receiving = ReceivingEnd::new(socket.try_clone()?, inbound, Arc::clone(&life), limit);
        Ok(ProcessConnection { socket, sending, receiving, life, limit, closes, kept: KeptBytes::default() })
    }

    /// Returns the end that sends batches.
    pub(super) fn sending(&self) -> &Arc<Mutex<SendingEnd>> {
        &self.sending
    }

    /// Gives back the memory of this end. The process does the same by itself.
    pub(super) fn release_memory(&mut self) {
        self.receiving.release_memory();
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

    /// Runs a batch. Returns its reply with the data of all tensors, and its outputs if they
    /// follow. While the batch runs, another thread may send the next one by what `on_sent`
    /// returns. An error means that the process is of no use any more.
    pub(super) fn run<T>(
        &mut self,
        batch: &RunRequest,
        on_sent: impl FnOnce(&Arc<Mutex<SendingEnd>>) -> T,
    ) -> io::Result<(RunReply, Option<FollowingOutputs>)> {
        let until = Instant::now() + self.limit;
        self.receiving.expect(batch.number, until)?;
        send(&mut BatchExchange { socket: &self.socket, until }, batch)?;
        let sends_ahead = on_sent(&self.sending);
        let received = self.receiving.reply(batch.number, until);
        drop(sends_ahead);
        let done = received?;
        let following = done.follows.then(|| FollowingOutputs::new(&self.receiving, &done));
        if let Some(cause) = done.error.as_ref().filter(|cause| is_device_failure(cause)) {
            return Err(io::Error::other(cause.clone()));
        }
        self.kept.set(usize::try_from(done.kept).unwrap_or(0));
        Ok((done, following))
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

    /// Kills the process after an exchange failed with `cause`. Returns a description of its end.
    pub(super) fn give_up(self, cause: &io::Error) -> String {
        give_up(&self.life, self.limit, cause)
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
