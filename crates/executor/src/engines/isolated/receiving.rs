//! The end of a connection that receives replies from a process.
//!
//! Large outputs may follow the reply that their batch has run, so that the next batch runs while
//! they are copied. One thread then waits for the outputs of a batch and another one for the end of
//! the next. Whichever waits first reads for both, and their numbers tell replies apart.

use super::life::{Life, give_up};
use super::protocol::{PackedTensor, RunReply, receive};
use super::transfer::InboundTensors;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The end of a connection that receives replies.
pub(super) struct ReceivingEnd {
    socket: UnixStream,
    life: Arc<Life>,
    /// Longest allowed duration of one batch, and of the way of its outputs.
    limit: Duration,
    state: Mutex<ReceivingState>,
    changed: Condvar,
}

struct ReceivingState {
    /// Memory of received tensors.
    inbound: InboundTensors,
    /// Whether a thread reads.
    reads: bool,
    /// Numbers of the batches that have not been answered whole.
    expected: Vec<u64>,
    /// Replies that were read for another thread.
    replies: Vec<RunReply>,
    /// Number of the last batch that was sent.
    last: u64,
    /// Numbers of the batches whose outputs follow.
    following: Vec<u64>,
    /// The first failure, after which the connection is of no use.
    broken: Option<(io::ErrorKind, String)>,
}

impl ReceivingEnd {
    pub(super) fn new(socket: UnixStream, inbound: InboundTensors, life: Arc<Life>, limit: Duration) -> Arc<Self> {
        let (expected, replies, following) = (Vec::new(), Vec::new(), Vec::new());
        let state = ReceivingState { inbound, reads: false, expected, replies, last: 0, following, broken: None };
        Arc::new(ReceivingEnd { socket, life, limit, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Prepares for the replies to a batch that is about to be sent. Waits for the outputs that
    /// follow, but not for the outputs of the batch before: the process writes beside them.
    pub(super) fn expect(&self, number: u64, until: Instant) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.following.iter().any(|&number| number != state.last) {
            state.check()?;
            if self.changed.wait_until(&mut state, until).timed_out() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        state.check()?;
        state.expected.push(number);
        state.last = number;
        Ok(())
    }

    /// Waits for the reply to a batch: that it has failed, or has run. Its outputs have come, too,
    /// unless they follow.
    pub(super) fn reply(&self, number: u64, until: Instant) -> io::Result<RunReply> {
        let mut state = self.state.lock();
        let mut reply = self.wait(&mut state, number, until)?;
        match reply.follows {
            true => state.following.push(number),
            false => state.end(number, &mut reply)?,
        }
        Ok(reply)
    }

    /// Waits for the outputs of a batch, which follow.
    fn outputs(&self, number: u64) -> io::Result<RunReply> {
        let mut state = self.state.lock();
        let reply = self.wait(&mut state, number, Instant::now() + self.limit).and_then(|mut reply| {
            state.end(number, &mut reply)?;
            Ok(reply)
        });
        state.following.retain(|&following| following != number);
        self.changed.notify_all();
        reply
    }

    /// Gives memory back, unless outputs follow.
    pub(super) fn release_memory(&self) {
        let mut state = self.state.lock();
        if state.following.is_empty() {
            state.inbound.buffers().release();
            state.inbound.release();
        }
    }

    /// Waits for the next reply to a batch. Reads if no other thread does.
    fn wait(&self, state: &mut MutexGuard<'_, ReceivingState>, number: u64, until: Instant) -> io::Result<RunReply> {
        loop {
            if let Some(at) = state.replies.iter().position(|reply| reply.number == number) {
                return Ok(state.replies.remove(at));
            }
            state.check()?;
            if state.reads {
                self.changed.wait(state);
                continue;
            }
            state.reads = true;
            let read =
                MutexGuard::unlocked(state, || receive::<RunReply>(&mut BatchExchange { socket: &self.socket, until }));
            state.reads = false;
            state.note(read);
            self.changed.notify_all();
        }
    }
}

impl ReceivingState {
    /// Returns an error if the connection is of no use.
    fn check(&self) -> io::Result<()> {
        self.broken.as_ref().map_or(Ok(()), |(kind, cause)| Err(io::Error::new(*kind, cause.clone())))
    }

    /// Notes what was read: a reply to a batch that is expected, or a failure.
    fn note(&mut self, read: io::Result<RunReply>) {
        match read {
            Ok(reply) if self.is_expected(&reply) => self.replies.push(reply),
            Ok(reply) => self.broken = Some((io::ErrorKind::InvalidData, format!("to batch {}", reply.number))),
            Err(cause) => self.broken = Some((cause.kind(), cause.to_string())),
        }
    }

    /// Whether this reply to a batch is missing: first that its outputs follow, at most once, then
    /// the outputs or an error.
    fn is_expected(&self, reply: &RunReply) -> bool {
        let number = reply.number;
        let has = |follows: bool| self.replies.iter().any(|read| read.number == number && read.follows == follows);
        let repeats = reply.follows && (has(true) || self.following.contains(&number) || reply.error.is_some());
        self.expected.contains(&number) && !has(false) && !repeats
    }

    /// Fetches the outputs of a batch, which is answered whole.
    fn end(&mut self, number: u64, reply: &mut RunReply) -> io::Result<()> {
        self.expected.retain(|expected| *expected != number);
        self.inbound.unpack(&mut reply.outputs, None)
    }
}

/// The outputs of a batch that has run, which follow. Dropping them waits for them as well.
pub(super) struct FollowingOutputs {
    /// The end that receives them.
    end: Arc<ReceivingEnd>,
    /// Number of the batch.
    number: u64,
    /// Shapes of the outputs.
    shapes: Vec<Vec<i64>>,
    received: bool,
}

impl FollowingOutputs {
    pub(super) fn new(end: &Arc<ReceivingEnd>, reply: &RunReply) -> FollowingOutputs {
        let shapes = reply.outputs.iter().map(|output| output.shape.clone()).collect();
        FollowingOutputs { end: Arc::clone(end), number: reply.number, shapes, received: false }
    }

    pub(super) fn shapes(&self) -> &[Vec<i64>] {
        &self.shapes
    }

    /// Waits for the outputs. The outer error says how the process has ended meanwhile; the inner
    /// one is the engine's.
    pub(super) fn receive(mut self) -> Result<Result<Vec<PackedTensor>, String>, String> {
        self.received = true;
        let reply = self.end.outputs(self.number);
        let reply = reply.map_err(|cause| give_up(&self.end.life, self.end.limit, &cause))?;
        Ok(reply.error.map_or(Ok(reply.outputs), Err))
    }
}

impl Drop for FollowingOutputs {
    fn drop(&mut self) {
        if !self.received {
            // No request takes them, and only their place in the memory matters.
            let _ = self.end.outputs(self.number);
        }
    }
}

/// Exchange of messages with a process about one batch.
pub(super) struct BatchExchange<'a> {
    pub(super) socket: &'a UnixStream,
    pub(super) until: Instant,
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
