//! The executor contract: load a model once, open devices, give them tasks, hear of each exactly once.
//!
//! An executor executes batches; it never chooses them, and it knows nothing of deadlines or policies. Three nouns:
//! an [`Engine`] turns files into a [`Loaded`] model, a [`Device`] runs tasks of the models attached to it asynchronously, those
//! of each of its lanes in FIFO order, and a [`TaskResult`] comes back through the device's sink for every task accepted.

use crate::{
    ModelSource, Tensor,
    error::{ExecError, LoadError, RequestError},
};
use ripieno_base::{BlockId, LaneId, ModelId, RequestSlot, TaskId};
use ripieno_model::{Extent, Graph, Steps, TensorSpec};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Loads models for one kind of device. Shared by all threads; loading one model does not hold up another.
pub trait Engine: Send + Sync {
    /// The engine's name: "cpu", "onnxruntime", "emulated".
    fn name(&self) -> &'static str;

    /// Describes the device for people and as a key of cached profiles, for example "cpu/rten-0.27/1-thread".
    fn device_key(&self) -> String;

    /// Reads and checks a model. Slow; call it away from any thread that serves.
    fn load(&self, source: &ModelSource) -> Result<Arc<dyn Loaded>, LoadError>;

    /// Opens a device of this kind with so many lanes, at least one. `sink` is called once for every accepted task, from the
    /// threads of the lanes.
    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError>;
}

/// Receives the result of each task.
///
/// What it brings about may be done by the caller's thread before it returns: the device is given its next tasks, or models are
/// detached, so no lock is held that these would wait for.
pub type Sink = Arc<dyn Fn(TaskResult) + Send + Sync>;

/// What a thread without a task may be asked to do.
pub type Work = Arc<dyn Fn() + Send + Sync>;

/// A model in memory, ready to be attached to devices of the engine that loaded it.
pub trait Loaded: Send + Sync {
    /// The inputs of a request; the first dimension is the batch. Of a model that is not [`batched`](Loaded::batched) it
    /// stands before those of the file, and is always 1 in a request.
    fn inputs(&self) -> &[TensorSpec];

    /// The outputs of a request, likewise.
    fn outputs(&self) -> &[TensorSpec];

    /// Whether requests share batches. If not, each is one row, whose tensors the engine gets as they are.
    fn batched(&self) -> bool {
        true
    }

    /// The smallest and largest whole number that an input may hold, where that is known.
    fn range(&self, _input: &str) -> Option<(i64, i64)> {
        None
    }

    /// How many blocks it has.
    fn blocks(&self) -> usize;

    /// How often a request runs a block.
    fn steps(&self, _block: BlockId) -> Steps {
        Steps::Once
    }

    /// How far a request with these inputs walks, and its graph where it brings one: what an [`Entry`] needs beside them.
    ///
    /// Called at submission, before the request takes a slot. Checks all that the walk demands beyond
    /// [`inputs`](Loaded::inputs): ids that the model's tables have, text where it takes text, one sequence or tree a request, a
    /// length within the bound, a table of nodes that is a tree or graph. A request of a walk that does not unfold runs each
    /// block once; its length is 1 unless its tensors have one.
    fn describe(&self, _inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        Ok((Extent::ONE, None))
    }

    /// Where the inputs have the length of the request, of a walk that does not unfold; none if requests do not differ in
    /// length.
    fn lengths(&self) -> Option<&InputLengths> {
        None
    }

    /// A request of about this length, to try the model with and to measure it; none where requests neither unfold nor differ
    /// in length, or none can be made up.
    fn example(&self, _length: u32) -> Option<Vec<Tensor>> {
        None
    }

    /// If its engine runs in processes of its own, and none of them is there: why, and when there may be one again.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// How often a process of its engine has been started again; none if its engine runs in this one.
    fn restarts(&self) -> Option<u64> {
        None
    }

    /// For the engine's own devices, which downcast it.
    fn as_any(&self) -> &dyn Any;
}

/// Which dimension of each input is the length of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputLengths {
    /// The longest request.
    pub max: u32,
    /// In the order of the inputs; none of an input that has no such dimension.
    pub dims: Vec<Option<usize>>,
}

impl InputLengths {
    /// How far a request walks that brings these `inputs` to a model which takes those of `specs`.
    pub fn extent(&self, specs: &[TensorSpec], inputs: &[Tensor]) -> Result<Extent, RequestError> {
        let mut agreed: Option<(&str, i64)> = None;
        for (spec, dim) in specs.iter().zip(&self.dims) {
            let Some(dim) = dim else { continue };
            let brought = inputs.iter().find(|tensor| *tensor.name == *spec.name);
            let length = brought.and_then(|tensor| tensor.shape.get(*dim).copied()).unwrap_or(0);
            if !(1..=i64::from(self.max)).contains(&length) {
                return Err(RequestError(format!(
                    "input '{}' is {length} long in dimension {dim}, but the model takes 1 to {}; send less, or raise \
                     max_length in its model.toml",
                    spec.name, self.max
                )));
            }
            match agreed {
                Some((other, agreed)) if agreed != length => {
                    return Err(RequestError(format!(
                        "input '{}' is {length} long, but '{other}' is {agreed}; send them equally long",
                        spec.name
                    )));
                }
                _ => agreed = Some((&spec.name, length)),
            }
        }
        Ok(Extent { length: agreed.map_or(1, |(_, length)| length as u32), ..Extent::ONE })
    }
}

/// A device: runs the tasks of each of its lanes one after the other, in the order of submission.
///
/// Lanes run side by side and share the device: threads on a CPU, streams on a GPU. They share the walks as well: a request's
/// next block may run on another lane, once the task before has ended.
///
/// Shared between the thread that submits and those that attach, since attaching may be slow.
pub trait Device: Send + Sync {
    /// How many lanes it has.
    fn lanes(&self) -> usize {
        1
    }

    /// The most tasks that each lane holds at once, the running one included.
    fn depth(&self) -> usize;

    /// Makes a model runnable here as `id`. Takes effect after the tasks submitted before.
    ///
    /// What it costs is paid by the caller's thread, not by the tasks that run meanwhile. A model that cannot be made
    /// runnable shows it in its tasks, which fail and say why.
    fn attach(&self, id: ModelId, model: Arc<dyn Loaded>);

    /// Forgets a model. Takes effect after the tasks submitted before.
    fn detach(&self, id: ModelId);

    /// Queues a task on its lane, or hands it back if that holds `depth` tasks already, or is none.
    fn submit(&self, task: Task) -> Result<(), Task>;

    /// Has the thread of a lane that holds no task run `work`, soon and once; false if there is none, or it may not be soon.
    ///
    /// Whoever brings news of a request wakes a thread to decide about it. Where that is the thread that will run the request, too,
    /// no other need be woken. The same work that has been taken but not begun is not taken again: true is returned for it.
    fn run_idle(&self, _work: &Work) -> bool {
        false
    }

    /// Asks to stop a task. Its result still comes, once: an error if it was stopped, its outputs if it was done before or
    /// the device cannot stop a batch that runs. A task that waits behind another is never begun. An id that the device
    /// does not hold means a task that has just ended, and nothing is done. By default nothing can be stopped.
    fn cancel(&self, _id: TaskId) {}

    /// Rows copied so far to make batches contiguous, counted once for each input tensor; 0 where nothing is counted.
    ///
    /// It stays put while the same members run block after block in the same order. Where walks unfold, the elements of the
    /// requests' own inputs do not count, which lie apart and are copied into each batch.
    fn rows_gathered(&self) -> u64 {
        0
    }

    /// Tasks so far that went on with state of the requests without copying any of it: each tensor that another block, step
    /// or node left was read where it lay. Not counted are tasks that take no such tensor.
    fn tasks_without_copy(&self) -> u64 {
        0
    }

    /// What its tasks so far took, by what was done; zero where nothing is measured. Tasks that failed do not count.
    fn spent(&self) -> Spent {
        Spent::default()
    }
}

/// Time of a device's thread, by what it did for its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Finding the members' rows and putting them side by side.
    pub gather_ns: u64,
    /// In the engine.
    pub compute_ns: u64,
    /// Handing the results to the members.
    pub scatter_ns: u64,
}

/// One batch on one block.
#[derive(Debug)]
pub struct Task {
    /// Echoed in the result.
    pub id: TaskId,
    /// The model.
    pub model: ModelId,
    /// The block.
    pub block: BlockId,
    /// The lane that runs it.
    pub lane: LaneId,
    /// The length that the members are padded to, of a model with [`lengths`](Loaded::lengths): at least that of each, at
    /// most the model's longest. What a block has left stays as it was padded; members who were padded otherwise are run
    /// apart. Means nothing where requests do not differ in length.
    pub length: u32,
    /// The requests, in batch order. Where walks unfold, one may stand here several times, each time with another node.
    pub members: Vec<Member>,
    /// Do not begin before this instant.
    pub not_before: Option<Instant>,
}

/// A request in a batch.
///
/// The state of a walk between its tasks is kept under the request's slot. Where walks unfold it is shared by all devices
/// that the same [`Loaded`] is attached to, so that tasks of one request may run on several: whoever submits sees to it
/// that what a task takes has been left by a task that has ended, or by one before it on the same lane. In a chain the
/// state stays on the device that ran the first block, for all of its lanes.
#[derive(Clone, Debug)]
pub struct Member {
    /// The request's slot.
    pub slot: RequestSlot,
    /// Rows; the first dimension of each of its inputs. 1 where walks unfold.
    pub rows: usize,
    /// Which node this is: the step of the block, or the node of the request's graph. 0 in `whole` and `chain`.
    ///
    /// A step that the request does not have is padding, and so is any step once its walk has ended: it takes its time,
    /// computes on whatever is there, leaves nothing and reports nothing.
    pub node: u32,
    /// What the request brings. Given with the first of its tasks on each device; more often does no harm.
    ///
    /// An entry that is not the one (by [`Arc::ptr_eq`]) which the slot holds begins a new walk there and forgets the old, and
    /// so does a later [`walk`](Member::walk).
    pub entry: Option<Arc<Entry>>,
    /// Which walk it goes, by [`next_walk`]; 0 if nobody counts. Where walks unfold, a member of an earlier walk than its slot
    /// holds fails and touches nothing: a device that was given up as lost may still be at it.
    pub walk: u64,
    /// Until when somebody waits for it; for ever if none. Should its batch fail, it takes no part after that when parts of the
    /// batch are run again.
    pub until: Option<Instant>,
}

impl Member {
    /// A request that runs its first or only step.
    pub fn new(slot: RequestSlot, rows: usize, entry: Option<Arc<Entry>>) -> Member {
        Member { slot, rows, node: 0, entry, walk: 0, until: None }
    }
}

/// A number for a walk that begins, above all before it. One count for the whole process: a loaded model may be served by one
/// runtime after another.
pub fn next_walk() -> u64 {
    static LATEST: AtomicU64 = AtomicU64::new(0);
    LATEST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Where the inputs of a request lie.
#[derive(Clone, Debug)]
pub enum Payload {
    /// In this process.
    Here(Arc<[Tensor]>),
    /// With a front end elsewhere, which gets the outputs, too: only devices elsewhere run such a request.
    Elsewhere(Origin),
}

/// The name of a request's rows, where they lie elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The front end.
    pub frontend: u32,
    /// Its number of the request, which it never uses again.
    pub request: u64,
    /// The first of the request's rows that are meant.
    pub first_row: u32,
}

/// What a request brings, made once when it is accepted.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its inputs.
    pub payload: Payload,
    /// How far it walks, by [`Loaded::describe`]: executors take it from here and do not look at the inputs again.
    pub extent: Extent,
    /// Its graph, where it brings one, likewise.
    pub graph: Option<Arc<Graph>>,
    /// Whether each step's part of the answer is wanted as it is there, in [`Progress::step`].
    pub stream: bool,
    /// Whether it runs every block of a chain, whatever the model's conditions say: to measure and try them all.
    pub ignore_conditions: bool,
}

impl Entry {
    /// Of a request that runs each block once, of a model whose requests do not differ in length.
    pub fn of(inputs: Arc<[Tensor]>) -> Entry {
        Entry::new(Payload::Here(inputs), Extent::ONE)
    }

    /// Of a request that runs each block once.
    pub fn new(payload: Payload, extent: Extent) -> Entry {
        Entry { payload, extent, graph: None, stream: false, ignore_conditions: false }
    }

    /// Its inputs; none if they lie elsewhere.
    pub fn inputs(&self) -> &[Tensor] {
        match &self.payload {
            Payload::Here(inputs) => inputs,
            Payload::Elsewhere(_) => &[],
        }
    }
}

/// No process is there that runs a model's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// How the last one ended, or why it could not be started.
    pub cause: String,
    /// In how long there may be another.
    pub retry_after: Duration,
}

/// A task failed for want of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// In how long there may be one.
    pub retry_after: Duration,
    /// Whether the process ended with the task in it: then one of its members may be the cause.
    pub inside: bool,
}

/// The end of a task.
#[derive(Debug)]
pub struct TaskResult {
    /// The task.
    pub id: TaskId,
    /// One entry a member in batch order, some of whom may have [`failed`](Progress::failed), or the error that befell the whole
    /// batch.
    pub outcome: Result<Vec<Progress>, ExecError>,
    /// If the batch failed and parts of it were run again.
    pub again: Option<Again>,
    /// If it failed because a process of its model's engine has ended. Its members may be sent again.
    pub lost: Option<Loss>,
    /// When the device began with it.
    pub started: Instant,
    /// When it was done.
    pub finished: Instant,
    /// Whether the lane has its next task already: whoever is told had better let its thread go on at once.
    pub holds_next: bool,
}

/// A batch that failed, and was run again in parts.
#[derive(Clone, Debug)]
pub struct Again {
    /// How many parts were run.
    pub runs: u32,
    /// What the engine said of the whole batch. It may speak of any member, so it is for the log and not for clients.
    pub cause: ExecError,
}

impl TaskResult {
    /// The outcome, where only a batch that ran as one and well in all its members will do.
    pub fn whole(self) -> Result<Vec<Progress>, ExecError> {
        let progress = self.outcome?;
        match self.again.map(|again| again.cause).or_else(|| progress.iter().find_map(|one| one.failed.clone())) {
            Some(cause) => Err(cause),
            None => Ok(progress),
        }
    }
}

/// What a task did for one member.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Its walk ended here: its last block, step or node is done, or a condition of the model ended it early.
    ///
    /// Said once for each walk, also if its last two tasks run on two devices: by the one that ends later. A block that runs
    /// until its end says so as well when it has come to it, even if a further block follows; then there are no outputs yet.
    pub ended: bool,
    /// Its walk goes on with this block, which is later than the next one.
    pub skip: Option<BlockId>,
    /// Its outputs, if its walk ended, as long as the request itself. Empty after an end that a further block follows.
    pub outputs: Vec<Tensor>,
    /// If its entry asks for a stream: what this step adds to the outputs that hold every step, as [1, 1, …] under the
    /// output's name, in the order in which steps run. The last step has it, too, beside the outputs.
    pub step: Vec<Tensor>,
    /// The engine failed on this member alone, be it with these words; its walk is over, and there are no outputs.
    pub failed: Option<ExecError>,
    /// If it failed for no fault of its own, because what it brings could not be had: it may be sent again.
    pub lost: Option<Loss>,
}

impl Progress {
    /// The end of a walk that the engine failed on.
    pub fn failed(cause: ExecError) -> Progress {
        Progress { failed: Some(cause), ..Progress::default() }
    }

    /// The end of a walk.
    pub fn ended(outputs: Vec<Tensor>) -> Progress {
        Progress { ended: true, outputs, ..Progress::default() }
    }
}
