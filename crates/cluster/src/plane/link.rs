//! The sending side of a connection: messages are appended to one buffer, and a thread or an event
//! loop writes what has accumulated.
//!
//! So a loaded connection never has one write per request: during a write the next batch
//! accumulates. A thread waits after it until 50 µs have passed since the last write or enough
//! bytes are there; an event loop writes at most once per turn. A few messages on a TCP connection
//! that was idle for as long are written by their sender, if the socket takes them, so that no
//! thread has to wake. A peer that does not read is disconnected once the buffer is full: no thread
//! waits for it, and nothing is dropped silently.

use super::transport::PeerAddress;
use super::{ByteStream, Message, RECORD};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The shortest time between two writes, and the number of bytes that are written without waiting
/// for it.
const BATCH_DELAY: Duration = Duration::from_micros(50);
const BATCH_BYTES: usize = 256 * RECORD;

/// Interval of keep-alive messages on an idle connection.
pub(super) const KEEP_ALIVE: Duration = Duration::from_millis(500);

/// Capacity that the buffer keeps after a write; a larger one is freed.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// The bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub struct LinkBounds {
    /// The largest number of bytes that wait to be written.
    pub bytes: usize,
}

impl LinkBounds {
    /// Bounds of a connection for records.
    pub const CONTROL: LinkBounds = LinkBounds { bytes: 64 << 20 };
    /// Bounds of a connection for tensors.
    pub const DATA: LinkBounds = LinkBounds { bytes: 1 << 30 };
}

/// Tells an event loop that a connection has something to write.
pub(super) type WriteNotifier = Box<dyn Fn() + Send + Sync>;

/// The sending side of a connection.
pub struct PeerLink {
    stream: Arc<dyn ByteStream>,
    bounds: LinkBounds,
    buffer: Mutex<SendBuffer>,
    changed: Condvar,
    /// Tells the event loop that there is something to write; `None` if a thread writes.
    notifier: Option<WriteNotifier>,
    /// Signals that the connection has ended.
    ended: Condvar,
}

struct SendBuffer {
    bytes: Vec<u8>,
    /// True while a sender writes.
    writing: bool,
    /// End of the last write.
    last_write: Instant,
    closed: bool,
    /// True once the connection ends with the last message in the buffer.
    finishing: bool,
    /// True while the writer sleeps until the first message; otherwise it wakes by itself, or when
    /// there are enough bytes.
    idle: bool,
    /// True while the event loop knows that it has to look at the buffer.
    notified: bool,
}

/// Bytes that an event loop has taken from the buffer, and the number of them that are written.
#[derive(Default)]
pub(super) struct OutgoingBytes {
    bytes: Vec<u8>,
    written: usize,
}

/// State of a connection after an event loop has written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteState {
    /// All is written, or the rest is for the next turn.
    Open,
    /// The socket takes no more now.
    Blocked,
    /// This side has ended the connection.
    Closed,
}

impl PeerLink {
    /// Longest silence of a peer: six keep-alive intervals.
    pub const MAX_SILENCE: Duration = Duration::from_secs(3);

    /// Returns the address of the other side, if it is known.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.stream.peer()
    }

    /// Starts a writer thread of this name on `stream`.
    pub fn start(stream: Arc<dyn ByteStream>, bounds: LinkBounds, name: &str) -> io::Result<Arc<PeerLink>> {
        let link = Arc::new(PeerLink::new(stream, bounds, None));
        let writer = Arc::clone(&link);
        thread::Builder::new().name(name.to_owned()).spawn(move || writer.write())?;
        Ok(link)
    }

    /// Returns a link whose bytes the event loop of this notifier writes.
    pub(super) fn polled(stream: Arc<dyn ByteStream>, bounds: LinkBounds, notifier: WriteNotifier) -> Arc<PeerLink> {
        Arc::new(PeerLink::new(stream, bounds, Some(notifier)))
    }

    fn new(stream: Arc<dyn ByteStream>, bounds: LinkBounds, notifier: Option<WriteNotifier>) -> PeerLink {
        let (closed, finishing, idle, notified) = (false, false, false, false);
        let waiting = SendBuffer {
            bytes: Vec::new(),
            writing: false,
            last_write: Instant::now(),
            closed,
            finishing,
            idle,
            notified,
        };
        let (buffer, changed, ended) = (Mutex::new(waiting), Condvar::new(), Condvar::new());
        PeerLink { stream, bounds, buffer, changed, notifier, ended }
    }

    /// Sends a message; see [`send_all`](PeerLink::send_all).
    pub fn send(&self, message: &Message) {
        self.send_all(std::slice::from_ref(message));
    }

    /// Sends messages, or enqueues them; they go with one write if they can. Does nothing once the
    /// connection has ended, which its reader detects.
    pub fn send_all(&self, messages: &[Message]) {
        let mut waiting = self.buffer.lock();
        if waiting.closed || waiting.finishing {
            return;
        }
        messages.iter().for_each(|message| message.encode(&mut waiting.bytes));
        if waiting.bytes.len() > self.bounds.bytes {
            let peer = PeerAddress(self.stream.peer());
            tracing::warn!(%peer, "{peer} does not take what it is sent, and is given up");
            return self.end(&mut waiting);
        }
        if self.notifier.is_some() {
            self.notify(&mut waiting);
        } else if waiting.bytes.len() >= BATCH_BYTES {
            waiting.idle = false;
            self.changed.notify_one();
        } else if waiting.idle && !waiting.bytes.is_empty() {
            waiting.idle = false;
            match waiting.last_write.elapsed() < BATCH_DELAY {
                true => drop(self.changed.notify_one()),
                false => self.write_on_sender(waiting),
            }
        }
    }

    /// Writes what waits, on the sender's thread, as far as the socket takes it without waiting.
    /// The rest is the writer's.
    fn write_on_sender(&self, mut waiting: MutexGuard<'_, SendBuffer>) {
        let mut bytes = std::mem::take(&mut waiting.bytes);
        waiting.writing = true;
        drop(waiting);
        let written = self.stream.write_now(&bytes);
        let mut waiting = self.buffer.lock();
        waiting.writing = false;
        if written.as_ref().is_ok_and(|&written| written > 0) {
            waiting.last_write = Instant::now();
        }
        if waiting.closed {
            return;
        }
        // An error that lasts shows at the writer's attempt.
        bytes.drain(..written.unwrap_or(0));
        bytes.append(&mut waiting.bytes);
        waiting.bytes = bytes;
        waiting.idle = waiting.bytes.is_empty() && !waiting.finishing;
        if !waiting.idle {
            self.changed.notify_one();
        }
    }

    /// Ends the connection once the messages in the buffer are sent. Takes no further messages, and
    /// does not wait.
    pub fn finish(&self) {
        let mut waiting = self.buffer.lock();
        waiting.finishing = true;
        self.notify(&mut waiting);
    }

    /// Waits until the connection has ended, at most until `until`; it has then ended in any case.
    pub fn wait_closed(&self, until: Instant) {
        let mut waiting = self.buffer.lock();
        while !waiting.closed && !self.ended.wait_until(&mut waiting, until).timed_out() {}
        self.end(&mut waiting);
    }

    /// Ends the connection; messages in the buffer are not sent.
    pub fn close(&self) {
        self.end(&mut self.buffer.lock());
    }

    /// Returns true once this side has ended the connection.
    pub fn is_closed(&self) -> bool {
        self.buffer.lock().closed
    }

    fn end(&self, waiting: &mut SendBuffer) {
        (waiting.closed, waiting.bytes) = (true, Vec::new());
        self.stream.close();
        self.notify(waiting);
        self.ended.notify_all();
    }

    /// Wakes the writer.
    fn notify(&self, waiting: &mut SendBuffer) {
        match &self.notifier {
            None => drop(self.changed.notify_one()),
            Some(notifier) if !waiting.notified => {
                waiting.notified = true;
                notifier();
            }
            Some(_) => {}
        }
    }

    /// Writes what has accumulated, on the thread of the event loop. Bytes that come meanwhile are
    /// for its next turn.
    pub(super) fn write_pending(&self, out: &mut OutgoingBytes) -> io::Result<WriteState> {
        if !self.write_taken(out)? {
            return Ok(WriteState::Blocked);
        }
        let mut waiting = self.buffer.lock();
        waiting.notified = false;
        if waiting.closed {
            return Ok(WriteState::Closed);
        }
        if waiting.bytes.is_empty() {
            if waiting.finishing {
                self.end(&mut waiting);
            }
            return Ok(WriteState::Open);
        }
        std::mem::swap(&mut waiting.bytes, &mut out.bytes);
        drop(waiting);
        if !self.write_taken(out)? {
            return Ok(WriteState::Blocked);
        }
        let mut waiting = self.buffer.lock();
        if waiting.finishing {
            self.notify(&mut waiting);
        }
        Ok(WriteState::Open)
    }

    /// Writes the bytes that were taken from the buffer. Returns false if the socket takes no more.
    fn write_taken(&self, out: &mut OutgoingBytes) -> io::Result<bool> {
        loop {
            match self.stream.try_write(&out.bytes[out.written..]) {
                Ok(_) if out.written == out.bytes.len() => break,
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => out.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        out.written = 0;
        out.bytes.clear();
        out.bytes.shrink_to(MAX_KEPT_BYTES);
        Ok(true)
    }

    /// Enqueues a keep-alive if nothing waits.
    pub(super) fn keep_alive(&self) {
        let is_idle = self.buffer.lock().bytes.is_empty();
        if is_idle {
            self.send(&Message::KeepAlive);
        }
    }

    fn write(&self) {
        let mut bytes = Vec::new();
        while self.next_bytes(&mut bytes) {
            if let Err(error) = self.stream.write_all(&bytes) {
                let peer = PeerAddress(self.stream.peer());
                tracing::debug!(%peer, "the connection of {peer} has ended: {error}");
                return self.close();
            }
            self.buffer.lock().last_write = Instant::now();
            bytes.clear();
            bytes.shrink_to(MAX_KEPT_BYTES);
        }
    }

    /// Waits for the bytes of the next write; returns false once the connection has ended.
    fn next_bytes(&self, into: &mut Vec<u8>) -> bool {
        let mut waiting = self.buffer.lock();
        while (waiting.bytes.is_empty() || waiting.writing) && !waiting.closed {
            if waiting.writing {
                self.changed.wait_for(&mut waiting, KEEP_ALIVE);
                continue;
            }
            if waiting.finishing {
                self.end(&mut waiting);
                break;
            }
            waiting.idle = true;
            let until = waiting.last_write + KEEP_ALIVE;
            let is_late = self.changed.wait_until(&mut waiting, until).timed_out();
            if is_late
                && waiting.bytes.is_empty()
                && !waiting.writing
                && waiting.last_write + KEEP_ALIVE <= Instant::now()
            {
                Message::KeepAlive.encode(&mut waiting.bytes);
            }
        }
        waiting.idle = false;
        let until = waiting.last_write + BATCH_DELAY;
        while !waiting.closed && !waiting.finishing && waiting.bytes.len() < BATCH_BYTES {
            if self.changed.wait_until(&mut waiting, until).timed_out() {
                break;
            }
        }
        std::mem::swap(&mut waiting.bytes, into);
        !waiting.closed
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.stream.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Reports each write, and blocks it until the test lets it end.
    struct Slow {
        writes: Sender<usize>,
        ends: Mutex<Receiver<()>>,
    }

    impl ByteStream for Slow {
        fn read(&self, _: &mut [u8], _: Duration) -> io::Result<usize> {
            Ok(0)
        }
        fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
            self.writes.send(bytes.len()).map_err(io::Error::other)?;
            self.ends.lock().recv().map_err(io::Error::other)
        }
        fn close(&self) {}
        fn peer(&self) -> Option<SocketAddr> {
            None
        }
    }

    fn link(bytes: usize) -> (Arc<PeerLink>, Receiver<usize>, Sender<()>) {
        let ((writes, written), (may_end, ends)) = (channel(), channel());
        let stream = Arc::new(Slow { writes, ends: Mutex::new(ends) });
        (PeerLink::start(stream, LinkBounds { bytes }, "test").unwrap(), written, may_end)
    }

    #[test]
    fn what_comes_during_a_write_goes_with_the_next() {
        let (link, written, may_end) = link(1 << 20);
        link.send(&Message::Leave);
        assert_eq!(written.recv(), Ok(RECORD));
        (0..1000).for_each(|request| link.send(&Message::CancelRequest(request)));
        may_end.send(()).unwrap();
        assert_eq!(written.recv(), Ok(1000 * RECORD));
        link.close();
    }

    /// Takes up to this number of bytes of each write without waiting.
    struct Narrow {
        most: usize,
        bytes: Sender<Vec<u8>>,
    }

    impl ByteStream for Narrow {
        fn read(&self, _: &mut [u8], _: Duration) -> io::Result<usize> {
            Ok(0)
        }
        fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
            self.bytes.send(bytes.to_vec()).map_err(io::Error::other)
        }
        fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
            let taken = self.most.min(bytes.len());
            self.write_all(&bytes[..taken]).map(|()| taken)
        }
        fn close(&self) {}
        fn peer(&self) -> Option<SocketAddr> {
            None
        }
    }

    #[test]
    fn bytes_of_senders_and_writer_arrive_in_order() {
        const MESSAGES: u64 = 2000;
        for most in [0, 1, RECORD, 3 * RECORD - 1, usize::MAX] {
            let (bytes, written) = channel();
            let stream = Arc::new(Narrow { most, bytes });
            let link = PeerLink::start(stream, LinkBounds { bytes: 1 << 30 }, "test").unwrap();
            let mut expected = Vec::new();
            for first in (0..MESSAGES).step_by(4) {
                let messages = [0, 1, 2, 3].map(|more| Message::CancelRequest(first + more));
                messages.iter().for_each(|message| message.encode(&mut expected));
                // Between bursts the connection is idle at times.
                (0..first % 7 * 100).for_each(|_| thread::yield_now());
                link.send(&messages[0]);
                link.send_all(&messages[1..]);
            }
            link.finish();
            link.wait_closed(Instant::now() + PeerLink::MAX_SILENCE * 20);
            drop(link);
            let mut keep_alive = Vec::new();
            Message::KeepAlive.encode(&mut keep_alive);
            let arrived: Vec<u8> = written.iter().filter(|bytes| *bytes != keep_alive).flatten().collect();
            assert!(arrived == expected, "{most}: {} of {} bytes", arrived.len(), expected.len());
        }
    }

    #[test]
    fn a_connection_that_finishes_sends_what_waits() {
        let (link, written, may_end) = link(1 << 20);
        link.send(&Message::Leave);
        assert_eq!(written.recv(), Ok(RECORD));
        (0..1000).for_each(|request| link.send(&Message::CancelRequest(request)));
        link.finish();
        link.send(&Message::Leave);
        assert!(!link.is_closed());
        [(), ()].into_iter().for_each(|end| may_end.send(end).unwrap());
        assert_eq!(written.recv(), Ok(1000 * RECORD));
        link.wait_closed(Instant::now() + PeerLink::MAX_SILENCE * 20);
        assert!(link.is_closed());
        drop(link);
        assert!(written.recv().is_err(), "nothing comes after");
    }

    #[test]
    fn a_peer_that_takes_nothing_is_not_waited_for() {
        let (link, written, _may_end) = link(1 << 20);
        link.send(&Message::Leave);
        written.recv().unwrap();
        link.send(&Message::Leave);
        link.finish();
        link.wait_closed(Instant::now());
        assert!(link.is_closed());
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up() {
        let (link, written, _may_end) = link(10 * RECORD);
        link.send(&Message::Leave);
        written.recv().unwrap();
        (0..10).for_each(|request| link.send(&Message::CancelRequest(request)));
        assert!(!link.is_closed());
        link.send(&Message::CancelRequest(10));
        assert!(link.is_closed());
    }

    #[test]
    fn a_peer_hears_that_the_other_is_alive() {
        let (link, written, may_end) = link(1 << 20);
        may_end.send(()).unwrap();
        let mut here = Vec::new();
        Message::KeepAlive.encode(&mut here);
        assert_eq!(written.recv(), Ok(here.len()));
        link.close();
    }
}
