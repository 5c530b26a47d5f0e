//! An asynchronous device made of a synchronous engine: a few lanes, each one thread that runs the
//! messages of its queue in order.
//!
//! A lane's thread also calls the sink, so the results of a lane are delivered in sequence and a
//! slow receiver slows the lane down instead of filling a queue. Neither a task nor the sink can
//! end the thread: a panic is an error like any other.
//!
//! Lanes run concurrently on one device: the state that one of them stores for a walk is available
//! to the others, under a lock that is held only to take it out and put it back. Each has a runner
//! of its own, so none waits for another inside the engine; if the device has fewer threads than
//! lanes, a limited number of batches run at the same time and the others wait for a permit.

use crate::abort::Abort;
use crate::account::DeviceCounters;
use crate::isolated;
use crate::lane_queue::{LaneMessage, LaneQueue};
use crate::permits::RunPermits;
use crate::rerun::catch_panic;
use crate::runner::ReadyModel;
use crate::worker::{CompletedTask, WalkSlots, Worker};
use crate::{Device, ExecError, IdleWork, LoadError, LoadedModel, PhaseTimes, Sink, Task, TaskResult};
use ripieno_base::{ModelId, TaskId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// Default number of tasks that a lane holds: one runs, and the next is ready when it ends.
pub(crate) const DEFAULT_DEPTH: usize = 2;

/// Makes a loaded model runnable on a lane of this device, given by its index; called by the
/// attaching thread.
pub(crate) type Prepare = Box<dyn Fn(&dyn LoadedModel, usize) -> Result<ReadyModel, ExecError> + Send + Sync>;

/// Runs a lane's loop, for engines that need it inside a thread pool of theirs.
pub(crate) type Enter = Arc<dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync>;

/// Components of a device.
pub(crate) struct LaneOptions {
    /// The device's name, used for its threads.
    pub(crate) name: String,
    /// Number of tasks that each lane holds.
    pub(crate) depth: usize,
    pub(crate) prepare: Prepare,
    pub(crate) enter: Enter,
    /// Cancellation of the waits of each lane; shared with a runner that waits.
    pub(crate) aborts: Vec<Arc<Abort>>,
    /// Largest number of concurrent batches.
    pub(crate) max_concurrent: usize,
}

/// A device of one or more lanes.
pub(crate) struct LaneDevice {
    lanes: Vec<LaneThread>,
    prepare: Prepare,
    account: Arc<DeviceCounters>,
    /// Counts attachments: the state of a walk belongs to one of them, since model ids are reused.
    attachments: AtomicU64,
}

/// A lane with its thread. Dropping it runs the accepted tasks, then ends the thread.
struct LaneThread {
    queue: Arc<LaneQueue>,
    abort: Arc<Abort>,
    thread: Option<JoinHandle<()>>,
}

impl LaneDevice {
    pub(crate) fn open(options: LaneOptions, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let LaneOptions { name, depth, prepare, enter, aborts, max_concurrent } = options;
        let (account, slots) = (Arc::<DeviceCounters>::default(), WalkSlots::default());
        let permits = (max_concurrent < aborts.len()).then(|| Arc::new(RunPermits::new(max_concurrent)));
        let mut lanes = Vec::with_capacity(aborts.len());
        for (at, abort) in aborts.into_iter().enumerate() {
            let worker = Worker::new(Arc::clone(&account), slots.clone());
            let name = if at == 0 { name.clone() } else { format!("{name}.{at}") };
            let body = LaneLoop { worker, permits: permits.clone(), sink: Arc::clone(&sink) };
            lanes.push(LaneThread::start(name, depth, abort, Arc::clone(&enter), body)?);
        }
        Ok(Box::new(LaneDevice { lanes, prepare, account, attachments: AtomicU64::new(0) }))
    }
}

/// State of a lane's thread.
struct LaneLoop {
    worker: Worker,
    permits: Option<Arc<RunPermits>>,
    sink: Sink,
}

impl LaneThread {
    fn start(
        name: String,
        depth: usize,
        abort: Arc<Abort>,
        enter: Enter,
        mut body: LaneLoop,
    ) -> Result<LaneThread, LoadError> {
        let queue = Arc::new(LaneQueue::new(depth.max(1)));
        let mut run = {
            let (queue, abort) = (Arc::clone(&queue), Arc::clone(&abort));
            move || body.run_messages(&queue, &abort)
        };
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || enter(&mut run))
            .map_err(|cause| LoadError(format!("no thread for device {name}: {cause}")))?;
        Ok(LaneThread { queue, abort, thread: Some(thread) })
    }
}

impl Device for LaneDevice {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn depth(&self) -> usize {
        self.lanes[0].queue.depth()
    }

    fn attach(&self, id: ModelId, model: Arc<dyn LoadedModel>) {
        let attachment = self.attachments.fetch_add(1, Ordering::Relaxed);
        for (at, lane) in self.lanes.iter().enumerate() {
            let ready = isolated::prepare(&*model).unwrap_or_else(|| (self.prepare)(&*model, at));
            if let Err(cause) = &ready {
                tracing::error!(model = id.0, %cause, "a model cannot be attached");
            }
            lane.queue.attach(id, attachment, ready);
        }
    }

    fn detach(&self, id: ModelId) {
        self.lanes.iter().for_each(|lane| lane.queue.detach(id));
    }

    fn submit(&self, task: Task) -> Result<(), Task> {
        let id = task.id;
        let Some(lane) = self.lanes.get(task.lane.index()) else { return Err(task) };
        lane.abort.hold(id);
        lane.queue.submit(task).inspect_err(|_| lane.abort.release(id))
    }

    fn run_idle(&self, work: &IdleWork) -> bool {
        self.lanes.iter().any(|lane| lane.queue.offer_work(work))
    }

    fn cancel(&self, id: TaskId) {
        self.lanes.iter().for_each(|lane| lane.abort.request_stop(id));
    }

    fn rows_gathered(&self) -> u64 {
        self.account.rows_gathered()
    }

    fn tasks_without_copy(&self) -> u64 {
        self.account.tasks_without_copy()
    }

    fn spent(&self) -> PhaseTimes {
        self.account.spent()
    }
}

impl Drop for LaneThread {
    fn drop(&mut self) {
        self.queue.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a device's thread panicked outside its tasks");
        }
    }
}

impl LaneLoop {
    fn run_messages(&mut self, queue: &LaneQueue, abort: &Abort) {
        let mut soon = false;
        while let Some(message) = queue.receive(std::mem::take(&mut soon)) {
            match message {
                LaneMessage::Attach(id, attachment, model) => self.worker.attach(id, attachment, model),
                LaneMessage::Detach(id) => self.worker.detach(id),
                LaneMessage::Work(work) => {
                    if catch_unwind(AssertUnwindSafe(|| work())).is_err() {
                        tracing::error!("what a device's thread was lent for panicked");
                    }
                }
                LaneMessage::Run(task, accepted) => {
                    abort.begin(task.id);
                    let mut result = self.run_task(abort, &task, accepted);
                    abort.release(task.id);
                    result.holds_next = queue.release() > 0;
                    // A member that continues with another block returns as soon as that is
                    // decided.
                    soon = result.outcome.iter().flatten().any(|progress| !progress.ended && progress.failed.is_none());
                    if catch_unwind(AssertUnwindSafe(|| (self.sink)(result))).is_err() {
                        tracing::error!(task = task.id.0, "the receiver of a result panicked");
                    }
                }
            }
        }
    }

    fn run_task(&mut self, abort: &Abort, task: &Task, accepted: Instant) -> TaskResult {
        let ready = task.not_before.map_or(accepted, |not_before| accepted.max(not_before));
        let mut waited = abort.wait_until(ready);
        let permit = self.permits.as_ref().filter(|_| waited.is_ok()).map(|permits| permits.acquire());
        if permit.is_some() {
            // The task may have been cancelled while it waited for its permit.
            waited = abort.wait_until(ready);
        }
        let started = Instant::now();
        if let Err(cancelled) = waited {
            let outcome = Err(cancelled);
            return TaskResult {
                id: task.id,
                outcome,
                rerun: None,
                lost: None,
                started,
                finished: started,
                holds_next: false,
            };
        }
        // The worker takes the state of a task's walks out before it runs them, so a panic leaves
        // none inconsistent.
        let done = catch_panic(|| self.worker.execute(task, ready, &|| abort.is_stopped(task.id)));
        let (outcome, rerun) = match done {
            Ok(CompletedTask { progress, rerun }) => (Ok(progress), rerun),
            Err(cause) => (Err(cause), None),
        };
        let lost = self.worker.lost(task.model).filter(|_| outcome.is_err());
        let finished = Instant::now();
        TaskResult { id: task.id, outcome, rerun, lost, started, finished, holds_next: false }
    }
}

#[cfg(test)]
mod tests;
