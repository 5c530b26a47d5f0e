//! State of a client connection, and its timeouts.
//!
//! Nothing here blocks: calls, responses and the socket record events, and a timer of the
//! connection's task checks [`ClientConnection::overdue`]. A connection without calls is idle; only
//! idle connections are closed to make room for others.

use super::budget::{MemoryBudget, Reservation};
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

/// Minimum rate in bytes per second at which a client must read a response, beyond the fixed write
/// timeout.
const MIN_READ_BYTES_PER_S: u64 = 256 << 10;
/// HTTP/2 flow-control window of a connection: the bytes that a client may send on all streams
/// before they are read. Unread streams can hold this much, so a call that pauses reading reserves
/// it.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// Maximum number of pipelined requests answered during shutdown.
const MAX_LAST_ANSWERS: usize = 64;
/// Maximum number of health watches per connection, enough for every model of a large server.
const MAX_WATCHES: usize = 64;

/// A client connection, shared by its task, its calls and its unsent responses.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(crate) peer: IpAddr,
    /// Memory budget of its calls.
    pub(crate) budget: Arc<MemoryBudget>,
    /// Reservation for unread data of all streams, while any of them is paused.
    window: Mutex<Weak<Reservation>>,
    write_timeout: Duration,
    activity: Mutex<ConnectionActivity>,
    /// Permits for health watches.
    pub(crate) watches: Arc<Semaphore>,
    /// Notified when the connection must close to make room.
    pub(crate) evicted: Notify,
}

#[derive(Debug)]
struct ConnectionActivity {
    /// Calls whose responses are not handed over yet.
    calls: usize,
    /// Calls whose handlers are running.
    handling: usize,
    /// Calls whose bodies are not read to the end.
    unread: usize,
    /// Whether the protocol is HTTP/1, where a client may half-close.
    http1: bool,
    /// Whether the protocol is HTTP/1.1, which has interim responses.
    interim: bool,
    /// Whether hyper has consumed all received bytes, which it has when it reads again without
    /// getting any.
    took_all: bool,
    /// Number of responses given during shutdown.
    last_answers: usize,
    /// Whether any call has arrived.
    used: bool,
    /// Time since which there is no call and nothing to send.
    idle_since: Instant,
    /// Deadlines by which the peer must accept data, by ticket.
    unsent: Slab<Instant>,
    /// Time since which the kernel accepts no data.
    blocked_since: Option<Instant>,
    /// Waker of the task that waits for the end of the last call.
    waits_for_end: Option<Waker>,
}

/// Data on its way to the peer, with a deadline for the peer to accept it.
#[derive(Debug)]
pub(crate) struct Unsent {
    connection: Arc<ClientConnection>,
    ticket: usize,
}

impl ClientConnection {
    pub(crate) fn new(peer: IpAddr, budget: Arc<MemoryBudget>, config: &ServerConfig) -> Arc<ClientConnection> {
        let activity = ConnectionActivity {
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
        let (window, activity, evicted) = (Mutex::default(), Mutex::new(activity), Notify::new());
        let watches = Arc::new(Semaphore::new(MAX_WATCHES));
        Arc::new(ClientConnection {
            peer,
            budget,
            window,
            write_timeout: config.write_timeout,
            activity,
            watches,
            evicted,
        })
    }

    /// Reserves memory for data that arrives while a stream is not read. Flow control bounds the
    /// data of all streams together, so they share the reservation.
    pub(crate) fn pause(&self) -> Result<Arc<Reservation>, Problem> {
        let mut window = self.window.lock();
        if let Some(held) = window.upgrade() {
            return Ok(held);
        }
        let held = Arc::new(self.budget.reserve(CONNECTION_WINDOW_BYTES as usize)?);
        *window = Arc::downgrade(&held);
        Ok(held)
    }

    /// Resets the idle time, since waiting for a slot is not the client's fault.
    pub(crate) fn on_slot_acquired(&self) {
        self.activity.lock().idle_since = Instant::now();
    }

    /// Records the start of a call, after its head has arrived.
    pub(crate) fn begin(&self, version: Version, has_body: bool) {
        let http1 = version < Version::HTTP_2;
        let mut activity = self.activity.lock();
        activity.calls += 1;
        activity.handling += 1;
        // HTTP/1 calls are sequential: hyper may have discarded the rest of the previous body.
        activity.unread = usize::from(has_body) + if http1 { 0 } else { activity.unread };
        activity.http1 = http1;
        activity.interim = version == Version::HTTP_11;
        activity.used = true;
    }

    /// Records that a call's body was read or is no longer needed.
    pub(crate) fn body_read(&self) {
        let mut activity = self.activity.lock();
        activity.unread = activity.unread.saturating_sub(1);
    }

    /// Records that a call's handler finished or was dropped.
    pub(crate) fn handled(&self) {
        self.activity.lock().handling -= 1;
    }

    /// Records that a call's response was handed over or dropped.
    pub(crate) fn end(&self) {
        let mut activity = self.activity.lock();
        activity.calls -= 1;
        activity.note_end();
    }

    /// Returns true if a peer that sends no more still waits for a response; `waker` is then woken
    /// when the last call ends.
    pub(crate) fn owes_answers(&self, waker: &Waker) -> bool {
        let mut activity = self.activity.lock();
        let owes = activity.http1 && !activity.is_idle() && activity.unread == 0;
        if owes {
            activity.waits_for_end = Some(waker.clone());
        }
        owes
    }

    /// Returns true if an interim response can be sent: nothing of the only pending response is
    /// written, and the protocol has interim responses.
    pub(crate) fn may_have_interim(&self) -> bool {
        let activity = self.activity.lock();
        activity.interim && activity.handling == 1 && activity.calls == 1
    }

    /// Returns true if the last call's body was left unread, so that the connection cannot be
    /// reused.
    pub(crate) fn has_unread_body(&self) -> bool {
        let activity = self.activity.lock();
        activity.http1 && activity.unread > 0
    }

    /// Records whether hyper got no data when it read.
    pub(crate) fn set_took_all(&self, took_all: bool) {
        self.activity.lock().took_all = took_all;
    }

    /// Returns true if the connection should close after this HTTP/1 response given during
    /// shutdown: no further requests have arrived, or too many were answered already.
    pub(crate) fn ends_with_answer(&self) -> bool {
        let mut activity = self.activity.lock();
        activity.last_answers += 1;
        activity.took_all || activity.last_answers > MAX_LAST_ANSWERS
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        let mut activity = self.activity.lock();
        activity.blocked_since = blocked.then(|| activity.blocked_since.unwrap_or_else(Instant::now));
    }

    /// Returns the time since which the connection is idle; `None` if it has a call or something to
    /// send.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let activity = self.activity.lock();
        activity.is_idle().then_some(activity.idle_since)
    }

    /// Starts a deadline for the peer to accept `bytes`, until the ticket is dropped.
    pub(crate) fn unsent(self: &Arc<ClientConnection>, bytes: usize) -> Unsent {
        let time = self.write_timeout + Duration::from_secs(bytes as u64 / MIN_READ_BYTES_PER_S);
        let ticket = self.activity.lock().unsent.insert(Instant::now() + time);
        Unsent { connection: self.clone(), ticket }
    }

    /// Returns the time since which there is neither a call nor response data in flight.
    pub(crate) fn at_rest_since(&self) -> Option<Instant> {
        let activity = self.activity.lock();
        (activity.is_idle() && activity.blocked_since.is_none()).then_some(activity.idle_since)
    }

    /// Returns true if the peer can be notified of the connection's end, which only HTTP/2 can do.
    pub(crate) fn can_announce_end(&self) -> bool {
        let activity = self.activity.lock();
        activity.used && !activity.http1
    }

    /// Returns the reason for which the connection must be closed, if any.
    pub(crate) fn overdue(&self, now: Instant, config: &ServerConfig) -> Option<&'static str> {
        let activity = self.activity.lock();
        let past = |since: Instant, timeout| now.saturating_duration_since(since) > timeout;
        if !activity.used && past(activity.idle_since, config.header_timeout) {
            return Some("it sent no request");
        }
        if activity.is_idle() && past(activity.idle_since, config.idle_timeout) {
            return Some("it is idle");
        }
        if activity.blocked_since.is_some_and(|since| past(since, config.write_timeout)) {
            return Some("it reads nothing");
        }
        activity.unsent.iter().any(|(_, &due)| now > due).then_some("it reads its answers too slowly")
    }
}

impl ConnectionActivity {
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
        let mut activity = self.connection.activity.lock();
        activity.unsent.remove(self.ticket);
        activity.note_end();
    }
}
