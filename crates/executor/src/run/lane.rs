//! An asynchronous device on top of a synchronous engine. Each lane is a thread that processes its
//! queue in order.
//!
//! A lane's thread also calls the sink. So the results of a lane are delivered in sequence, and a
//! slow sink slows the lane down instead of filling a queue. A panic in a task or the sink is
//! caught and handled as an error.
//!
//! The lanes of a device run concurrently. The state that one lane stores for a request is
//! available to the others. A lock is held only while the state is taken out or stored. Each lane
//! has its own runner, so no lane waits for another inside the engine. If the device has fewer
//! threads than lanes, only as many batches run concurrently as there are threads. The other lanes
//! wait for a permit.

use crate::contract::account::DeviceCounters;
use crate::contract::permits::RunPermits;
use crate::engines::isolated;
use crate::run::abort::Abort;
use crate::run::lane_queue::{LaneMessage, LaneQueue};
use crate::run::rerun::catch_panic;
use crate::run::runner::ReadyModel;
use crate::run::worker::{CompletedTask, WalkSlots, Worker};
use crate::{Device, ExecError, IdleWork, LoadError, LoadedModel, PhaseTimes, Sink, Task, TaskResult};
use ripieno_base::{ModelId, TaskId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// Default number of tasks that a lane holds: one runs, and the next one is ready when it ends.
pub(crate) const DEFAULT_DEPTH: usize = 2;

/// Prepares a loaded model for the lane with this index. Called by the attaching thread.
pub(crate) type Prepare = Box<dyn Fn(&dyn LoadedModel, usize) -> Result<ReadyModel, ExecError> + Send + Sync>;

/// Runs a lane's loop inside a thread pool of the engine, for engines that need this.
pub(crate) type Enter = Arc<dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync>;

/// Settings and components of a device.
pub(crate) struct LaneOptions {
    /// Name of the device, which its threads are named after.
    pub(crate) name: String,
    /// Number of tasks that each lane holds.
    pub(crate) depth: usize,
    pub(crate) prepare: Prepare,
    /// Index of the device's GPU among the engine's; 0 on a CPU.
    pub(crate) place: usize,
    pub(crate) enter: Enter,
    /// Cancellation of each lane's waits. An emulated device's runner shares it.
    pub(crate) aborts: Vec<Arc<Abort>>,
    /// Largest number of concurrent batches.
    pub(crate) max_concurrent: usize,
}

/// A device of one or more lanes.
pub(crate) struct LaneDevice {
    lanes: Vec<LaneThread>,
    prepare: Prepare,
    place: usize,
    account: Arc<DeviceCounters>,
    /// Number of attachments so far. The state of a request belongs to an attachment, because model
    /// ids are reused.
    attachments: AtomicU64,
}

/// A lane with its thread. Dropping it runs the accepted tasks and then ends the thread.
struct LaneThread {
    queue: Arc<LaneQueue>,
    abort: Arc<Abort>,
    thread: Option<JoinHandle<()>>,
}

impl LaneDevice {
    pub(crate) fn open(options: LaneOptions, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let LaneOptions { name, depth, prepare, place, enter, aborts, max_concurrent } = options;
        let (account, slots) = (Arc::<DeviceCounters>::default(), WalkSlots::default());
        let permits = (max_concurrent < aborts.len()).then(|| Arc::new(RunPermits::new(max_concurrent)));
        let mut lanes = Vec::with_capacity(aborts.len());
        for (at, abort) in aborts.into_iter().enumerate() {
            let worker = Worker::new(Arc::clone(&account), slots.clone());
            let name = if at == 0 { name.clone() } else { format!("{name}.{at}") };
            let body = LaneLoop { worker, permits: permits.clone(), sink: Arc::clone(&sink) };
            lanes.push(LaneThread::start(name, depth, abort, Arc::clone(&enter), body)?);
        }
        Ok(Box::new(LaneDevice { lanes, prepare, place, account, attachments: AtomicU64::new(0) }))
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
            let ready = isolated::prepare(&*model, self.place).unwrap_or_else(|| (self.prepare)(&*model, at));
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
        loop {
            self.worker.release_memory_if_due();
            while self.worker.has_samples() && queue.begin_idle_work() {
                let _permit = self.permits.as_ref().map(|permits| permits.acquire());
                self.worker.compare_row();
            }
            let release_at = self.worker.release_at();
            let Some(message) = queue.receive(std::mem::take(&mut soon), release_at) else { break };
            match message {
                LaneMessage::ReleaseMemory => {}
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
                    // If a member continues with another block, the next task follows as soon as
                    // the scheduler has decided.
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
            // The task may have been cancelled while it waited for a permit.
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
        // The worker takes the states of requests out before it runs a task, so a panic leaves no
        // inconsistent state behind.
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
