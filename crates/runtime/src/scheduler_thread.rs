//! Who takes the turns of a loop that decides: one thread of its own, and the threads of devices.
//!
//! The end of a task is mail, but a device's thread that would have nothing to do until that mail is read takes the
//! turn itself: its next task is there when it looks, and the answer leaves one wake-up earlier, which on an idle
//! machine costs more than most decisions. A thread that holds its next task already runs that instead. Likewise a
//! device's thread that has nothing to do is woken for a new request, if there is one: it will most likely be the one
//! to run it. Threads of the front end never take a turn: they give way to devices, and whoever gave way with the lock
//! held would hold up everybody.

use crate::answer::Gate;
use crate::devices::KnownIdle;
use crate::jobs::Call;
use crate::mailbox::{Mail, Mailbox};
use crate::scheduler_loop::SchedulerLoop;
use crate::shards::{Exchange, Then};
use crate::turns::{Inbox, Turns};
use ripieno_base::DeviceId;
use ripieno_executor::{TaskResult, Work};
use std::sync::{Arc, Weak};

/// A loop that decides, and who else takes its turns.
pub(crate) struct SharedScheduler {
    turns: Arc<Turns<SchedulerLoop>>,
    idle: KnownIdle,
    /// Takes a turn on the thread of a device.
    turn: Work,
    /// Where it asks for devices, if it is one of several.
    exchange: Option<Arc<Exchange<SchedulerLoop>>>,
}

impl SharedScheduler {
    pub(crate) fn new(
        turns: Arc<Turns<SchedulerLoop>>,
        exchange: Option<Arc<Exchange<SchedulerLoop>>>,
    ) -> Arc<SharedScheduler> {
        Arc::new_cyclic(|own: &Weak<SharedScheduler>| {
            let own = own.clone();
            let turn = Arc::new(move || own.upgrade().into_iter().for_each(|own| own.take_turn()));
            SharedScheduler { turns, idle: KnownIdle::default(), turn, exchange }
        })
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        self.turns.inbox()
    }

    pub(crate) fn idle(&self) -> KnownIdle {
        Arc::clone(&self.idle)
    }

    /// Takes turns until the loop is told to stop. Dropping it then answers whoever has not been answered.
    pub(crate) fn run(&self, looped: SchedulerLoop, gate: Arc<Gate>) {
        let _closing = Closing(self, gate);
        self.turns.run(looped, || self.follow(Then::Call));
    }

    /// A device has ended a task. Called by the device's own thread.
    pub(crate) fn on_end(&self, device: DeviceId, result: TaskResult) {
        let holds_next = result.holds_next;
        self.mailbox().put(Mail::Done(device, result));
        if holds_next {
            self.mailbox().call();
        } else {
            self.take_turn();
        }
    }

    /// A request has come, and [`SharedScheduler::look`] follows.
    pub(crate) fn leave(&self, call: Box<Call>) {
        self.mailbox().put(Mail::Submit(call));
    }

    /// Has what was left looked after. Called by a thread of the front end.
    pub(crate) fn look(&self) {
        let idle = self.idle.lock().clone();
        if !idle.is_some_and(|device| device.run_idle(&self.turn)) {
            self.mailbox().call();
        }
    }

    /// On the thread of a device: takes a turn, and what follows of it.
    fn take_turn(&self) {
        self.turns.take_or_call();
        self.follow(Then::TakeTurns);
    }

    /// Asks for devices, if the turn had any to ask for.
    fn follow(&self, then: Then) {
        if let Some(exchange) = &self.exchange {
            exchange.follow(then);
        }
    }
}

/// Closes the way in when the thread ends, be it by a panic: whoever waits for it is answered. No shard goes on without
/// another.
struct Closing<'a>(&'a SharedScheduler, Arc<Gate>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.1.close();
        self.0.turns.end();
        // It holds this in turn.
        let idle = self.0.idle.lock().take();
        drop(idle);
        if let Some(exchange) = &self.0.exchange {
            exchange.end_shards();
        }
    }
}
