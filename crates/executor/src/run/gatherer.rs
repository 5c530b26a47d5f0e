//! The second thread of a lane. It prepares the next task while the lane's thread runs one. So a
//! GPU does not wait while the next batch is copied together, and copied to the engine's process.
//!
//! Only first blocks are prepared so: they need nothing that a running task has yet to store, and
//! later blocks mostly find their rows contiguous. Only tasks are prepared whose models take
//! [`MIN_GATHER`] to gather a batch, because below it the hand-over costs more than it saves. The
//! thread starts with the first such model. Everything else stays with the lane's thread: waits,
//! permits, runs, results, and the order of all messages.
//!
//! Rejected: two threads that run tasks in turn. Engines that compute in a pool of threads would
//! wait for the lane's thread, which is one of the pool.

use crate::contract::account::DeviceCounters;
use crate::run::chain_state::WalkSlots;
use crate::run::lane_queue::LaneQueue;
use crate::run::rerun::catch_panic;
use crate::run::task::prepare;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Mean time to gather a batch of a model from which on its tasks are prepared while another one
/// runs: about the time of waking a thread.
pub const MIN_GATHER: Duration = Duration::from_micros(100);

/// The thread, which ends with the lane's queue.
pub(crate) struct Gatherer(Option<JoinHandle<()>>);

impl Gatherer {
    /// Starts the thread. Without one, the lane's thread prepares every task itself.
    pub(crate) fn start(
        name: &str,
        queue: &Arc<LaneQueue>,
        slots: &WalkSlots,
        account: &Arc<DeviceCounters>,
    ) -> Gatherer {
        let (queue, slots, account) = (Arc::clone(queue), slots.clone(), Arc::clone(account));
        let run = move || prepare_ahead(&queue, &slots, &account);
        let thread = Builder::new().name(format!("{name}.gather")).spawn(run);
        if let Err(cause) = &thread {
            tracing::error!(device = name, %cause, "no thread to gather batches while others run");
        }
        Gatherer(thread.ok())
    }

    /// Waits for the end of the thread, after the queue was closed.
    pub(crate) fn join(self) {
        if self.0.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that gathers batches panicked");
        }
    }
}

fn prepare_ahead(queue: &LaneQueue, slots: &WalkSlots, account: &DeviceCounters) {
    while let Some((mut queued, model)) = queue.take_ahead() {
        // A task that cannot be prepared fails when it runs.
        let prepared = catch_panic(|| {
            let mut prepared = prepare(&model, &queued.task, slots)?;
            prepared.send_ahead();
            Ok(prepared.paused())
        });
        queued.prepared = prepared.ok().map(Box::new);
        account.count_ahead();
        queue.put_ahead(queued);
    }
}
