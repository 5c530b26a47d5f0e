//! The executor contract: load a model once, open devices, submit tasks, and receive the result of
//! each task exactly once.
//!
//! An executor runs batches. It does not form them, and it knows neither deadlines nor policies. An
//! [`Executor`] turns files into a [`LoadedModel`]. A [`Device`] runs tasks of the models attached
//! to it asynchronously. Each of its lanes runs its tasks in FIFO order. For every accepted task,
//! the device passes a [`TaskResult`] to its sink.
//!
//! A *walk* is the way of one request through the blocks of its model. A walk *unfolds* if the
//! request runs cell by cell: a sequence becomes steps, and a graph becomes nodes.

pub(crate) mod account;
pub(crate) mod buffer;
pub(crate) mod clock;
pub(crate) mod condition;
pub(crate) mod error;
pub(crate) mod flow;
pub(crate) mod input_memory;
pub(crate) mod kept;
pub(crate) mod length_rule;
pub(crate) mod model;
pub(crate) mod permits;
pub(crate) mod source;
pub(crate) mod tensor;
pub(crate) mod unfold;
pub(crate) mod walk_shape;

pub use account::PhaseTimes;

use crate::{
    ModelSource, Tensor, WalkShape,
    contract::error::{ExecError, LoadError, RequestError},
};
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_model::{Extent, Graph, InputLengths, Steps, TensorSpec, Walk};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Loads models and opens devices of one kind. It is shared by all threads, and loading a model
/// does not delay others.
pub trait Executor: Send + Sync {
    /// Returns the engine's name: "cpu", "onnxruntime", "python", "cuda-cells" or "emulated".
    fn name(&self) -> &'static str;

    /// Describes the device, for display and as a key of cached profiles, for example
    /// "cpu/rten-0.27/1-thread".
    fn device_key(&self) -> String;

    /// Returns the number of threads of a device, and the GPUs by their numbers in CUDA, for models
    /// that compute in processes of their own.
    fn resources(&self) -> (usize, Vec<u32>) {
        (1, Vec::new())
    }

    /// Whether a model's engine runs in a process of its own unless its configuration says
    /// otherwise, because a failure of the device ends the process that uses it.
    fn isolates(&self) -> bool {
        false
    }

    /// Whether batches are padded to powers of two unless a model's configuration says otherwise,
    /// because a batch of a size that has not run before takes much longer.
    fn pads_batches(&self) -> bool {
        false
    }

    /// Whether the engine runs models of this walk at all.
    fn serves(&self, _walk: Walk) -> bool {
        true
    }

    /// Returns an engine that every model's answers are compared with at load, if this one computes
    /// by other means than a CPU.
    fn reference(&self) -> Option<Arc<dyn Executor>> {
        None
    }

    /// Reads and checks a model. This is slow and should run on a thread that serves no requests.
    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError>;

    /// Returns the engines whose models its devices run, in order of preference, if it combines
    /// several. One of them loads each model.
    fn alternatives(&self) -> Vec<Arc<dyn Executor>> {
        Vec::new()
    }

    /// Opens a device of this kind with `lanes` lanes, at least one. The threads of the lanes call
    /// `sink` once for every accepted task.
    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError>;
}

/// Receives the result of each task.
///
/// The sink may submit the device's next tasks or detach models before it returns. So a device must
/// not hold a lock during the call that these operations need.
pub type Sink = Arc<dyn Fn(TaskResult) + Send + Sync>;

/// Work that an idle device thread can run for another component.
pub type IdleWork = Arc<dyn Fn() + Send + Sync>;

/// A model in memory, ready to be attached to devices of the engine that loaded it.
pub trait LoadedModel: Send + Sync {
    /// Returns the inputs of a request. The first dimension is the batch. If the model is not
    /// [`batched`](LoadedModel::batched), a batch dimension of 1 precedes the file's dimensions.
    fn inputs(&self) -> &[TensorSpec];

    /// Returns the inputs that a request may leave out, because the model has a default. Behind a
    /// first dimension of 1, a tensor is the same for all rows of its request. A request brings
    /// such tensors after the other inputs, and runs alone.
    fn optional_inputs(&self) -> &[TensorSpec] {
        &[]
    }

    /// Returns the outputs of a request, with the same first dimension as the inputs.
    fn outputs(&self) -> &[TensorSpec];

    /// Whether requests share batches. Otherwise each request is one row, and the engine gets its
    /// tensors unchanged.
    fn batched(&self) -> bool {
        true
    }

    /// Returns the sizes that batches are padded to, which ascend. The engine runs no others. Empty
    /// if batches are not padded.
    fn batch_sizes(&self) -> &[usize] {
        &[]
    }

    /// Returns the smallest and largest integer that an input may hold, if known.
    fn range(&self, _input: &str) -> Option<(i64, i64)> {
        None
    }

    /// Returns the number of blocks.
    fn blocks(&self) -> usize;

    /// Returns the number of times that a request runs a block.
    fn steps(&self, _block: BlockId) -> Steps {
        Steps::Once
    }

    /// Validates a request. Returns the request's extent, and its graph if it has one; both are
    /// stored in its [`RequestEntry`].
    ///
    /// Called at submission, before the request takes a slot. Checks what
    /// [`inputs`](LoadedModel::inputs) cannot express: ids within the model's tables, valid text,
    /// and a length within the bound. A request must hold one sequence, or a table of nodes that is
    /// one tree or graph. The extent of a request that runs each block once is its length, or 1 if
    /// its tensors have none.
    fn describe(&self, _inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        Ok((Extent::ONE, None))
    }

    /// Returns the dimensions of the inputs that are the request's length. `None` if requests do
    /// not differ in length or run cell by cell.
    fn lengths(&self) -> Option<&InputLengths> {
        None
    }

    /// Returns what the extent and the graph of a request depend on, if requests run cell by cell
    /// and no code of an embedder creates the graph.
    fn walk_shape(&self) -> Option<&WalkShape> {
        None
    }

    /// Creates a request of about this length, to test and measure the model. `None` if requests
    /// have no length, or no valid request can be created.
    fn example(&self, _length: u32) -> Option<Vec<Tensor>> {
        None
    }

    /// Creates a request of about this length with varied numbers, to compare engines with. `None`
    /// if requests do not run cell by cell.
    fn varied_example(&self, _length: u32, _seed: u64) -> Option<Vec<Tensor>> {
        None
    }

    /// Returns the outage, if the engine runs in separate processes and none of them runs.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// Returns the number of restarts of engine processes; `None` if the engine runs in this
    /// process.
    fn restarts(&self) -> Option<u64> {
        None
    }

    /// Returns the source that the model was loaded by, with the blocks and the lengths that the
    /// model's own code declares; `None` if it declares none.
    fn adopted_source(&self) -> Option<&ModelSource> {
        None
    }

    /// Returns a cell as a model that runs once, to try its rows; `None` if the cell has a file.
    fn cell(&self, _block: BlockId) -> Option<Arc<dyn LoadedModel>> {
        None
    }

    /// Makes each request run alone from now on.
    fn stop_batches(&self, _why: &str) {}

    /// Returns the reason for which each request runs alone although the model was loaded with
    /// batches: an answer has shown that requests cannot share them.
    fn batches_stopped(&self) -> Option<String> {
        None
    }

    /// Compares a sample of the model's batches with single rows from now on, in idle time of its
    /// devices. A difference makes each request run alone. `doubt` says why, as a clause.
    fn watch_rows(&self, _doubt: &str) {}

    /// Returns the number of rows that were compared.
    fn rows_compared(&self) -> u64 {
        0
    }

    /// Returns the model for a downcast by the engine's own devices.
    fn as_any(&self) -> &dyn Any;
}

/// Returns the extent of a request with these `inputs`. `specs` are the inputs of its model.
pub fn request_extent(lengths: &InputLengths, specs: &[TensorSpec], inputs: &[Tensor]) -> Result<Extent, RequestError> {
    let shape = |name: &str| inputs.iter().find(|tensor| *tensor.name == *name).map(|tensor| &tensor.shape[..]);
    lengths.extent(specs, shape).map_err(RequestError)
}

/// A device. Each of its lanes runs its tasks in the order of submission.
///
/// Lanes run concurrently and share the device, like threads on a CPU or streams on a GPU. They
/// also share the state of requests: a request's next block may run on another lane once its
/// previous task has ended.
///
/// A device is shared by the thread that submits tasks and the threads that attach models, because
/// attaching may be slow.
pub trait Device: Send + Sync {
    /// Returns the number of lanes.
    fn lanes(&self) -> usize {
        1
    }

    /// Returns the largest number of tasks that each lane holds, including the running one.
    fn depth(&self) -> usize;

    /// Makes a model runnable on the device as `id`, after the tasks submitted before.
    ///
    /// The work is done on the calling thread and does not delay running tasks. If it fails, the
    /// model's tasks fail with the reason.
    fn attach(&self, id: ModelId, model: Arc<dyn LoadedModel>);

    /// Removes a model, after the tasks submitted before.
    fn detach(&self, id: ModelId);

    /// Queues a task on its lane. Returns the task if the lane does not exist or already holds
    /// `depth` tasks.
    fn submit(&self, task: Task) -> Result<(), Task>;

    /// Makes the thread of an idle lane run `work` once, soon. Returns false if no lane is idle or
    /// the start may be delayed.
    ///
    /// A thread that delivers a request must wake another thread to decide about it. If the woken
    /// thread also runs the request, one wake-up is saved. If the same `work` is queued already, it
    /// is not queued again, and this returns true.
    fn run_idle(&self, _work: &IdleWork) -> bool {
        false
    }

    /// Requests that a task stops. The task still has exactly one result. The result is an error if
    /// the task was stopped. It is the outputs if the task was done, or if the device cannot stop a
    /// running batch. A task that has not begun never begins. If the device does not hold a task
    /// with this id, the task has just ended, and the request is ignored. By default nothing is
    /// stopped.
    fn cancel(&self, _id: TaskId) {}

    /// Returns the number of rows copied to make batches contiguous, counted once per input tensor.
    /// Returns 0 if the device does not count them.
    ///
    /// The number does not grow while the same members run block after block in the same order. If
    /// requests run cell by cell, elements of their own inputs are always copied and do not count.
    fn rows_gathered(&self) -> u64 {
        0
    }

    /// Returns the number of tasks that read all their state in place. The state is the tensors of
    /// earlier blocks, steps or nodes. Tasks without such tensors do not count.
    fn tasks_without_copy(&self) -> u64 {
        0
    }

    /// Returns the number of tasks that were gathered while another one ran on their lane; 0 if the
    /// device gathers none so.
    fn tasks_gathered_ahead(&self) -> u64 {
        0
    }

    /// Returns the number of tasks that were answered while another one ran on their lane; 0 if the
    /// device answers none so.
    fn tasks_answered_beside(&self) -> u64 {
        0
    }

    /// Returns the time of the device's tasks by phase; zero if not measured. Failed tasks do not
    /// count.
    fn spent(&self) -> PhaseTimes {
        PhaseTimes::default()
    }
}

/// One batch on one block.
#[derive(Debug)]
pub struct Task {
    /// Id, which the result repeats.
    pub id: TaskId,
    /// Model to run.
    pub model: ModelId,
    /// Block to run.
    pub block: BlockId,
    /// Lane to run on.
    pub lane: LaneId,
    /// Length to which the members are padded, for a model with [`lengths`](LoadedModel::lengths).
    /// It is at least the length of each member and at most the model's longest. A block's outputs
    /// keep the padding of their batch, and members with different padding run separately. Ignored
    /// if requests do not differ in length.
    pub length: u32,
    /// The requests, in batch order. If requests run cell by cell, a request may occur several
    /// times with different nodes.
    pub members: Vec<TaskMember>,
    /// Earliest start.
    pub not_before: Option<Instant>,
}

/// A request in a batch.
///
/// Between two tasks, the state of a request is kept under its slot. In a chain, the state stays on
/// the device that ran the first block, for all lanes of that device.
///
/// If requests run cell by cell, all devices to which the [`LoadedModel`] is attached share the
/// state. So tasks of one request may run on several devices. The submitter must ensure that the
/// task that produced a task's inputs has ended, or precedes it on the same lane.
#[derive(Clone, Debug)]
pub struct TaskMember {
    /// The request's slot.
    pub slot: RequestSlot,
    /// Number of rows, which is the first dimension of each input. 1 if requests run cell by cell.
    pub rows: usize,
    /// Step of the block, or node of the request's graph. 0 in the walks `whole` and `chain`.
    ///
    /// A step is padding if the request does not have it or has ended. A padding step takes its
    /// time, computes on arbitrary data, and stores and reports nothing.
    pub node: u32,
    /// The request's data. Required with the request's first task on each device; repeating it is
    /// harmless.
    ///
    /// The slot compares entries by [`Arc::ptr_eq`]. A new entry, or a higher
    /// [`walk`](TaskMember::walk), discards the slot's old state and starts the request from the
    /// beginning.
    pub entry: Option<Arc<RequestEntry>>,
    /// Number of the walk, from [`next_walk`]; 0 if the caller does not number walks. A device that
    /// was given up as lost may still run tasks of an earlier walk. If requests run cell by cell,
    /// such a member fails without effect.
    pub walk: u64,
    /// Time until which the client waits; `None` for no limit. If the batch fails, the member is
    /// not run again after this time.
    pub until: Option<Instant>,
}

impl TaskMember {
    /// Creates a member that runs its first or only step.
    pub fn new(slot: RequestSlot, rows: usize, entry: Option<Arc<RequestEntry>>) -> TaskMember {
        TaskMember { slot, rows, node: 0, entry, walk: 0, until: None }
    }
}

/// Returns a number for a new walk, greater than all earlier numbers. The counter is global to the
/// process, because several runtimes may serve a loaded model one after the other.
pub fn next_walk() -> u64 {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    LATEST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Location of a request's inputs.
#[derive(Clone, Debug)]
pub enum Payload {
    /// The inputs are in this process.
    Here(Arc<[Tensor]>),
    /// The inputs are on a remote frontend, which also gets the outputs. Only remote devices can
    /// run such a request.
    Elsewhere(RemoteRows),
}

/// Location of a request's rows on a remote frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRows {
    /// Number of the frontend.
    pub frontend: u32,
    /// The frontend's number of the request, which is never reused.
    pub request: u64,
    /// Index of the first row.
    pub first_row: u32,
}

/// The data of a request, created once when it is accepted.
#[derive(Clone, Debug)]
pub struct RequestEntry {
    /// Inputs, or their location.
    pub payload: Payload,
    /// Extent, from [`LoadedModel::describe`]. Executors use it and do not compute it again.
    pub extent: Extent,
    /// Graph from [`LoadedModel::describe`], if the request has one.
    pub graph: Option<Arc<Graph>>,
    /// Whether the answer is streamed step by step, in [`MemberProgress::step`].
    pub stream: bool,
    /// Whether the request runs every block of a chain regardless of the model's conditions. Used
    /// to measure and test all blocks.
    pub ignore_conditions: bool,
}

impl RequestEntry {
    /// Creates the entry of a request to a model that runs each block once and whose requests do
    /// not differ in length.
    pub fn of(inputs: Arc<[Tensor]>) -> RequestEntry {
        RequestEntry::new(Payload::Here(inputs), Extent::ONE)
    }

    /// Creates the entry of a request that runs each block once.
    pub fn new(payload: Payload, extent: Extent) -> RequestEntry {
        RequestEntry { payload, extent, graph: None, stream: false, ignore_conditions: false }
    }

    /// Returns the inputs; empty if they are on another machine.
    pub fn inputs(&self) -> &[Tensor] {
        match &self.payload {
            Payload::Here(inputs) => inputs,
            Payload::Elsewhere(_) => &[],
        }
    }
}

/// State of a model's engine while no process runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Reason: how the last process ended, or why none could be started.
    pub cause: String,
    /// Time after which a new process may run.
    pub retry_after: Duration,
}

/// Failure of a task because an engine process was missing or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Time after which a new process may run.
    pub retry_after: Duration,
    /// Whether the process ended during the task, so that one of the members may be the cause.
    pub inside: bool,
}

/// Result of a task.
#[derive(Debug)]
pub struct TaskResult {
    /// Id of the task.
    pub id: TaskId,
    /// Progress of each member in batch order, or the error of the whole batch. A single member may
    /// also have [`failed`](MemberProgress::failed).
    pub outcome: Result<Vec<MemberProgress>, ExecError>,
    /// Set if the batch failed and parts of it were run again.
    pub rerun: Option<Rerun>,
    /// Set if the task failed because an engine process was missing or ended. Its members may be
    /// retried.
    pub lost: Option<Loss>,
    /// Start of the execution. On a GPU it begins when the batch has been gathered.
    pub started: Instant,
    /// End of the execution.
    pub finished: Instant,
    /// Time of the host that a task of the model needs between two computations: to gather its
    /// batch, and to answer the one before until the next task is decided. Zero on a device that
    /// cannot compute meanwhile, because it computes with the host's cores.
    pub host_time: Duration,
    /// Whether the lane already holds its next task, so that the sink should return quickly.
    pub holds_next: bool,
}

/// Record of a batch that failed and was run again in parts.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// Number of parts run.
    pub runs: u32,
    /// Engine's error for the whole batch. It may contain data of any member, so it must be logged
    /// only and not be sent to clients.
    pub cause: ExecError,
}

impl TaskResult {
    /// Returns the progress of a batch whose members all succeeded without a re-run. Returns an
    /// error otherwise.
    pub fn whole(self) -> Result<Vec<MemberProgress>, ExecError> {
        let progress = self.outcome?;
        match self.rerun.map(|rerun| rerun.cause).or_else(|| progress.iter().find_map(|one| one.failed.clone())) {
            Some(cause) => Err(cause),
            None => Ok(progress),
        }
    }
}

/// Result of a task for one member.
#[derive(Clone, Debug, Default)]
pub struct MemberProgress {
    /// Whether the request ended with this task. Its last block, step or node is done, or a
    /// condition of the model ended it early.
    ///
    /// Reported once per walk. If its last two tasks run on two devices, the task that ends later
    /// reports it. A block that runs until the request ends reports its own end this way. If
    /// further blocks follow, there are no outputs yet.
    pub ended: bool,
    /// Later block that the request skips to.
    pub skip: Option<BlockId>,
    /// Outputs at the request's own length, if the request ended. Empty if further blocks follow.
    pub outputs: Vec<Tensor>,
    /// Streamed part of the answer, if the entry requests a stream. It holds this step's part of
    /// each streamed output, of shape [1, 1, …], under the output's name and in the order of the
    /// steps. The last step also has its part here, in addition to the outputs.
    pub step: Vec<Tensor>,
    /// Error, if the engine failed on this member alone. The request has ended without outputs.
    pub failed: Option<ExecError>,
    /// Set if the member failed only because its inputs could not be fetched, or because the
    /// process that had its state has ended. It may be retried.
    pub lost: Option<Loss>,
    /// Time that the member's inputs take to come, if it was left out because that is more than it
    /// had left.
    pub slow_inputs: Option<Duration>,
    /// Whether the member failed before it ran, because its values do not fit the model. The error
    /// begins with [`BAD_REQUEST`](crate::BAD_REQUEST).
    pub refused: bool,
}

impl MemberProgress {
    /// Creates the result of a member on which the engine failed.
    pub fn failed(cause: ExecError) -> MemberProgress {
        MemberProgress { failed: Some(cause), ..MemberProgress::default() }
    }

    /// Creates the result of a member that ended with `outputs`.
    pub fn ended(outputs: Vec<Tensor>) -> MemberProgress {
        MemberProgress { ended: true, outputs, ..MemberProgress::default() }
    }
}
