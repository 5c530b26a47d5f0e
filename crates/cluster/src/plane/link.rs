//! A connection as those who send on it see it: messages go into one buffer, and a thread writes what has gathered.
//!
//! So there is never one write for each request under load: while a write is under way the next gathers, and after it
//! the thread waits until 50 µs have passed since the last or enough has come. A message after a rest goes at once. A
//! peer that does not take what it is sent is given up when the buffer is full: nobody waits for it, and nothing is
//! dropped in silence.

use super::{Message, RECORD, Stream};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The least time between two writes, unless so much has gathered.
const GATHER: Duration = Duration::from_micros(50);
const ENOUGH: usize = 256 * RECORD;

/// How often a peer is told that somebody is there.
const BEAT: Duration = Duration::from_millis(500);

/// A buffer that has grown beyond this is given back once it is written.
const KEPT: usize = 1 << 20;

/// The bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub struct LinkBounds {
    /// The most bytes that wait to be written.
    pub bytes: usize,
}

impl LinkBounds {
    /// For records.
    pub const CONTROL: LinkBounds = LinkBounds { bytes: 64 << 20 };
    /// For tensors.
    pub const DATA: LinkBounds = LinkBounds { bytes: 1 << 30 };
}

/// The sending side of a connection.
pub struct Link {
    stream: Arc<dyn Stream>,
    bounds: LinkBounds,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    closed: bool,
    /// Whether the writer sleeps until there is anything at all: else it wakes by itself, or when there is enough.
    idle: bool,
}

impl Link {
    /// How long a peer may be silent: six beats.
    pub const SILENCE: Duration = Duration::from_secs(3);

    /// Sends on `stream` from now on, by a thread of this name.
    pub fn start(stream: Arc<dyn Stream>, bounds: LinkBounds, name: &str) -> io::Result<Arc<Link>> {
        let link = Arc::new(Link { stream, bounds, waiting: Mutex::default(), changed: Condvar::new() });
        let writer = Arc::clone(&link);
        thread::Builder::new().name(name.to_owned()).spawn(move || writer.write())?;
        Ok(link)
    }

    /// Sends a message soon; nothing once the connection has ended, which its reader finds out.
    pub fn send(&self, message: &Message) {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return;
        }
        message.encode(&mut waiting.bytes);
        if waiting.bytes.len() > self.bounds.bytes {
            tracing::warn!(peer = ?self.stream.peer(), "a peer does not take what it is sent, and is given up");
            return self.end(&mut waiting);
        }
        if waiting.idle || waiting.bytes.len() >= ENOUGH {
            waiting.idle = false;
            self.changed.notify_one();
        }
    }

    /// Ends the connection; what waits is not sent.
    pub fn close(&self) {
        self.end(&mut self.waiting.lock());
    }

    /// Whether it has been ended from here.
    pub fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    fn end(&self, waiting: &mut Waiting) {
        (waiting.closed, waiting.bytes) = (true, Vec::new());
        self.stream.close();
        self.changed.notify_one();
    }

    fn write(&self) {
        let (mut bytes, mut last) = (Vec::new(), Instant::now());
        while self.take(&mut bytes, last) {
            if let Err(error) = self.stream.write_all(&bytes) {
                tracing::debug!(peer = ?self.stream.peer(), %error, "a connection has ended");
                return self.close();
            }
            last = Instant::now();
            bytes.clear();
            bytes.shrink_to(KEPT);
        }
    }

    /// Waits for what is to be written next; false once the connection has ended.
    fn take(&self, into: &mut Vec<u8>, last: Instant) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.bytes.is_empty() && !waiting.closed {
            waiting.idle = true;
            if self.changed.wait_until(&mut waiting, last + BEAT).timed_out() && waiting.bytes.is_empty() {
                Message::Here.encode(&mut waiting.bytes);
            }
        }
        waiting.idle = false;
        while !waiting.closed && waiting.bytes.len() < ENOUGH {
            if self.changed.wait_until(&mut waiting, last + GATHER).timed_out() {
                break;
            }
        }
        std::mem::swap(&mut waiting.bytes, into);
        !waiting.closed
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stream.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Tells of each write, and waits until it may end.
    struct Slow {
        writes: Sender<usize>,
        ends: Mutex<Receiver<()>>,
    }

    impl Stream for Slow {
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

    fn link(bytes: usize) -> (Arc<Link>, Receiver<usize>, Sender<()>) {
        let ((writes, written), (may_end, ends)) = (channel(), channel());
        let stream = Arc::new(Slow { writes, ends: Mutex::new(ends) });
        (Link::start(stream, LinkBounds { bytes }, "test").unwrap(), written, may_end)
    }

    #[test]
    fn what_comes_during_a_write_goes_with_the_next() {
        let (link, written, may_end) = link(1 << 20);
        link.send(&Message::Leave);
        assert_eq!(written.recv(), Ok(RECORD));
        (0..1000).for_each(|request| link.send(&Message::Withdraw(request)));
        may_end.send(()).unwrap();
        assert_eq!(written.recv(), Ok(1000 * RECORD));
        link.close();
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up() {
        let (link, written, _may_end) = link(10 * RECORD);
        link.send(&Message::Leave);
        written.recv().unwrap();
        (0..10).for_each(|request| link.send(&Message::Withdraw(request)));
        assert!(!link.is_closed());
        link.send(&Message::Withdraw(10));
        assert!(link.is_closed());
    }

    #[test]
    fn a_peer_hears_that_somebody_is_there() {
        let (link, written, may_end) = link(1 << 20);
        may_end.send(()).unwrap();
        let mut here = Vec::new();
        Message::Here.encode(&mut here);
        assert_eq!(written.recv(), Ok(here.len()));
        link.close();
    }
}
