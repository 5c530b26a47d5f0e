//! Event loops that run in turns under one lock. Their own thread takes the turns, or another
//! thread that has just sent mail.
//!
//! The loop's thread sleeps until mail arrives or a turn is due. A thread that sends mail may take
//! the turn itself, which avoids a wake-up. Only the loop's thread waits for the lock. Another
//! thread that finds the lock taken wakes the loop's thread instead.

pub(crate) mod core;
pub(crate) mod dispatcher;
pub(crate) mod joiner;
pub(crate) mod live_models;
mod mail_queue;
pub(crate) mod mailbox;
mod member_results;
pub(crate) mod model_ids;
pub(crate) mod parking;
pub(crate) mod scheduler_loop;
pub(crate) mod scheduler_thread;
pub(crate) mod schedulers;
pub(crate) mod suitable;
mod tasks_in_flight;
pub(crate) mod wakeup;

use crate::Clock;
use crate::event_loop::parking::{Parking, Sleeper};
use parking_lot::Mutex;
use ripieno_base::Time;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

/// A loop that runs in turns.
pub(crate) trait EventLoop {
    /// The inbox for messages from other threads.
    type Inbox: Inbox;

    /// Reads the inbox, decides and performs the decisions. Returns the time of the next turn; mail
    /// causes an earlier turn.
    fn turn(&mut self) -> Time;

    /// Whether the last turn ended the loop.
    fn has_ended(&self) -> bool;
}

/// The inbox of a loop.
pub(crate) trait Inbox {
    fn is_empty(&self) -> bool;

    /// The place where the loop's thread parks.
    fn parking(&self) -> &Parking;

    /// Wakes the loop's thread to read the inbox.
    fn wake(&self);

    /// Drops all current and future mail.
    fn close(&self);
}

/// Runs a loop and holds the time of its next turn.
pub(crate) struct LoopRunner<L: EventLoop> {
    clock: Clock,
    inbox: Arc<L::Inbox>,
    /// The loop; `None` before it begins and after it has ended.
    event_loop: Mutex<Option<L>>,
    /// Time of the next turn in nanoseconds, as in [`Time`]. Written only with the lock held.
    due: AtomicI64,
    /// Time until which the loop's thread sleeps. The thread need not be woken for a later turn.
    sleeps_until: AtomicI64,
}

thread_local! {
    static IN_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a turn, for example in a callback of an answer.
pub(crate) fn in_turn() -> bool {
    IN_TURN.get()
}

impl<L: EventLoop> LoopRunner<L> {
    pub(crate) fn new(clock: Clock, inbox: Arc<L::Inbox>) -> LoopRunner<L> {
        let (due, sleeps_until) = (AtomicI64::new(Time::ORIGIN.0), AtomicI64::new(Time::ORIGIN.0));
        LoopRunner { clock, inbox, event_loop: Mutex::default(), due, sleeps_until }
    }

    pub(crate) fn inbox(&self) -> &Arc<L::Inbox> {
        &self.inbox
    }

    /// Takes turns on the calling thread until the loop ends. Calls `after` after each turn.
    pub(crate) fn run(&self, event_loop: L, after: impl Fn()) {
        *self.event_loop.lock() = Some(event_loop);
        let mut sleeper = Sleeper::new(self.inbox.parking());
        while self.take_turn(&mut self.event_loop.lock()) {
            after();
            self.wait(&mut sleeper);
        }
    }

    /// Closes the inbox and drops the loop.
    pub(crate) fn end(&self) {
        self.inbox.close();
        let ended = self.event_loop.lock().take();
        drop(ended);
    }

    /// Takes a turn on a thread that has put mail into the inbox. If that is not possible, wakes
    /// the loop's thread.
    pub(crate) fn turn_or_wake(&self) {
        if !self.try_turn() {
            self.inbox.wake();
        }
    }

    /// Takes a turn, unless another thread is in one. Returns false if the loop's thread must be
    /// woken: no turn was taken, the next turn is earlier than its sleep ends, or mail has arrived.
    fn try_turn(&self) -> bool {
        let Some(mut event_loop) = self.event_loop.try_lock() else { return false };
        // Each side writes its own of `due` and `sleeps_until` before it reads the other, so the
        // later writer sees both.
        self.take_turn(&mut event_loop)
            && self.due() >= Time(self.sleeps_until.load(Ordering::SeqCst))
            && self.inbox.is_empty()
    }

    /// Takes a turn. Returns whether another turn will follow.
    fn take_turn(&self, event_loop: &mut Option<L>) -> bool {
        let turn = RunningTurn::of(self, event_loop);
        let Some(event_loop) = &mut *turn.event_loop else { return false };
        self.due.store(event_loop.turn().0, Ordering::SeqCst);
        !event_loop.has_ended()
    }

    fn due(&self) -> Time {
        Time(self.due.load(Ordering::SeqCst))
    }

    /// Sleeps until there is mail or a turn is due.
    fn wait(&self, sleeper: &mut Sleeper) {
        let has_mail = || !self.inbox.is_empty();
        while !has_mail() && self.clock.now() < self.due() {
            let due = self.due();
            self.sleeps_until.store(due.0, Ordering::SeqCst);
            sleeper.wait(self.inbox.parking(), self.clock.instant(due), || has_mail() || self.due() < due);
        }
    }
}

/// A turn in progress. After a panic the loop's state may be inconsistent. So the loop is dropped,
/// which answers all clients, and its thread ends.
struct RunningTurn<'a, L: EventLoop> {
    runner: &'a LoopRunner<L>,
    event_loop: &'a mut Option<L>,
}

impl<'a, L: EventLoop> RunningTurn<'a, L> {
    fn of(runner: &'a LoopRunner<L>, event_loop: &'a mut Option<L>) -> RunningTurn<'a, L> {
        IN_TURN.set(true);
        RunningTurn { runner, event_loop }
    }
}

impl<L: EventLoop> Drop for RunningTurn<'_, L> {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.event_loop = None;
            self.runner.due.store(Time::ORIGIN.0, Ordering::SeqCst);
            self.runner.inbox.wake();
        }
        IN_TURN.set(false);
    }
}
