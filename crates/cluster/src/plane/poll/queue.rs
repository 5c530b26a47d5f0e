//! Messages whose handling may wait: a queue for each connection, and the thread that serves the
//! queues in turn.

use super::ConnectionHandler;
use crate::plane::Message;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Bytes of queued messages of a connection from which on it is not read.
pub(super) const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Number of messages of a connection that are handled before another connection has its turn.
const MESSAGES_A_TURN: usize = 256;

/// The event loop that reads a connection.
pub(super) trait ReadingLoop: Send + Sync {
    /// Notes that the queue of a connection has space again.
    fn resume(&self, number: usize);

    /// Ends a connection whose handler has ended.
    fn end(&self, number: usize);
}

/// The connections that have queued messages. Its thread is one that calls [`HandlerQueue::run`].
#[derive(Default)]
pub(crate) struct HandlerQueue {
    state: Mutex<HandlerQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct HandlerQueueState {
    /// Connections with messages or an end, each once.
    waiting: VecDeque<Arc<QueuedConnection>>,
    /// Number of connections whose end is not handled.
    open: usize,
    closed: bool,
}

/// A connection as its handlers' threads share it.
pub(super) struct QueuedConnection {
    queue: Arc<HandlerQueue>,
    /// The handler; `None` once the end is handled.
    handler: Mutex<Option<Box<dyn ConnectionHandler>>>,
    messages: Mutex<QueuedMessages>,
    /// Event loop that reads the connection, and the connection's number there.
    poller: Arc<dyn ReadingLoop>,
    number: usize,
}

#[derive(Default)]
struct QueuedMessages {
    /// The messages, each with its size in bytes.
    waiting: VecDeque<(Message, usize)>,
    /// Sum of the sizes.
    bytes: usize,
    /// The end of the connection, which is handled after them.
    ended: Option<io::Error>,
    /// True while the queue's thread has the connection.
    scheduled: bool,
    /// True while the event loop does not read because too much waits.
    paused: bool,
}

impl HandlerQueue {
    /// Handles messages on this thread until the queue is closed and all of its connections have
    /// ended.
    pub(crate) fn run(&self) {
        while let Some(connection) = self.next() {
            connection.handle_queued();
        }
    }

    fn next(&self) -> Option<Arc<QueuedConnection>> {
        let mut state = self.state.lock();
        loop {
            if let Some(connection) = state.waiting.pop_front() {
                return Some(connection);
            }
            if state.closed && state.open == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Lets the thread end once all connections have ended.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    fn schedule(&self, connection: Arc<QueuedConnection>) {
        self.state.lock().waiting.push_back(connection);
        self.changed.notify_one();
    }

    fn note_end(&self) {
        self.state.lock().open -= 1;
        self.changed.notify_all();
    }
}

impl QueuedConnection {
    /// Returns a connection with this handler, or the handler if the queue is closed. `at` is the
    /// event loop that reads the connection, and its number there.
    pub(super) fn new(
        queue: &Arc<HandlerQueue>,
        handler: Box<dyn ConnectionHandler>,
        at: (Arc<dyn ReadingLoop>, usize),
    ) -> Result<Arc<QueuedConnection>, Box<dyn ConnectionHandler>> {
        let mut state = queue.state.lock();
        if state.closed {
            return Err(handler);
        }
        state.open += 1;
        drop(state);
        let (queue, handler, (poller, number)) = (Arc::clone(queue), Mutex::new(Some(handler)), at);
        Ok(Arc::new(QueuedConnection { queue, handler, messages: Mutex::default(), poller, number }))
    }

    /// Handles messages on the event loop's thread, as far as they need not wait; queues the other
    /// ones. `pop` removes the next message, with its size and whether another one has arrived.
    pub(super) fn handle_now(
        self: &Arc<QueuedConnection>,
        mut pop: impl FnMut() -> io::Result<Option<(Message, usize, bool)>>,
    ) -> io::Result<()> {
        if !self.messages.lock().scheduled {
            let mut handler = self.handler.lock();
            let Some(handler) = &mut *handler else { return Ok(()) };
            let handled = guarded(|| handle_quick(&mut **handler, &mut pop));
            guarded(|| {
                handler.on_pause();
                Ok(())
            })?;
            match handled? {
                None => return Ok(()),
                Some((message, size)) => self.enqueue(message, size),
            }
        }
        while let Some((message, size, _)) = pop()? {
            if !matches!(message, Message::KeepAlive) {
                self.enqueue(message, size);
            }
        }
        Ok(())
    }

    fn enqueue(self: &Arc<QueuedConnection>, message: Message, size: usize) {
        let mut queued = self.messages.lock();
        queued.bytes += size;
        queued.waiting.push_back((message, size));
        self.schedule(&mut queued);
    }

    /// Queues the end of the connection behind its messages.
    pub(super) fn end(self: &Arc<QueuedConnection>, error: io::Error) {
        let mut queued = self.messages.lock();
        queued.ended.get_or_insert(error);
        self.schedule(&mut queued);
    }

    fn schedule(self: &Arc<QueuedConnection>, queued: &mut QueuedMessages) {
        if !std::mem::replace(&mut queued.scheduled, true) {
            self.queue.schedule(Arc::clone(self));
        }
    }

    /// Returns true if the queue has no space, so that the connection is not to be read. The event
    /// loop then learns when there is space.
    pub(super) fn pauses(&self) -> bool {
        let mut queued = self.messages.lock();
        queued.paused = queued.bytes >= MAX_QUEUED_BYTES;
        queued.paused
    }

    #[cfg(test)]
    pub(super) fn queued_bytes(&self) -> usize {
        self.messages.lock().bytes
    }

    /// Handles queued messages on the queue's thread.
    fn handle_queued(self: &Arc<QueuedConnection>) {
        let mut slot = self.handler.lock();
        for _ in 0..MESSAGES_A_TURN {
            let Some(handler) = &mut *slot else { return };
            match self.pop() {
                QueuedItem::Message(message, holds_next) => {
                    if let Err(error) = guarded(|| handler.handle(message, holds_next)) {
                        self.discard(error);
                    }
                }
                QueuedItem::Nothing => {
                    let paused = guarded(|| {
                        handler.on_pause();
                        Ok(())
                    });
                    let mut queued = self.messages.lock();
                    queued.ended = queued.ended.take().or(paused.err());
                    if queued.waiting.is_empty() && queued.ended.is_none() {
                        queued.scheduled = false;
                        return;
                    }
                }
                QueuedItem::End(error) => {
                    let Some(handler) = slot.take() else { return };
                    self.poller.end(self.number);
                    let ended = guarded(|| {
                        handler.on_end(error);
                        Ok(())
                    });
                    if let Err(error) = ended {
                        tracing::error!(%error, "the end of a connection");
                    }
                    return self.queue.note_end();
                }
            }
        }
        drop(slot);
        self.queue.schedule(Arc::clone(self));
    }

    fn pop(&self) -> QueuedItem {
        let mut queued = self.messages.lock();
        let Some((message, size)) = queued.waiting.pop_front() else {
            return queued.ended.take().map_or(QueuedItem::Nothing, QueuedItem::End);
        };
        queued.bytes -= size;
        if queued.paused && queued.bytes < MAX_QUEUED_BYTES / 2 {
            queued.paused = false;
            self.poller.resume(self.number);
        }
        QueuedItem::Message(message, !queued.waiting.is_empty())
    }

    /// Drops the queued messages: the connection has ended by a fault in one before them.
    fn discard(&self, error: io::Error) {
        let mut queued = self.messages.lock();
        queued.waiting.clear();
        queued.bytes = 0;
        queued.ended = Some(error);
    }
}

enum QueuedItem {
    /// A message, and whether another one waits.
    Message(Message, bool),
    /// The end of the connection.
    End(io::Error),
    Nothing,
}

/// Handles messages until one may have to wait, and returns that one.
fn handle_quick(
    handler: &mut dyn ConnectionHandler,
    pop: &mut impl FnMut() -> io::Result<Option<(Message, usize, bool)>>,
) -> io::Result<Option<(Message, usize)>> {
    while let Some((message, size, holds_next)) = pop()? {
        if matches!(message, Message::KeepAlive) {
            continue;
        }
        if let Some(message) = handler.try_handle(message, holds_next)? {
            return Ok(Some((message, size)));
        }
    }
    Ok(None)
}

/// Runs a part of a handler. A panic there ends its connection, and no other one.
fn guarded<T>(run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(io::Error::other("its handler has panicked")))
}
