//! Threads that take the turns of a scheduler loop: one of its own, and the threads of devices.
//!
//! The end of a task is mail, but a device's thread that would idle until that mail is read takes
//! the turn itself: its next task is ready immediately, and the answer leaves one wake-up earlier,
//! which on an idle machine costs more than most decisions. A thread that already holds its next
//! task runs that instead. Likewise an idle device thread is woken for a new request: it will most
//! likely be the one to run it. Server threads never take a turn: the operating system may preempt
//! them in favour of devices, and one preempted with the lock held would delay every request.

use crate::answer::DrainGate;
use crate::devices::KnownIdle;
use crate::event_loop::{Inbox, LoopRunner};
use crate::jobs::ClientCall;
use crate::mailbox::{Mail, Mailbox};
use crate::scheduler_loop::SchedulerLoop;
use crate::shards::{GrantDelivery, ShardRouter};
use ripieno_base::DeviceId;
use ripieno_executor::{IdleWork, TaskResult};
use std::sync::{Arc, Weak};

/// A scheduler loop, and the means by which other threads take its turns.
pub(crate) struct SharedScheduler {
    runner: Arc<LoopRunner<SchedulerLoop>>,
    idle: KnownIdle,
    /// Takes a turn on the thread of a device.
    turn: IdleWork,
    /// Requests devices from the matchmaker, if this is one of several shards.
    router: Option<Arc<ShardRouter<SchedulerLoop>>>,
}

impl SharedScheduler {
    pub(crate) fn new(
        runner: Arc<LoopRunner<SchedulerLoop>>,
        router: Option<Arc<ShardRouter<SchedulerLoop>>>,
    ) -> Arc<SharedScheduler> {
        Arc::new_cyclic(|own: &Weak<SharedScheduler>| {
            let own = own.clone();
            let turn = Arc::new(move || {
                if let Some(own) = own.upgrade() {
                    own.take_turn();
                }
            });
            SharedScheduler { runner, idle: KnownIdle::default(), turn, router }
        })
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        self.runner.inbox()
    }

    pub(crate) fn idle(&self) -> KnownIdle {
        Arc::clone(&self.idle)
    }

    /// Takes turns until the loop is stopped. Dropping the loop then answers all unanswered
    /// clients.
    pub(crate) fn run(&self, event_loop: SchedulerLoop, gate: Arc<DrainGate>) {
        let _closing = CloseOnExit(self, gate);
        self.runner.run(event_loop, || self.run_matchmaker(GrantDelivery::Wake));
    }

    /// Handles the end of a task. Called by the device's own thread.
    pub(crate) fn on_end(&self, device: DeviceId, result: TaskResult) {
        let holds_next = result.holds_next;
        self.mailbox().put(Mail::Done(device, result));
        if holds_next {
            self.mailbox().wake();
        } else {
            self.take_turn();
        }
    }

    /// Enqueues an admitted request; [`SharedScheduler::wake`] must follow.
    pub(crate) fn enqueue(&self, call: Box<ClientCall>) {
        self.mailbox().put(Mail::Submit(call));
    }

    /// Wakes a thread to handle the mailbox. Called by a server thread.
    pub(crate) fn wake(&self) {
        let idle = self.idle.lock().clone();
        if !idle.is_some_and(|device| device.run_idle(&self.turn)) {
            self.mailbox().wake();
        }
    }

    /// Takes a turn on the thread of a device, and the matchmaker's turns that it causes.
    fn take_turn(&self) {
        self.runner.turn_or_wake();
        self.run_matchmaker(GrantDelivery::TakeTurns);
    }

    /// Runs the matchmaker, if the turn sent it anything.
    fn run_matchmaker(&self, then: GrantDelivery) {
        if let Some(router) = &self.router {
            router.run_matchmaker(then);
        }
    }
}

/// Closes the gate and the loop when the thread ends, even by a panic, so that every client is
/// answered. No shard continues without the others.
struct CloseOnExit<'a>(&'a SharedScheduler, Arc<DrainGate>);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        self.1.close();
        self.0.runner.end();
        // The idle device refers back to this scheduler, so it is released here.
        let idle = self.0.idle.lock().take();
        drop(idle);
        if let Some(router) = &self.0.router {
            router.end_shards();
        }
    }
}
