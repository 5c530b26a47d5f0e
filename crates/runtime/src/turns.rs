//! Turns of a loop, taken under one lock by a thread of its own and by others that have just given it something to do.
//!
//! The thread sleeps until mail comes or a turn is due. Whoever else left mail may take the turn itself: then nobody
//! need be woken. Only the thread ever waits for the lock; others that find it taken leave their mail and have the
//! thread look after it.

use crate::Clock;
use crate::parking::{Parking, Sleeper};
use parking_lot::Mutex;
use ripieno_base::Time;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

/// What is taken turn by turn.
pub(crate) trait Looped {
    /// Where it hears from others.
    type Inbox: Inbox;

    /// Takes in what has come, decides and performs. When the next turn is due, if nothing comes before.
    fn turn(&mut self) -> Time;

    /// Whether that was the last turn.
    fn has_ended(&self) -> bool;
}

/// Where a loop hears from others.
pub(crate) trait Inbox {
    fn is_empty(&self) -> bool;

    /// The bed of the loop's thread.
    fn parking(&self) -> &Parking;

    /// Has the loop's thread look after what is there.
    fn call(&self);

    /// Drops what is there and all that comes.
    fn close(&self);
}

/// A loop, and when its next turn is due.
pub(crate) struct Turns<L: Looped> {
    clock: Clock,
    inbox: Arc<L::Inbox>,
    /// None before it begins and once it has ended.
    looped: Mutex<Option<L>>,
    /// Nanoseconds, as in [`Time`]; written with the lock held.
    due: AtomicI64,
    /// What the thread slept for last: it is not woken for what comes later.
    sleeps_until: AtomicI64,
}

thread_local! {
    static TAKES_A_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is in a turn: the caller was called by what a turn does.
pub(crate) fn takes_a_turn() -> bool {
    TAKES_A_TURN.get()
}

impl<L: Looped> Turns<L> {
    pub(crate) fn new(clock: Clock, inbox: Arc<L::Inbox>) -> Turns<L> {
        let (due, sleeps_until) = (AtomicI64::new(Time::ORIGIN.0), AtomicI64::new(Time::ORIGIN.0));
        Turns { clock, inbox, looped: Mutex::default(), due, sleeps_until }
    }

    pub(crate) fn inbox(&self) -> &Arc<L::Inbox> {
        &self.inbox
    }

    /// Takes turns on its own thread until the loop ends, and does something after each.
    pub(crate) fn run(&self, looped: L, after: impl Fn()) {
        *self.looped.lock() = Some(looped);
        let mut sleeper = Sleeper::new(self.inbox.parking());
        while self.take_turn(&mut self.looped.lock()) {
            after();
            self.wait(&mut sleeper);
        }
    }

    /// Closes the way in and drops the loop.
    pub(crate) fn end(&self) {
        self.inbox.close();
        let ended = self.looped.lock().take();
        drop(ended);
    }

    /// Takes a turn on another thread than its own, which has left something in the inbox.
    pub(crate) fn take_or_call(&self) {
        if !self.has_taken_turn() {
            self.inbox.call();
        }
    }

    /// Takes a turn, if nobody else is at one. Whether nothing is left to the thread but what it waits for already.
    fn has_taken_turn(&self) -> bool {
        let Some(mut looped) = self.looped.try_lock() else { return false };
        // Of a new due time and a new sleep, whoever comes second sees the other: both are written before either is
        // read.
        self.take_turn(&mut looped)
            && self.due() >= Time(self.sleeps_until.load(Ordering::SeqCst))
            && self.inbox.is_empty()
    }

    /// Whether there will be another.
    fn take_turn(&self, looped: &mut Option<L>) -> bool {
        let turn = Turn::of(self, looped);
        let Some(looped) = &mut *turn.looped else { return false };
        self.due.store(looped.turn().0, Ordering::SeqCst);
        !looped.has_ended()
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

/// A turn that is being taken. If it ends in a panic nobody knows what is left half done, so there is no further one:
/// the loop is dropped, which answers everybody, and the thread ends.
struct Turn<'a, L: Looped> {
    turns: &'a Turns<L>,
    looped: &'a mut Option<L>,
}

impl<'a, L: Looped> Turn<'a, L> {
    fn of(turns: &'a Turns<L>, looped: &'a mut Option<L>) -> Turn<'a, L> {
        TAKES_A_TURN.set(true);
        Turn { turns, looped }
    }
}

impl<L: Looped> Drop for Turn<'_, L> {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.looped = None;
            self.turns.due.store(Time::ORIGIN.0, Ordering::SeqCst);
            self.turns.inbox.call();
        }
        TAKES_A_TURN.set(false);
    }
}
