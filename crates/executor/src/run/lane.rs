//! An asynchronous device on top of a synchronous engine. Each lane is a thread that processes its
//! queue in order.
//!
//! A lane's threads also call the sink, one at a time. So the results of a lane are delivered in
//! sequence, and a slow sink slows the lane down instead of filling a queue. A panic in a task or
//! the sink is caught and handled as an error.
//!
//! Steps of cells whose state stays on the device are launched while earlier ones run, as far as
//! tasks are queued, and settled in the order of their launches. A task that cannot be launched so
//! runs when no step is in flight: one of another model, one that begins later, or one whose launch
//! failed. Rejected: a thread that launches beside one that settles. Each step would wake both.
//!
//! Where a batch takes the host long to gather or to answer, a second thread of the lane does both
//! while other batches compute; see `second_thread.rs`.
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
use crate::run::cells::StepInFlight;
use crate::run::chain_state::WalkSlots;
use crate::run::lane_queue::{LaneMessage, LaneQueue, QueuedTask};
use crate::run::rerun::{CompletedTask, catch_panic};
use crate::run::runner::ReadyModel;
use crate::run::second_thread::{MIN_HOST_TIME, SecondThread};
use crate::run::task_ends::{EndedRun, TaskEnds};
use crate::run::worker::{Executed, Worker};
use crate::{Device, ExecError, IdleWork, LoadError, LoadedModel, PhaseTimes, Sink, Task, TaskResult};
use ripieno_base::{ModelId, TaskId};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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

/// Work of the host beside batches that compute.
#[derive(Clone, Copy)]
struct HostOptions {
    /// See [`MIN_HOST_TIME`].
    min_host_time: Duration,
    /// Whether batches compute on a GPU, so that the host's cores are free meanwhile.
    on_gpu: bool,
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
    /// Opens a device that computes with the host's cores.
    pub(crate) fn open(options: LaneOptions, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        LaneDevice::open_with(options, HostOptions { min_host_time: MIN_HOST_TIME, on_gpu: false }, sink)
    }

    /// Opens a device that computes on a GPU.
    pub(crate) fn open_on_gpu(options: LaneOptions, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        LaneDevice::open_with(options, HostOptions { min_host_time: MIN_HOST_TIME, on_gpu: true }, sink)
    }

    fn open_with(options: LaneOptions, host: HostOptions, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let LaneOptions { name, depth, prepare, place, enter, aborts, max_concurrent } = options;
        let (account, slots) = (Arc::<DeviceCounters>::default(), WalkSlots::default());
        let permits = (max_concurrent < aborts.len()).then(|| Arc::new(RunPermits::new(max_concurrent)));
        let mut lanes = Vec::with_capacity(aborts.len());
        for (at, abort) in aborts.into_iter().enumerate() {
            let ends = TaskEnds {
                queue: Arc::new(LaneQueue::new(depth.max(1))),
                abort,
                slots: slots.clone(),
                account: Arc::clone(&account),
                on_gpu: host.on_gpu,
                sink: Arc::clone(&sink),
            };
            let body = LaneLoop {
                name: if at == 0 { name.clone() } else { format!("{name}.{at}") },
                worker: Worker::new(Arc::clone(&account), slots.clone(), host.min_host_time),
                ends: Arc::new(ends),
                second: None,
                permits: permits.clone(),
                steps: VecDeque::new(),
            };
            lanes.push(LaneThread::start(Arc::clone(&enter), body)?);
        }
        Ok(Box::new(LaneDevice { lanes, prepare, place, account, attachments: AtomicU64::new(0) }))
    }
}

/// State of a lane's thread.
struct LaneLoop {
    /// Name of the thread.
    name: String,
    worker: Worker,
    ends: Arc<TaskEnds>,
    /// The second thread, once a model needs it.
    second: Option<SecondThread>,
    permits: Option<Arc<RunPermits>>,
    /// Tasks whose steps are in flight, the oldest first. All are of one model.
    steps: VecDeque<(Task, StepInFlight)>,
}

impl LaneThread {
    fn start(enter: Enter, mut body: LaneLoop) -> Result<LaneThread, LoadError> {
        let (queue, abort, name) = (Arc::clone(&body.ends.queue), Arc::clone(&body.ends.abort), body.name.clone());
        let mut run = move || body.run_messages();
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

    fn tasks_gathered_ahead(&self) -> u64 {
        self.account.tasks_gathered_ahead()
    }

    fn tasks_answered_beside(&self) -> u64 {
        self.account.tasks_answered_beside()
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
    fn run_messages(&mut self) {
        let ends = Arc::clone(&self.ends);
        let queue = &ends.queue;
        let mut soon = false;
        loop {
            let after = self.run_steps(&mut soon);
            self.worker.release_memory_if_due();
            while after.is_none() && self.worker.has_samples() && queue.begin_idle_work() {
                let _permit = self.permits.as_ref().map(|permits| permits.acquire());
                self.worker.compare_row();
            }
            let release_at = self.worker.release_at();
            let received = after.or_else(|| queue.receive(std::mem::take(&mut soon), release_at));
            let Some(message) = received.and_then(|message| self.launch(message)) else {
                if self.steps.is_empty() { break } else { continue }
            };
            if !matches!(message, LaneMessage::Run(_)) {
                queue.await_left_end();
            }
            match message {
                LaneMessage::ReleaseMemory => {}
                LaneMessage::Attach(id, attachment, model) => {
                    queue.set_ahead(id, None);
                    self.worker.attach(id, attachment, model);
                }
                LaneMessage::Detach(id) => {
                    queue.set_ahead(id, None);
                    self.worker.detach(id);
                }
                LaneMessage::Work(work) => {
                    if catch_unwind(AssertUnwindSafe(|| work())).is_err() {
                        tracing::error!("what a device's thread was lent for panicked");
                    }
                }
                LaneMessage::Run(queued) => {
                    soon = self.run_task(queued);
                    if let Some((id, model)) = self.worker.take_ahead_change() {
                        let start = || SecondThread::start(&self.name, queue, &ends.slots, &ends.account);
                        self.second = self.second.take().or_else(start);
                        queue.set_ahead(id, model.filter(|_| self.second.is_some()));
                    }
                }
            }
        }
        if let Some(second) = self.second.take() {
            queue.end_chores();
            second.join();
        }
    }

    /// Settles all steps in flight. Launches queued tasks meanwhile, up to a message that must wait
    /// until none is in flight, which is returned.
    fn run_steps(&mut self, soon: &mut bool) -> Option<LaneMessage> {
        let ends = Arc::clone(&self.ends);
        let queue = &ends.queue;
        let (mut after, mut busy_until) = (None, None);
        while let Some((first, _)) = self.steps.front() {
            let (id, model) = (first.id, first.model);
            let launches = after.is_none() && self.steps.len() < self.worker.depth(model);
            if let Some(message) = if launches { queue.try_receive() } else { None } {
                after = self.launch(message);
                continue;
            }
            let ended = catch_panic(|| Ok(self.worker.wait(model, &|| launches && queue.has_news()))).unwrap_or(true);
            let Some((task, step)) = ended.then(|| self.steps.pop_front()).flatten() else { continue };
            // The device began the step when it was launched, or when the one before it had ended.
            let started = busy_until.map_or(step.launched(), |until| step.launched().max(until));
            let done = catch_panic(|| self.worker.settle(&task, step, started));
            let finished = Instant::now();
            busy_until = Some(finished);
            let outcome = done.map(|CompletedTask { progress, .. }| progress);
            let lost = self.worker.lost(model).filter(|_| outcome.is_err());
            let (rerun, host_time, holds_next) = (None, Duration::ZERO, false);
            let result = TaskResult { id, outcome, rerun, lost, started, finished, host_time, holds_next };
            *soon = ends.report(result, queue.release()).soon;
        }
        after
    }

    /// Launches a step if the message is a task that can be launched. Returns the message
    /// otherwise.
    fn launch(&mut self, message: LaneMessage) -> Option<LaneMessage> {
        let LaneMessage::Run(QueuedTask { task, .. }) = &message else { return Some(message) };
        let may_launch = self.permits.is_none()
            && self.steps.front().is_none_or(|(first, _)| first.model == task.model)
            && task.not_before.is_none_or(|not_before| not_before <= Instant::now())
            && !self.ends.abort.is_stopped(task.id);
        let step = if may_launch { catch_panic(|| Ok(self.worker.launch(task))).ok().flatten() } else { None };
        let Some(step) = step else { return Some(message) };
        self.ends.queue.await_left_end();
        if let LaneMessage::Run(queued) = message {
            self.steps.push_back((queued.task, step));
        }
        None
    }

    /// Runs a task and reports it, or leaves that to the second thread. Returns whether a next task
    /// is expected soon.
    fn run_task(&mut self, queued: QueuedTask) -> bool {
        let (permits, mut permit) = (self.permits.clone(), None);
        let run = self.execute(queued, || permit = permits.as_ref().map(|permits| permits.acquire()));
        let (ends, begun) = (&self.ends, Instant::now());
        ends.queue.await_left_end();
        // The task before took this time.
        let run = EndedRun { waited: begun.elapsed(), ..run };
        let may_leave = self.second.is_some() && matches!(run.executed, Ok(Executed::Ran { uses_second: true, .. }));
        if may_leave && ends.queue.is_first_block_next() {
            let ends = Arc::clone(ends);
            self.ends.queue.leave_end(Box::new(move || {
                let finished = run.ended;
                let result = TaskResult { finished, ..ends.result(run) };
                ends.report(result, ends.queue.release_left());
            }));
            return false;
        }
        let (model, ended, result) = (run.task.model, run.ended + run.waited, ends.result(run));
        drop(permit);
        let told = ends.report(result, ends.queue.release());
        if !told.held_next {
            self.worker.note_answer(model, ended.elapsed());
        }
        told.soon
    }

    /// Waits until a task may begin and has a permit, and runs it.
    fn execute(&mut self, queued: QueuedTask, take_permit: impl FnOnce()) -> EndedRun {
        let QueuedTask { task, accepted, prepared } = queued;
        let abort = &self.ends.abort;
        abort.begin(task.id);
        let ready = task.not_before.map_or(accepted, |not_before| accepted.max(not_before));
        let mut waited = abort.wait_until(ready);
        if waited.is_ok() {
            take_permit();
            // The task may have been cancelled while it waited for a permit.
            waited = abort.wait_until(ready);
        }
        let started = Instant::now();
        if let Err(cancelled) = waited {
            let waited = Duration::ZERO;
            return EndedRun { task, executed: Err(cancelled), started, ended: started, waited, lost: None };
        }
        let ahead = prepared.is_some();
        // The worker takes the states of requests out before it runs a task, so a panic leaves no
        // inconsistent state behind.
        let executed = catch_panic(|| self.worker.execute(&task, prepared, ready, &|| abort.is_stopped(task.id)));
        let started = match &executed {
            Ok(Executed::Ran { gathered, .. }) if self.ends.on_gpu && !ahead => started + *gathered,
            _ => started,
        };
        let (lost, ended, waited) = (self.worker.lost(task.model), Instant::now(), Duration::ZERO);
        EndedRun { task, executed, started, ended, waited, lost }
    }
}

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod tests;
