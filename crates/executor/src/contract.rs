//! The executor contract: load a model once, open devices, submit tasks, receive each result
//! exactly once.
//!
//! An executor executes batches; it never forms them, and it does not know deadlines or policies.
//! Three concepts: an [`Executor`] turns files into a [`LoadedModel`]; a [`Device`] asynchronously
//! runs tasks of the models attached to it, those of each of its lanes in FIFO order; and a
//! [`TaskResult`] comes back through the device's sink for every accepted task.

use crate::{
    ModelSource, Tensor,
    error::{ExecError, LoadError, RequestError},
};
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_model::{Extent, Graph, InputLengths, Steps, TensorSpec};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Loads models for one kind of device. Shared by all threads; loading one model does not block
/// another.
pub trait Executor: Send + Sync {
    /// Returns the engine's name: "cpu", "onnxruntime", "emulated".
    fn name(&self) -> &'static str;

    /// Describes the device for display and as a key of cached profiles, for example
    /// "cpu/rten-0.27/1-thread".
    fn device_key(&self) -> String;

    /// Reads and checks a model. Slow; call it on a thread that does not serve.
    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError>;

    /// Opens a device of this kind with `lanes` lanes, at least one. `sink` is called once for
    /// every accepted task, from the threads of the lanes.
    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError>;
}

/// Receives the result of each task.
///
/// It may act on the result before it returns: submit the device's next tasks or detach models. So
/// it is called without a lock that these would wait for.
pub type Sink = Arc<dyn Fn(TaskResult) + Send + Sync>;

/// Work that an idle device thread can run for another component.
pub type IdleWork = Arc<dyn Fn() + Send + Sync>;

/// A model in memory, ready to be attached to devices of the engine that loaded it.
pub trait LoadedModel: Send + Sync {
    /// Returns the inputs of a request; the first dimension is the batch. For a model that is not
    /// [`batched`](LoadedModel::batched), the batch is added before the file's dimensions and is
    /// always 1.
    fn inputs(&self) -> &[TensorSpec];

    /// Returns the outputs of a request, likewise.
    fn outputs(&self) -> &[TensorSpec];

    /// Whether requests share batches. If not, each is one row, whose tensors the engine gets
    /// unchanged.
    fn batched(&self) -> bool {
        true
    }

    /// Returns the smallest and largest whole number that an input may hold, if known.
    fn range(&self, _input: &str) -> Option<(i64, i64)> {
        None
    }

    /// Returns the number of blocks.
    fn blocks(&self) -> usize;

    /// Returns the kind of a block: the number of times that a request runs it.
    fn steps(&self, _block: BlockId) -> Steps {
        Steps::Once
    }

    /// Validates a request; returns its extent, and its graph if it has one: the parts of a
    /// [`RequestEntry`] beside the inputs.
    ///
    /// Called at submission, before the request takes a slot. Checks all that the walk requires
    /// beyond [`inputs`](LoadedModel::inputs): ids within the model's tables, valid text, one
    /// sequence or tree per request, a length within the bound, a table of nodes that is a tree or
    /// graph. A request whose walk does not unfold runs each block once; its length is 1 unless its
    /// tensors have one.
    fn describe(&self, _inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        Ok((Extent::ONE, None))
    }

    /// Returns the dimensions of the inputs that are the request's length, for a walk that does not
    /// unfold; `None` if requests do not differ in length.
    fn lengths(&self) -> Option<&InputLengths> {
        None
    }

    /// Creates a request of about this length, to test and measure the model; `None` where requests
    /// neither unfold nor differ in length, or no valid request can be created.
    fn example(&self, _length: u32) -> Option<Vec<Tensor>> {
        None
    }

    /// Returns the outage if the engine runs in processes of its own and none of them is up.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// Returns the number of restarts of engine processes; `None` if the engine runs in this
    /// process.
    fn restarts(&self) -> Option<u64> {
        None
    }

    /// Used by the engine's own devices to downcast it.
    fn as_any(&self) -> &dyn Any;
}

/// Returns the extent of a request with these `inputs` to a model with the inputs `specs`.
pub fn request_extent(lengths: &InputLengths, specs: &[TensorSpec], inputs: &[Tensor]) -> Result<Extent, RequestError> {
    let shape = |name: &str| inputs.iter().find(|tensor| *tensor.name == *name).map(|tensor| &tensor.shape[..]);
    lengths.extent(specs, shape).map_err(RequestError)
}

/// A device: runs the tasks of each of its lanes in the order of submission.
///
/// Lanes run concurrently and share the device: threads on a CPU, streams on a GPU. They share the
/// walks as well: a request's next block may run on another lane, once the task before has ended.
///
/// Shared between the thread that submits and those that attach, since attaching may be slow.
pub trait Device: Send + Sync {
    /// Returns the number of lanes.
    fn lanes(&self) -> usize {
        1
    }

    /// Returns the largest number of tasks that each lane holds, including the running one.
    fn depth(&self) -> usize;

    /// Makes a model runnable on the device as `id`. Takes effect after the tasks submitted before.
    ///
    /// The caller's thread bears the cost, not the running tasks. If a model cannot be made
    /// runnable, its tasks fail with the reason.
    fn attach(&self, id: ModelId, model: Arc<dyn LoadedModel>);

    /// Removes a model. Takes effect after the tasks submitted before.
    fn detach(&self, id: ModelId);

    /// Queues a task on its lane; returns it if the lane holds `depth` tasks already or does not
    /// exist.
    fn submit(&self, task: Task) -> Result<(), Task>;

    /// Makes the thread of an idle lane run `work`, soon and once; returns false if no lane is idle
    /// or the start may be delayed.
    ///
    /// The thread that delivers a request must wake a thread to decide about it. If that is the
    /// thread that will also run the request, one wake-up is saved. The same work that is queued
    /// but not begun is not queued again: true is returned for it.
    fn run_idle(&self, _work: &IdleWork) -> bool {
        false
    }

    /// Requests a stop of a task. Its result still comes, once: an error if it was stopped, its
    /// outputs if it was done before or the device cannot stop a running batch. A task that waits
    /// behind another is never begun. An id that the device does not hold belongs to a task that
    /// has just ended, and is ignored. By default nothing can be stopped.
    fn cancel(&self, _id: TaskId) {}

    /// Returns the number of rows copied to make batches contiguous, counted once per input tensor;
    /// 0 if not counted.
    ///
    /// It does not grow while the same members run block after block in the same order. Where walks
    /// unfold, the elements of the requests' own inputs, which are always copied into each batch,
    /// do not count.
    fn rows_gathered(&self) -> u64 {
        0
    }

    /// Returns the number of tasks that continued from state without copying any of it: each tensor
    /// of an earlier block, step or node was read in place. Tasks without such tensors do not
    /// count.
    fn tasks_without_copy(&self) -> u64 {
        0
    }

    /// Returns the time of its tasks by phase; zero if not measured. Failed tasks do not count.
    fn spent(&self) -> PhaseTimes {
        PhaseTimes::default()
    }
}

/// Time of a device's thread by phase of its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// Collecting the members' rows into contiguous batches.
    pub gather_ns: u64,
    /// Computing in the engine.
    pub compute_ns: u64,
    /// Distributing the results to the members.
    pub scatter_ns: u64,
}

/// One batch on one block.
#[derive(Debug)]
pub struct Task {
    /// Id, repeated in the result.
    pub id: TaskId,
    /// The model.
    pub model: ModelId,
    /// The block.
    pub block: BlockId,
    /// The lane that runs it.
    pub lane: LaneId,
    /// The length that the members are padded to, for a model with
    /// [`lengths`](LoadedModel::lengths): at least that of each member, at most the model's
    /// longest. A block's outputs keep the padding of its batch; members with different padding are
    /// run separately. Ignored where requests do not differ in length.
    pub length: u32,
    /// The requests, in batch order. Where walks unfold, one may occur several times, each time
    /// with another node.
    pub members: Vec<TaskMember>,
    /// Earliest start.
    pub not_before: Option<Instant>,
}

/// A request in a batch.
///
/// The state of a walk between its tasks is kept under the request's slot. Where walks unfold, it
/// is shared by all devices that the same [`LoadedModel`] is attached to, so tasks of one request
/// may run on several: the submitter ensures that the inputs of a task were produced by a task that
/// has ended, or by one before it on the same lane. In a chain the state stays on the device that
/// ran the first block, for all of its lanes.
#[derive(Clone, Debug)]
pub struct TaskMember {
    /// The request's slot.
    pub slot: RequestSlot,
    /// Number of rows; the first dimension of each of its inputs. 1 where walks unfold.
    pub rows: usize,
    /// The node: the step of the block, or the node of the request's graph. 0 in `whole` and
    /// `chain`.
    ///
    /// A step that the request does not have is padding, and so is any step once its walk has
    /// ended: it takes its time, computes on arbitrary data, and stores and reports nothing.
    pub node: u32,
    /// The request's data. Given with the first of its tasks on each device; repetition is
    /// harmless.
    ///
    /// An entry other than the one that the slot holds (by [`Arc::ptr_eq`]) begins a new walk there
    /// and discards the old one, and so does a later [`walk`](TaskMember::walk).
    pub entry: Option<Arc<RequestEntry>>,
    /// The walk's number, from [`next_walk`]; 0 if the caller does not number walks. Where walks
    /// unfold, a member of an earlier walk than its slot holds fails without effect: a device that
    /// was given up as lost may still run it.
    pub walk: u64,
    /// Time until which the client waits; `None` for no limit. If the batch fails, the member is
    /// left out of later re-runs of its parts.
    pub until: Option<Instant>,
}

impl TaskMember {
    /// Creates a member that runs its first or only step.
    pub fn new(slot: RequestSlot, rows: usize, entry: Option<Arc<RequestEntry>>) -> TaskMember {
        TaskMember { slot, rows, node: 0, entry, walk: 0, until: None }
    }
}

/// Returns a number for a new walk, greater than all before it. One counter for the whole process,
/// since several runtimes may serve a loaded model in turn.
pub fn next_walk() -> u64 {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    LATEST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Location of a request's inputs.
#[derive(Clone, Debug)]
pub enum Payload {
    /// In this process.
    Here(Arc<[Tensor]>),
    /// On a remote frontend, which also gets the outputs: only remote devices run such a request.
    Elsewhere(RemoteRows),
}

/// Identification of a request's rows on a remote frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRows {
    /// The frontend.
    pub frontend: u32,
    /// The frontend's number of the request, never reused.
    pub request: u64,
    /// The first of the rows.
    pub first_row: u32,
}

/// The data of a request, created once when it is accepted.
#[derive(Clone, Debug)]
pub struct RequestEntry {
    /// Its inputs.
    pub payload: Payload,
    /// Its extent, from [`LoadedModel::describe`]: executors use it and do not read the inputs for
    /// it again.
    pub extent: Extent,
    /// Its graph, if it has one, likewise.
    pub graph: Option<Arc<Graph>>,
    /// Whether each step's part of the answer is streamed, in [`MemberProgress::step`].
    pub stream: bool,
    /// Whether it runs every block of a chain regardless of the model's conditions: to measure and
    /// test them all.
    pub ignore_conditions: bool,
}

impl RequestEntry {
    /// Creates the entry of a request that runs each block once, for a model whose requests do not
    /// differ in length.
    pub fn of(inputs: Arc<[Tensor]>) -> RequestEntry {
        RequestEntry::new(Payload::Here(inputs), Extent::ONE)
    }

    /// Creates the entry of a request that runs each block once.
    pub fn new(payload: Payload, extent: Extent) -> RequestEntry {
        RequestEntry { payload, extent, graph: None, stream: false, ignore_conditions: false }
    }

    /// Returns its inputs; empty if they are on another machine.
    pub fn inputs(&self) -> &[Tensor] {
        match &self.payload {
            Payload::Here(inputs) => inputs,
            Payload::Elsewhere(_) => &[],
        }
    }
}

/// Outage of a model's engine: no process runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Reason: the end of the last process, or the failure to start one.
    pub cause: String,
    /// Time after which a new process may run.
    pub retry_after: Duration,
}

/// Failure of a task because an engine process was missing or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Time after which a new process may run.
    pub retry_after: Duration,
    /// Whether the process ended during the task: then one of its members may be the cause.
    pub inside: bool,
}

/// The end of a task.
#[derive(Debug)]
pub struct TaskResult {
    /// The task.
    pub id: TaskId,
    /// One entry per member in batch order, some of which may have
    /// [`failed`](MemberProgress::failed), or the error of the whole batch.
    pub outcome: Result<Vec<MemberProgress>, ExecError>,
    /// Set if the batch failed and parts of it were run again.
    pub rerun: Option<Rerun>,
    /// Set if it failed because a process of its model's engine was missing or ended. Its members
    /// may be retried.
    pub lost: Option<Loss>,
    /// Start of the execution.
    pub started: Instant,
    /// End of the execution.
    pub finished: Instant,
    /// Whether the lane already holds its next task: then the receiver should return quickly.
    pub holds_next: bool,
}

/// A batch that failed and was run again in parts.
#[derive(Clone, Debug)]
pub struct Rerun {
    /// Number of parts that were run.
    pub runs: u32,
    /// The engine's error for the whole batch. It may contain data of any member, so it is for the
    /// log and not for clients.
    pub cause: ExecError,
}

impl TaskResult {
    /// Returns the outcome of a batch that ran as one and succeeded for all its members; otherwise
    /// an error.
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
    /// Whether its walk ended here: its last block, step or node is done, or a condition of the
    /// model ended it early.
    ///
    /// Reported once per walk, even if its last two tasks run on two devices: by the one that ends
    /// later. A block that runs until its end also reports its own end this way when a further
    /// block follows; then there are no outputs yet.
    pub ended: bool,
    /// The later block that its walk skips to.
    pub skip: Option<BlockId>,
    /// Its outputs, if its walk ended, at the request's own length. Empty after the end of a block
    /// that a further block follows.
    pub outputs: Vec<Tensor>,
    /// The streamed part, if its entry asks for a stream: this step's contribution to the outputs
    /// that hold every step, as [1, 1, …] under the output's name, in the order of the steps. The
    /// last step has it, too, beside the outputs.
    pub step: Vec<Tensor>,
    /// The error, if the engine failed on this member alone; its walk has ended, and there are no
    /// outputs.
    pub failed: Option<ExecError>,
    /// Set if it failed only because its inputs could not be fetched: it may be retried.
    pub lost: Option<Loss>,
}

impl MemberProgress {
    /// Creates the result of a walk on which the engine failed.
    pub fn failed(cause: ExecError) -> MemberProgress {
        MemberProgress { failed: Some(cause), ..MemberProgress::default() }
    }

    /// Creates the result of a completed walk.
    pub fn ended(outputs: Vec<Tensor>) -> MemberProgress {
        MemberProgress { ended: true, outputs, ..MemberProgress::default() }
    }
}
