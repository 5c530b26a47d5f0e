//! Who takes the turns of the loop that decides: one thread of its own, and the threads of devices.
//!
//! The thread sleeps until mail comes or a turn is due. The end of a task is mail, too, but a device's thread that would have
//! nothing to do until that mail is read takes the turn itself: nobody need be woken, its next task is there when it looks, and
//! the answer leaves one wake-up earlier, which on an idle machine costs more than most decisions. A thread that holds its next
//! task already runs that instead. Likewise a device's thread that has nothing to do is woken for a new request, if there is
//! one: it will most likely be the one to run it. Threads of the front end never take a turn: they give way to devices, and whoever gave way
//! with the lock held would hold up everybody.
//!
//! Turns are taken one after the other, under one lock. Only the thread ever waits for it; a device's thread that finds it
//! taken leaves its mail and has the thread look after it.

use crate::Clock;
use crate::answer::Gate;
use crate::devices::Shared;
use crate::jobs::Call;
use crate::mailbox::{Mail, Mailbox};
use crate::parking::Sleeper;
use crate::scheduler_loop::SchedulerLoop;
use parking_lot::Mutex;
use ripieno_base::{DeviceId, Time};
use ripieno_executor::{TaskResult, Work};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

/// The loop, and when its next turn is due.
pub(crate) struct SharedScheduler {
    clock: Clock,
    mailbox: Arc<Mailbox>,
    /// None before it begins and once it has ended.
    scheduler: Mutex<Option<SchedulerLoop>>,
    /// Nanoseconds, as in [`Time`]; written with the lock held.
    due: AtomicI64,
    /// What the thread slept for last: it is not woken for what comes later.
    sleeps_until: AtomicI64,
    /// A device that held nothing after the last turn.
    idle: Mutex<Option<Shared>>,
    /// Takes a turn on the thread of a device.
    turn: Work,
}

thread_local! {
    static TAKES_A_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is in a turn: the caller was called by what a turn does.
pub(crate) fn takes_a_turn() -> bool {
    TAKES_A_TURN.get()
}

impl SharedScheduler {
    pub(crate) fn new(clock: Clock, mailbox: Arc<Mailbox>) -> Arc<SharedScheduler> {
        Arc::new_cyclic(|own: &Weak<SharedScheduler>| {
            let own = own.clone();
            let turn = Arc::new(move || own.upgrade().into_iter().for_each(|own| own.take_or_call()));
            let (due, sleeps_until) = (AtomicI64::new(Time::ORIGIN.0), AtomicI64::new(Time::ORIGIN.0));
            let (scheduler, idle) = (Mutex::default(), Mutex::default());
            SharedScheduler { clock, mailbox, scheduler, due, sleeps_until, idle, turn }
        })
    }

    /// Takes turns until the loop is told to stop. Dropping it then answers whoever has not been answered.
    pub(crate) fn run(&self, scheduler: SchedulerLoop, gate: Arc<Gate>) {
        *self.scheduler.lock() = Some(scheduler);
        let _closing = Closing(self, gate);
        let mut sleeper = Sleeper::new(&self.mailbox.parking);
        while self.take_turn(&mut self.scheduler.lock()) {
            self.wait(&mut sleeper);
        }
    }

    /// A device has ended a task. Called by the device's own thread.
    pub(crate) fn on_end(&self, device: DeviceId, result: TaskResult) {
        let holds_next = result.holds_next;
        self.mailbox.put(Mail::Done(device, result));
        if holds_next {
            self.mailbox.call();
        } else {
            self.take_or_call();
        }
    }

    /// A request has come. Called by a thread of the front end.
    pub(crate) fn on_request(&self, call: Box<Call>) {
        self.mailbox.put(Mail::Submit(call));
        let idle = self.idle.lock().clone();
        if !idle.is_some_and(|device| device.run_idle(&self.turn)) {
            self.mailbox.call();
        }
    }

    fn take_or_call(&self) {
        if !self.has_taken_turn() {
            self.mailbox.call();
        }
    }

    /// Takes a turn, if nobody else is at one. Whether nothing is left to the thread but what it waits for already.
    fn has_taken_turn(&self) -> bool {
        let Some(mut scheduler) = self.scheduler.try_lock() else { return false };
        // Of a new due time and a new sleep, whoever comes second sees the other: both are written before either is read.
        self.take_turn(&mut scheduler)
            && self.due() >= Time(self.sleeps_until.load(Ordering::SeqCst))
            && self.mailbox.is_empty()
    }

    /// Whether there will be another.
    fn take_turn(&self, scheduler: &mut Option<SchedulerLoop>) -> bool {
        let turn = Turn::of(self, scheduler);
        let Some(scheduler) = &mut *turn.scheduler else { return false };
        let due = scheduler.turn();
        self.due.store(due.0, Ordering::SeqCst);
        let (idle, mut known) = (scheduler.fleet.seats.idle(), self.idle.lock());
        if idle.map(Arc::as_ptr).map(<*const _>::cast::<()>) != known.as_ref().map(Arc::as_ptr).map(<*const _>::cast) {
            *known = idle.cloned();
        }
        !scheduler.stopped
    }

    fn due(&self) -> Time {
        Time(self.due.load(Ordering::SeqCst))
    }

    /// Sleeps until there is mail or a turn is due.
    fn wait(&self, sleeper: &mut Sleeper) {
        let has_mail = || !self.mailbox.is_empty();
        while !has_mail() && self.clock.now() < self.due() {
            let due = self.due();
            self.sleeps_until.store(due.0, Ordering::SeqCst);
            sleeper.wait(&self.mailbox.parking, self.clock.instant(due), || has_mail() || self.due() < due);
        }
    }
}

/// A turn that is being taken. If it ends in a panic nobody knows what is left half done, so there is no further one: the
/// loop is dropped, which answers everybody, and the thread ends.
struct Turn<'a> {
    shared: &'a SharedScheduler,
    scheduler: &'a mut Option<SchedulerLoop>,
}

impl<'a> Turn<'a> {
    fn of(shared: &'a SharedScheduler, scheduler: &'a mut Option<SchedulerLoop>) -> Turn<'a> {
        TAKES_A_TURN.set(true);
        Turn { shared, scheduler }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.scheduler = None;
            self.shared.due.store(Time::ORIGIN.0, Ordering::SeqCst);
            self.shared.mailbox.call();
        }
        TAKES_A_TURN.set(false);
    }
}

/// Closes the way in when the thread ends, be it by a panic: whoever waits for it is answered.
struct Closing<'a>(&'a SharedScheduler, Arc<Gate>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.1.close();
        self.0.mailbox.close();
        let ended = self.0.scheduler.lock().take();
        drop(ended);
        // It holds this in turn.
        let idle = self.0.idle.lock().take();
        drop(idle);
    }
}
