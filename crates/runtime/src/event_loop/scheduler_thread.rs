//! Threads that take the turns of a scheduler loop: the loop's own thread, and the threads of
//! devices.
//!
//! The end of a task is a message to the loop. If the device's thread has no next task, it takes
//! the turn itself. Then its next task is ready immediately, and the answer is sent one wake-up
//! earlier. On an idle machine, a wake-up costs more than most decisions. A thread that already
//! holds its next task runs this task and only wakes the loop.
//!
//! A new request wakes an idle device's thread, because this device will most likely run the
//! request. Server threads never take a turn. The operating system may preempt them in favour of
//! devices, and a thread preempted with the lock held would delay every request.

use crate::devices::KnownIdle;
use crate::event_loop::mailbox::{Mail, Mailbox};
use crate::event_loop::scheduler_loop::SchedulerLoop;
use crate::event_loop::{Inbox, LoopRunner};
use crate::requests::answer::DrainGate;
use crate::requests::jobs::LiveJob;
use crate::shards::{GrantDelivery, ShardRouter};
use ripieno_base::DeviceId;
use ripieno_executor::{IdleWork, TaskResult};
use std::sync::{Arc, Weak};

/// A scheduler loop whose turns other threads can take.
pub(crate) struct SharedScheduler {
    runner: Arc<LoopRunner<SchedulerLoop>>,
    idle: KnownIdle,
    /// Closure that takes a turn, for the thread of an idle device.
    turn: IdleWork,
    /// Router to the matchmaker, if the scheduler is one of several shards.
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

    /// Takes turns until the loop is stopped, then drops the loop, which answers all unanswered
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

    /// Enqueues an admitted request. The caller must then call [`SharedScheduler::wake`].
    pub(crate) fn enqueue(&self, call: Box<LiveJob>) {
        self.mailbox().put(Mail::Submit(call));
    }

    /// Wakes an idle device's thread or the loop's thread to read the mailbox. Called by server
    /// threads.
    pub(crate) fn wake(&self) {
        let idle = self.idle.lock().clone();
        if !idle.is_some_and(|device| device.run_idle(&self.turn)) {
            self.mailbox().wake();
        }
    }

    /// Takes a turn on a device's thread, and the matchmaker's turns that follow from it.
    fn take_turn(&self) {
        self.runner.turn_or_wake();
        self.run_matchmaker(GrantDelivery::TakeTurns);
    }

    /// Takes the matchmaker's turn if this shard's turn sent it a message.
    fn run_matchmaker(&self, then: GrantDelivery) {
        if let Some(router) = &self.router {
            router.run_matchmaker(then);
        }
    }
}

/// Closes the gate and ends the loop when the thread ends, even by a panic, so that every client is
/// answered. Also ends the other shards, which cannot continue without this one.
struct CloseOnExit<'a>(&'a SharedScheduler, Arc<DrainGate>);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        self.1.close();
        self.0.runner.end();
        // The idle device holds a reference to this scheduler, so this breaks the cycle.
        let idle = self.0.idle.lock().take();
        drop(idle);
        if let Some(router) = &self.0.router {
            router.end_shards();
        }
    }
}
