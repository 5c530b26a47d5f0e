//! An event loop: polls connections, reads their messages, and writes what they are sent.

use super::queue::{QueuedConnection, ReadingLoop};
use crate::plane::link::{KEEP_ALIVE, OutgoingBytes, WriteState};
use crate::plane::reader::{FrameBuffer, end_of_stream};
use crate::plane::transport::{ReadBytes, WRITE_TIMEOUT, silent};
use crate::plane::{ByteStream, PeerLink};
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes that a turn reads of a connection: a thousand requests, which take less than a
/// millisecond.
pub(super) const CHUNK: usize = 64 << 10;
/// Interval at which silent and idle connections are looked for.
const TICK: Duration = Duration::from_millis(100);
/// Number of events per turn.
const EVENTS: usize = 1024;
/// Token of the waker; connections have their numbers.
const WAKER: Token = Token(usize::MAX);

/// An event loop, which its thread owns.
pub(super) struct Poller {
    mailbox: Arc<PollerMailbox>,
    poll: Poll,
    connections: HashMap<usize, PolledConnection, foldhash::fast::RandomState>,
    /// Connections to read in the next turn, although no event comes for them.
    ready: Vec<usize>,
    /// The orders of a turn, empty between turns.
    taken: PollerOrders,
    /// Target of reads.
    chunk: Box<[u8]>,
    /// Time of the last look for silent and idle connections.
    looked: Instant,
}

/// Orders of other threads to an event loop.
pub(super) struct PollerMailbox {
    waker: Waker,
    /// True while the thread waits for events, or is about to.
    sleeps: AtomicBool,
    orders: Mutex<PollerOrders>,
}

#[derive(Default)]
struct PollerOrders {
    new: Vec<(usize, PolledConnection)>,
    /// Connections that have something to write.
    written: Vec<usize>,
    /// Connections whose queues have space again.
    resumed: Vec<usize>,
    /// Connections that were ended by their handlers.
    ended: Vec<usize>,
    closed: bool,
}

/// A connection as the event loop sees it.
struct PolledConnection {
    stream: Arc<dyn ByteStream>,
    link: Arc<PeerLink>,
    queued: Arc<QueuedConnection>,
    socket: Option<RawFd>,
    frames: FrameBuffer,
    out: OutgoingBytes,
    /// True until a read finds nothing more.
    readable: bool,
    /// True once the peer has closed, so that reads are to go on until they find that.
    hung_up: bool,
    /// True while the connection is in the list of those to read.
    enlisted: bool,
    /// True while the queue has no space.
    paused: bool,
    /// Time of the last read that found bytes.
    heard: Instant,
    /// Time of the last write that the socket took, at least in part.
    wrote: Instant,
    /// True while the socket takes nothing.
    blocked: bool,
}

impl PollerMailbox {
    /// Adds a connection. Its handler learns of its end at the latest when the event loop ends.
    pub(super) fn add(
        &self,
        number: usize,
        stream: Arc<dyn ByteStream>,
        link: Arc<PeerLink>,
        queued: Arc<QueuedConnection>,
    ) {
        let now = Instant::now();
        let connection = PolledConnection {
            stream,
            link,
            queued,
            socket: None,
            frames: FrameBuffer::default(),
            out: OutgoingBytes::default(),
            readable: true,
            hung_up: false,
            enlisted: false,
            paused: false,
            heard: now,
            wrote: now,
            blocked: false,
        };
        let mut refused = Some(connection);
        self.order(|orders| orders.new.extend(refused.take().map(|connection| (number, connection))));
        if let Some(connection) = refused {
            connection.end(closed());
        }
    }

    /// Notes that a connection has something to write.
    pub(super) fn notify_write(&self, number: usize) {
        self.order(|orders| orders.written.push(number));
    }

    pub(super) fn close(&self) {
        self.order(|orders| orders.closed = true);
    }

    fn order(&self, give: impl FnOnce(&mut PollerOrders)) {
        let mut orders = self.orders.lock();
        if orders.closed {
            return;
        }
        give(&mut orders);
        drop(orders);
        self.wake();
    }

    /// Wakes the thread, unless it will look at its orders in any case.
    fn wake(&self) {
        if self.sleeps.swap(false, Ordering::SeqCst)
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "an event loop cannot be woken");
        }
    }
}

impl ReadingLoop for PollerMailbox {
    fn resume(&self, number: usize) {
        self.order(|orders| orders.resumed.push(number));
    }

    fn end(&self, number: usize) {
        self.order(|orders| orders.ended.push(number));
    }
}

pub(super) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "this side has closed")
}

impl Poller {
    pub(super) fn new() -> io::Result<(Poller, Arc<PollerMailbox>)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let mailbox = Arc::new(PollerMailbox { waker, sleeps: AtomicBool::new(false), orders: Mutex::default() });
        let poller = Poller {
            mailbox: Arc::clone(&mailbox),
            poll,
            connections: HashMap::default(),
            ready: Vec::new(),
            taken: PollerOrders::default(),
            chunk: vec![0; CHUNK].into(),
            looked: Instant::now(),
        };
        Ok((poller, mailbox))
    }

    /// Takes turns until the mailbox is closed; then ends all connections.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        while self.carry_out_orders() {
            if let Err(error) = self.wait(&mut events) {
                tracing::error!(%error, "an event loop cannot wait for its connections");
                self.mailbox.close();
                continue;
            }
            let now = Instant::now();
            events.iter().for_each(|event| self.on_event(event));
            for number in std::mem::take(&mut self.ready) {
                self.read(number, now);
            }
            if now.duration_since(self.looked) >= TICK {
                self.looked = now;
                self.look_at_clock(now);
            }
        }
        let all: Vec<usize> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|number| self.end(number, closed()));
    }

    /// Waits for events, unless connections are ready or orders have come.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let PollerMailbox { sleeps, orders, .. } = &*self.mailbox;
        sleeps.store(true, Ordering::SeqCst);
        // An order that comes after this look wakes the thread.
        let waits = self.ready.is_empty() && orders.lock().is_empty();
        let polled = self.poll.poll(events, Some(if waits { TICK } else { Duration::ZERO }));
        sleeps.store(false, Ordering::SeqCst);
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Carries out the orders of other threads. Returns false once the mailbox is closed.
    fn carry_out_orders(&mut self) -> bool {
        let mut taken = std::mem::take(&mut self.taken);
        let mut orders = self.mailbox.orders.lock();
        std::mem::swap(&mut *orders, &mut taken);
        orders.closed = taken.closed;
        drop(orders);
        let now = Instant::now();
        for (number, connection) in taken.new.drain(..) {
            self.begin(number, connection, now);
        }
        for number in taken.resumed.drain(..) {
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.paused = false;
                connection.enlist(number, &mut self.ready);
            }
        }
        taken.written.drain(..).for_each(|number| self.write(number, now));
        taken.ended.drain(..).for_each(|number| self.end(number, closed()));
        let closed = std::mem::take(&mut taken.closed);
        self.taken = taken;
        !closed
    }

    fn begin(&mut self, number: usize, mut connection: PolledConnection, now: Instant) {
        let both = Interest::READABLE | Interest::WRITABLE;
        let polled = connection.stream.set_polled().and_then(|socket| {
            self.poll.registry().register(&mut SourceFd(&socket), Token(number), both)?;
            Ok(socket)
        });
        match polled {
            Ok(socket) => {
                connection.socket = Some(socket);
                // Bytes may have come with the greeting, and messages for it meanwhile.
                connection.enlist(number, &mut self.ready);
                self.connections.insert(number, connection);
                self.write(number, now);
            }
            Err(error) => connection.end(error),
        }
    }

    fn on_event(&mut self, event: &Event) {
        let Token(number) = event.token();
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.hung_up |= event.is_read_closed() || event.is_error();
        if event.is_readable() || connection.hung_up {
            connection.readable = true;
            connection.enlist(number, &mut self.ready);
        }
        if event.is_writable() && std::mem::take(&mut connection.blocked) {
            self.write(number, Instant::now());
        }
    }

    /// Reads once from a connection, and handles the messages that are there.
    fn read(&mut self, number: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.enlisted = false;
        if connection.paused || !connection.readable {
            return;
        }
        match connection.read(&mut self.chunk, now) {
            Ok(()) if connection.readable && !connection.paused => connection.enlist(number, &mut self.ready),
            Ok(()) => {}
            Err(error) => self.end(number, error),
        }
    }

    fn write(&mut self, number: usize, now: Instant) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.blocked && !connection.link.is_closed() {
            return;
        }
        connection.wrote = now;
        match connection.link.write_pending(&mut connection.out) {
            Ok(WriteState::Open) => {}
            Ok(WriteState::Blocked) => connection.blocked = true,
            Ok(WriteState::Closed) => self.end(number, closed()),
            Err(error) => self.end(number, error),
        }
    }

    /// Sends keep-alives on idle connections, and ends those that are silent or take nothing.
    fn look_at_clock(&mut self, now: Instant) {
        let mut faults = Vec::new();
        for (&number, connection) in &mut self.connections {
            let unsent = now.duration_since(connection.wrote);
            if connection.blocked && unsent >= WRITE_TIMEOUT {
                let text = format!("the other side took nothing for {} s", unsent.as_secs());
                faults.push((number, io::Error::new(io::ErrorKind::TimedOut, text)));
            } else if let Err(error) = connection.end_silence(&mut self.chunk, now) {
                faults.push((number, error));
            } else if !connection.blocked && unsent >= KEEP_ALIVE {
                connection.link.keep_alive();
            }
        }
        faults.into_iter().for_each(|(number, error)| self.end(number, error));
    }

    fn end(&mut self, number: usize, error: io::Error) {
        let Some(connection) = self.connections.remove(&number) else { return };
        if let Some(socket) = connection.socket
            && let Err(error) = self.poll.registry().deregister(&mut SourceFd(&socket))
        {
            tracing::debug!(%error, "a connection cannot be deregistered");
        }
        connection.end(error);
    }
}

impl PollerOrders {
    fn is_empty(&self) -> bool {
        let PollerOrders { new, written, resumed, ended, closed } = self;
        new.is_empty() && written.is_empty() && resumed.is_empty() && ended.is_empty() && !closed
    }
}

impl PolledConnection {
    /// Puts the connection into the list of those to read, once.
    fn enlist(&mut self, number: usize, ready: &mut Vec<usize>) {
        if !std::mem::replace(&mut self.enlisted, true) {
            ready.push(number);
        }
    }

    /// Reads once, and handles the messages that are there.
    fn read(&mut self, chunk: &mut [u8], now: Instant) -> io::Result<()> {
        match self.stream.try_read(chunk) {
            Ok(ReadBytes { number: 0, .. }) => return Err(end_of_stream()),
            Ok(ReadBytes { number, more }) => {
                self.heard = now;
                self.readable = more || self.hung_up;
                self.frames.push(&chunk[..number]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        let frames = &mut self.frames;
        self.queued.handle_now(|| {
            let before = frames.len();
            let Some(message) = frames.pop()? else { return Ok(None) };
            Ok(Some((message, before - frames.len(), frames.has_next())))
        })?;
        self.paused = self.queued.pauses();
        Ok(())
    }

    /// Fails if the peer is silent. The bytes of a peer that sent some while this process slept are
    /// read first.
    fn end_silence(&mut self, chunk: &mut [u8], now: Instant) -> io::Result<()> {
        let is_silent = |heard: Instant| now.duration_since(heard) >= PeerLink::MAX_SILENCE;
        if self.paused || !is_silent(self.heard) {
            return Ok(());
        }
        self.read(chunk, now)?;
        if is_silent(self.heard) { Err(silent("nothing", PeerLink::MAX_SILENCE)) } else { Ok(()) }
    }

    fn end(self, error: io::Error) {
        // A stream that this side has closed looks as if the peer had.
        let error = if self.link.is_closed() { closed() } else { error };
        self.link.close();
        self.queued.end(error);
    }
}
