//! The sending side of a connection: messages are appended to one buffer, and a thread or an event
//! loop writes what has accumulated.
//!
//! So a loaded connection never has one write per request: during a write the next batch
//! accumulates. A thread waits after it until 50 µs have passed since the last write or enough
//! bytes are there; an event loop writes at most once per turn. A message on an idle connection is
//! written immediately. A peer that does not read is disconnected once the buffer is full: no
//! thread waits for it, and nothing is dropped silently.

use super::transport::PeerAddress;
use super::{ByteStream, Message, RECORD};
use parking_lot::{Condvar, Mutex};
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

#[derive(Default)]
struct SendBuffer {
    bytes: Vec<u8>,
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
        let (buffer, changed, ended) = (Mutex::default(), Condvar::new(), Condvar::new());
        PeerLink { stream, bounds, buffer, changed, notifier, ended }
    }

    /// Enqueues a message. Does nothing once the connection has ended, which its reader detects.
    pub fn send(&self, message: &Message) {
        let mut waiting = self.buffer.lock();
        if waiting.closed || waiting.finishing {
            return;
        }
        message.encode(&mut waiting.bytes);
        if waiting.bytes.len() > self.bounds.bytes {
            let peer = PeerAddress(self.stream.peer());
            tracing::warn!(%peer, "{peer} does not take what it is sent, and is given up");
            return self.end(&mut waiting);
        }
        if self.notifier.is_some() {
            self.notify(&mut waiting);
        } else if waiting.idle || waiting.bytes.len() >= BATCH_BYTES {
            waiting.idle = false;
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
        let (mut bytes, mut last) = (Vec::new(), Instant::now());
        while self.next_bytes(&mut bytes, last) {
            if let Err(error) = self.stream.write_all(&bytes) {
                let peer = PeerAddress(self.stream.peer());
                tracing::debug!(%peer, "the connection of {peer} has ended: {error}");
                return self.close();
            }
            last = Instant::now();
            bytes.clear();
            bytes.shrink_to(MAX_KEPT_BYTES);
        }
    }

    /// Waits for the bytes of the next write; returns false once the connection has ended.
    fn next_bytes(&self, into: &mut Vec<u8>, last: Instant) -> bool {
        let mut waiting = self.buffer.lock();
        while waiting.bytes.is_empty() && !waiting.closed {
            if waiting.finishing {
                self.end(&mut waiting);
                break;
            }
            waiting.idle = true;
            if self.changed.wait_until(&mut waiting, last + KEEP_ALIVE).timed_out() && waiting.bytes.is_empty() {
                Message::KeepAlive.encode(&mut waiting.bytes);
            }
        }
        waiting.idle = false;
        while !waiting.closed && !waiting.finishing && waiting.bytes.len() < BATCH_BYTES {
            if self.changed.wait_until(&mut waiting, last + BATCH_DELAY).timed_out() {
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
