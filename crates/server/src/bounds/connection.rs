//! What one connection is doing, and whether it still may.
//!
//! Nothing here waits: calls, answers and the socket note what happens, and a tick of the connection's task asks
//! [`Connection::overdue`]. A connection is idle while it has no call; only idle ones are closed to make room for others.

use super::budget::{Budget, Reservation};
use crate::config::ServerConfig;
use crate::problem::Problem;
use hyper::Version;
use parking_lot::Mutex;
use slab::Slab;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// Bytes a second that a client must take of an answer, beyond the time that any answer may take.
const LEAST_RATE: u64 = 256 << 10;
/// HTTP/2 flow control: what a client may send on all streams of a connection before it is read. A connection with streams that
/// are not read holds this much, so that a call that pauses its reading reserves it.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// Requests of a pipeline that are answered while the server goes down.
const MAX_LAST_ANSWERS: usize = 64;
/// Services whose health one connection may watch at once: every model of a large server.
const MAX_WATCHES: usize = 64;

/// A connection, shared by its task, its calls and its unsent answers.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: IpAddr,
    /// What its calls may hold.
    pub(crate) budget: Arc<Budget>,
    /// What its streams may leave unread, while any of them is not read.
    window: Mutex<Weak<Reservation>>,
    write_timeout: Duration,
    facts: Mutex<Facts>,
    /// Turns at watching the health of a service.
    pub(crate) watches: Arc<Semaphore>,
    /// Told when its place is needed.
    pub(crate) evicted: Notify,
}

#[derive(Debug)]
struct Facts {
    /// Calls whose answers have not been handed over.
    calls: usize,
    /// Calls whose handler has not answered.
    handling: usize,
    /// Calls whose body has not been read to its end.
    unread: usize,
    /// HTTP/1, where a client may half-close.
    http1: bool,
    /// HTTP/1.1, where interim answers can be sent.
    interim: bool,
    /// Whether all that has come was taken: hyper asks for more only then.
    took_all: bool,
    /// Answers that were given while the server goes down.
    last_answers: usize,
    /// Whether any call has come.
    used: bool,
    /// Since when it has no call, and nothing to send.
    idle_since: Instant,
    /// When the peer must have taken what is ready for it, by ticket.
    unsent: Slab<Instant>,
    /// Since when the kernel takes nothing.
    blocked_since: Option<Instant>,
    /// Waits for the last call's end.
    waits_for_end: Option<Waker>,
}

/// Bytes on their way to the peer, which has until a deadline to take them.
#[derive(Debug)]
pub(crate) struct Unsent {
    connection: Arc<Connection>,
    ticket: usize,
}

impl Connection {
    pub(crate) fn new(peer: IpAddr, budget: Arc<Budget>, config: &ServerConfig) -> Arc<Connection> {
        let facts = Facts {
            calls: 0,
            handling: 0,
            unread: 0,
            http1: false,
            interim: false,
            took_all: false,
            last_answers: 0,
            used: false,
            idle_since: Instant::now(),
            unsent: Slab::new(),
            blocked_since: None,
            waits_for_end: None,
        };
        let (window, facts, evicted) = (Mutex::default(), Mutex::new(facts), Notify::new());
        let watches = Arc::new(Semaphore::new(MAX_WATCHES));
        Arc::new(Connection { peer, budget, window, write_timeout: config.write_timeout, facts, watches, evicted })
    }

    /// Room for what may come while a stream is not read. Flow control bounds that for all streams together, so they share it.
    pub(crate) fn pause(&self) -> Result<Arc<Reservation>, Problem> {
        let mut window = self.window.lock();
        if let Some(held) = window.upgrade() {
            return Ok(held);
        }
        let held = Arc::new(self.budget.reserve(CONNECTION_WINDOW_BYTES as usize)?);
        *window = Arc::downgrade(&held);
        Ok(held)
    }

    /// It has its place; the wait for that was not its client's fault.
    pub(crate) fn placed(&self) {
        self.facts.lock().idle_since = Instant::now();
    }

    /// A call begins; its head has come.
    pub(crate) fn begin(&self, version: Version, has_body: bool) {
        let http1 = version < Version::HTTP_2;
        let mut facts = self.facts.lock();
        facts.calls += 1;
        facts.handling += 1;
        // One after the other in HTTP/1: hyper may have thrown away what the last one left.
        facts.unread = usize::from(has_body) + if http1 { 0 } else { facts.unread };
        facts.http1 = http1;
        facts.interim = version == Version::HTTP_11;
        facts.used = true;
    }

    /// A call's body has come, or is not wanted any more.
    pub(crate) fn body_read(&self) {
        let mut facts = self.facts.lock();
        facts.unread = facts.unread.saturating_sub(1);
    }

    /// A call's handler has answered, or was dropped.
    pub(crate) fn handled(&self) {
        self.facts.lock().handling -= 1;
    }

    /// A call's answer has been handed over, or nobody wants it any more.
    pub(crate) fn end(&self) {
        let mut facts = self.facts.lock();
        facts.calls -= 1;
        facts.note_end();
    }

    /// Whether a peer that sends no more still waits for an answer; then `waker` is told of the end of the last call.
    pub(crate) fn owes_answers(&self, waker: &Waker) -> bool {
        let mut facts = self.facts.lock();
        let owes = facts.http1 && !facts.is_idle() && facts.unread == 0;
        if owes {
            facts.waits_for_end = Some(waker.clone());
        }
        owes
    }

    /// Whether nothing of the one answer that is owed has been written, and the client knows interim answers.
    pub(crate) fn may_have_interim(&self) -> bool {
        let facts = self.facts.lock();
        facts.interim && facts.handling == 1 && facts.calls == 1
    }

    /// Whether the body of the last call was left unread, so that the connection cannot go on.
    pub(crate) fn has_unread_body(&self) -> bool {
        let facts = self.facts.lock();
        facts.http1 && facts.unread > 0
    }

    /// Notes whether hyper got anything when it asked for more.
    pub(crate) fn set_took_all(&self, took_all: bool) {
        self.facts.lock().took_all = took_all;
    }

    /// Of an HTTP/1 answer that is given while the server goes down: whether the connection ends with it. Not while further
    /// requests have come, as many as a pipeline may have.
    pub(crate) fn ends_with_answer(&self) -> bool {
        let mut facts = self.facts.lock();
        facts.last_answers += 1;
        facts.took_all || facts.last_answers > MAX_LAST_ANSWERS
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        let mut facts = self.facts.lock();
        facts.blocked_since = blocked.then(|| facts.blocked_since.unwrap_or_else(Instant::now));
    }

    /// Since when it is idle; none if it has a call, or something to send.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let facts = self.facts.lock();
        facts.is_idle().then_some(facts.idle_since)
    }

    /// Gives the peer time to take `bytes`, until the ticket is dropped.
    pub(crate) fn unsent(self: &Arc<Connection>, bytes: usize) -> Unsent {
        let time = self.write_timeout + Duration::from_secs(bytes as u64 / LEAST_RATE);
        let ticket = self.facts.lock().unsent.insert(Instant::now() + time);
        Unsent { connection: self.clone(), ticket }
    }

    /// Since when nothing is under way in either direction that is known to be a call, or part of one's answer.
    pub(crate) fn at_rest_since(&self) -> Option<Instant> {
        let facts = self.facts.lock();
        (facts.is_idle() && facts.blocked_since.is_none()).then_some(facts.idle_since)
    }

    /// Whether its peer can be told that it is about to end: by HTTP/2, which has a message for that.
    pub(crate) fn can_announce_end(&self) -> bool {
        let facts = self.facts.lock();
        facts.used && !facts.http1
    }

    /// Why the connection is to be closed, if it is.
    pub(crate) fn overdue(&self, now: Instant, config: &ServerConfig) -> Option<&'static str> {
        let facts = self.facts.lock();
        let past = |since: Instant, timeout| now.saturating_duration_since(since) > timeout;
        if !facts.used && past(facts.idle_since, config.header_timeout) {
            return Some("it sent no request");
        }
        if facts.is_idle() && past(facts.idle_since, config.idle_timeout) {
            return Some("it is idle");
        }
        if facts.blocked_since.is_some_and(|since| past(since, config.write_timeout)) {
            return Some("it reads nothing");
        }
        facts.unsent.iter().any(|(_, &due)| now > due).then_some("it reads its answers too slowly")
    }
}

impl Facts {
    fn is_idle(&self) -> bool {
        self.calls == 0 && self.unsent.is_empty()
    }

    fn note_end(&mut self) {
        if self.is_idle() {
            self.idle_since = Instant::now();
            if let Some(waker) = self.waits_for_end.take() {
                waker.wake();
            }
        }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        let mut facts = self.connection.facts.lock();
        facts.unsent.remove(self.ticket);
        facts.note_end();
    }
}
