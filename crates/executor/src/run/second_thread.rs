//! The second thread of a lane. While the lane's thread runs a task, it finishes the task before
//! and prepares the next one. So a GPU does not wait while answers are sent, or while the next
//! batch is copied together and to the engine's process.
//!
//! Only first blocks are prepared or run beside a task that is finished: they need nothing that
//! this task has yet to store, and later blocks mostly find their rows contiguous. Only models use
//! the thread whose tasks need [`MIN_HOST_TIME`] of the host between two computations, because
//! below it the hand-over costs more than it saves. The thread starts with the first such model.
//! Everything else stays with the lane's thread: waits, permits, runs, and the order of all
//! messages. A task is finished before the lane's thread handles anything but a first block, and
//! before the end of the next task, so results keep the order of the tasks.
//!
//! Rejected: two threads that run tasks in turn. Engines that compute in a pool of threads would
//! wait for the lane's thread, which is one of the pool.

use crate::contract::account::DeviceCounters;
use crate::run::chain_state::WalkSlots;
use crate::run::lane_queue::{Chore, LaneQueue};
use crate::run::rerun::catch_panic;
use crate::run::task::prepare;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Mean time of the host between two computations of a model, to answer and to gather, from which
/// on its tasks use the second thread: about the time of waking a thread.
pub const MIN_HOST_TIME: Duration = Duration::from_micros(100);

/// The thread, which ends after the lane's thread has run all tasks.
pub(crate) struct SecondThread(JoinHandle<()>);

impl SecondThread {
    /// Starts the thread. `None` if the system has none; the lane's thread then does all by itself.
    pub(crate) fn start(
        name: &str,
        queue: &Arc<LaneQueue>,
        slots: &WalkSlots,
        account: &Arc<DeviceCounters>,
    ) -> Option<SecondThread> {
        let (queue, slots, account) = (Arc::clone(queue), slots.clone(), Arc::clone(account));
        let thread = Builder::new().name(format!("{name}.second")).spawn(move || work(&queue, &slots, &account));
        if let Err(cause) = &thread {
            tracing::error!(device = name, %cause, "no thread to gather and answer while batches run");
        }
        thread.ok().map(SecondThread)
    }

    /// Waits for the end of the thread, after the queue has no more work for it.
    pub(crate) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the second thread of a lane panicked");
        }
    }
}

fn work(queue: &LaneQueue, slots: &WalkSlots, account: &DeviceCounters) {
    while let Some(chore) = queue.next_chore() {
        match chore {
            Chore::Finish(finish) => {
                if catch_unwind(AssertUnwindSafe(finish)).is_err() {
                    tracing::error!("the end of a task panicked");
                }
                account.count_finished_beside();
                queue.finished();
            }
            Chore::Prepare(mut queued, model) => {
                // A task that cannot be prepared fails when it runs.
                let prepared = catch_panic(|| {
                    let mut prepared = prepare(&model, &queued.task, slots)?;
                    prepared.send_ahead();
                    Ok(prepared.paused())
                });
                queued.prepared = prepared.ok().map(Box::new);
                queue.put_ahead(*queued);
                account.count_ahead();
            }
        }
    }
}
