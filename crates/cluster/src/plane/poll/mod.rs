//! Event loops for connections: a few threads read and write all of them, whatever their number.
//!
//! # Design
//!
//! Each event loop ([`poller`]) polls its connections. A turn reads once from each that has bytes,
//! gives the messages to the connection's [`ConnectionHandler`], and then writes once to each
//! connection that was sent something. So what a turn causes goes out in one write a connection,
//! and a peer that sends much takes no more of a turn than another one.
//!
//! A handler has two halves. Messages that never wait are handled by the event loop's thread, which
//! is two switches of threads less for each. All others go to a [`HandlerQueue`], whose own thread
//! may wait for locks and for an engine. While messages of a connection are queued, all that follow
//! are queued behind them, so each connection's messages are handled in order. A queue that is full
//! ends the reading of that connection until there is space, so the peer waits.
//!
//! # What always holds
//!
//! * The event loop waits for sockets alone: keep-alives and heartbeats go out whatever a handler
//!   waits for.
//! * `on_end` is called once for each connection, after its last message.
//! * A peer is given up that sends nothing for [`PeerLink::MAX_SILENCE`], that takes no byte for
//!   ten seconds, or that lets more wait than its [`LinkBounds`].
//!
//! # Rejected
//!
//! Two threads a connection: the switches between them cost half of a scheduler's processor time.
//! tokio: its timers tick in milliseconds, and its tasks would have to leave its threads for each
//! lock that a handler takes.

mod poller;
mod queue;
#[cfg(test)]
mod tests;

use super::{ByteStream, LinkBounds, Message, PeerLink};
use poller::{Poller, PollerMailbox};
pub(crate) use queue::HandlerQueue;
use queue::QueuedConnection;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The largest number of event loops. One reads and writes 2,500,000 records a second, so four
/// carry more than the schedulers behind them.
const MAX_THREADS: usize = 4;
/// Number of processors for each event loop: the other ones decide.
const PROCESSORS_PER_THREAD: usize = 4;

/// Handles the messages of one connection, and its end.
pub(crate) trait ConnectionHandler: Send {
    /// Handles a message on the event loop's thread, if that never waits; otherwise returns it.
    /// `holds_next` is true if further messages have arrived.
    fn try_handle(&mut self, message: Message, holds_next: bool) -> io::Result<Option<Message>>;

    /// Handles a message that may have to wait, on the thread of the connection's queue.
    fn handle(&mut self, message: Message, holds_next: bool) -> io::Result<()>;

    /// Notes that all messages that have arrived are handled.
    fn on_pause(&mut self) {}

    /// Handles the end of the connection, on the thread of its queue.
    fn on_end(self: Box<Self>, error: io::Error);
}

/// The event loops.
pub(crate) struct Pollers {
    each: Vec<Arc<PollerMailbox>>,
    /// Number of connections so far; each has its own number.
    connections: AtomicUsize,
}

/// A connection that is not read yet: its link takes messages already.
pub(crate) struct NewConnection {
    number: usize,
    stream: Arc<dyn ByteStream>,
    link: Arc<PeerLink>,
    poller: Arc<PollerMailbox>,
}

impl Pollers {
    /// Starts the threads, as many as suit the number of processors.
    pub(crate) fn start(name: &str) -> io::Result<Pollers> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Pollers::start_threads(name, (processors / PROCESSORS_PER_THREAD).clamp(1, MAX_THREADS))
    }

    fn start_threads(name: &str, threads: usize) -> io::Result<Pollers> {
        let mut pollers = Pollers { each: Vec::new(), connections: AtomicUsize::new(0) };
        for _ in 0..threads {
            let (poller, mailbox) = Poller::new()?;
            thread::Builder::new().name(name.to_owned()).spawn(move || poller.run())?;
            pollers.each.push(mailbox);
        }
        Ok(pollers)
    }

    /// Prepares a connection, whose greeting is over.
    pub(crate) fn prepare(&self, stream: Arc<dyn ByteStream>, bounds: LinkBounds) -> NewConnection {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let poller = Arc::clone(&self.each[number % self.each.len()]);
        let notified = Arc::clone(&poller);
        let notifier = Box::new(move || notified.notify_write(number));
        let link = PeerLink::polled(Arc::clone(&stream), bounds, notifier);
        NewConnection { number, stream, link, poller }
    }

    /// Ends all connections, and the threads. Does not wait.
    pub(crate) fn close(&self) {
        self.each.iter().for_each(|poller| poller.close());
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.close();
    }
}

impl NewConnection {
    /// Returns the sending side.
    pub(crate) fn link(&self) -> &Arc<PeerLink> {
        &self.link
    }

    /// Serves the connection until it ends. From now on `handler` receives its messages, and its
    /// end in any case.
    pub(crate) fn serve(self, queue: &Arc<HandlerQueue>, handler: Box<dyn ConnectionHandler>) {
        let NewConnection { number, stream, link, poller } = self;
        match QueuedConnection::new(queue, handler, (poller.clone(), number)) {
            Ok(queued) => poller.add(number, stream, link, queued),
            Err(handler) => {
                link.close();
                handler.on_end(poller::closed());
            }
        }
    }
}
