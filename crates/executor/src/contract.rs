//! The executor contract: load a model once, open devices, give them tasks, hear of each exactly once.
//!
//! An executor executes batches; it never chooses them, and it knows nothing of deadlines or policies. Three nouns:
//! an [`Engine`] turns files into a [`Loaded`] model, a [`Device`] runs tasks of the models attached to it in FIFO order,
//! asynchronously, and a [`TaskResult`] comes back through the device's sink for every task accepted.

use crate::{
    Tensor,
    error::{ExecError, LoadError},
};
use ripieno_base::{BlockId, ModelId, RequestSlot, TaskId};
use ripieno_model::{Profile, TensorSpec};
use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// What to load.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// The model's name, for messages.
    pub name: String,
    /// The blocks in the walk's order; tensors flow from one to the next by name.
    pub blocks: Vec<BlockSource>,
    /// The most rows in one batch; buffers are sized for it.
    pub max_batch: usize,
    /// Inputs as declared by the user; needed by engines that have no file to read them from.
    pub inputs: Vec<TensorSpec>,
    /// Outputs as declared by the user; likewise.
    pub outputs: Vec<TensorSpec>,
}

/// One block of a model.
#[derive(Clone, Debug)]
pub struct BlockSource {
    /// The block's name, unique in its model.
    pub name: String,
    /// The ONNX file; none for an emulated block.
    pub path: Option<PathBuf>,
    /// ℓ(b), where it is known beforehand; emulated blocks need it.
    pub profile: Option<Profile>,
}

/// Loads models for one kind of device. Shared by all threads; loading one model does not hold up another.
pub trait Engine: Send + Sync {
    /// The engine's name: "cpu", "onnxruntime", "emulated".
    fn name(&self) -> &'static str;

    /// Describes the device for people and as a key of cached profiles, for example "cpu/rten-0.27/1-thread".
    fn device_key(&self) -> String;

    /// Reads and checks a model. Slow; call it away from any thread that serves.
    fn load(&self, source: &ModelSource) -> Result<Arc<dyn Loaded>, LoadError>;

    /// Opens a device of this kind. `sink` is called once for every accepted task, from the device's own thread.
    fn open(&self, sink: Sink) -> Result<Box<dyn Device>, LoadError>;
}

/// Receives the result of each task.
pub type Sink = Arc<dyn Fn(TaskResult) + Send + Sync>;

/// A model in memory, ready to be attached to devices of the engine that loaded it.
pub trait Loaded: Send + Sync {
    /// The inputs of a request; the first dimension is the batch.
    fn inputs(&self) -> &[TensorSpec];

    /// The outputs of a request; the first dimension is the batch.
    fn outputs(&self) -> &[TensorSpec];

    /// How many blocks it has.
    fn blocks(&self) -> usize;

    /// For the engine's own devices, which downcast it.
    fn as_any(&self) -> &dyn Any;
}

/// A device: runs its tasks one after the other, in the order of submission.
///
/// Shared between the thread that submits and those that attach, since attaching may be slow.
pub trait Device: Send + Sync {
    /// The most tasks it holds at once, the running one included.
    fn depth(&self) -> usize;

    /// Makes a model runnable here as `id`. Takes effect after the tasks submitted before.
    ///
    /// What it costs is paid by the caller's thread, not by the tasks that run meanwhile. A model that cannot be made
    /// runnable shows it in its tasks, which fail and say why.
    fn attach(&self, id: ModelId, model: Arc<dyn Loaded>);

    /// Forgets a model. Takes effect after the tasks submitted before.
    fn detach(&self, id: ModelId);

    /// Queues a task, or hands it back if `depth` tasks are held already.
    fn submit(&self, task: Task) -> Result<(), Task>;

    /// Asks to stop a task. Its result still comes, once: an error if it was stopped, its outputs if it was done before or
    /// the device cannot stop a batch that runs. A task that waits behind another is never begun. An id that the device
    /// does not hold means a task that has just ended, and nothing is done. By default nothing can be stopped.
    fn cancel(&self, _id: TaskId) {}

    /// Rows copied so far to make batches contiguous, counted once for each input tensor; 0 where nothing is counted.
    ///
    /// It stays put while the same members run block after block in the same order.
    fn rows_gathered(&self) -> u64 {
        0
    }
}

/// One batch on one block.
#[derive(Debug)]
pub struct Task {
    /// Echoed in the result.
    pub id: TaskId,
    /// The model.
    pub model: ModelId,
    /// The block; the first takes the members' inputs, a later one what the block before left for each member's slot.
    pub block: BlockId,
    /// The requests, in batch order.
    pub members: Vec<Member>,
    /// Do not begin before this instant.
    pub not_before: Option<Instant>,
}

/// A request in a batch.
#[derive(Clone, Debug)]
pub struct Member {
    /// The request's slot; its state between blocks is kept under it.
    pub slot: RequestSlot,
    /// Rows; the first dimension of each of its inputs.
    pub rows: usize,
    /// Its inputs, for the first block of the walk.
    pub inputs: Option<Arc<[Tensor]>>,
}

/// The end of a task.
#[derive(Debug)]
pub struct TaskResult {
    /// The task.
    pub id: TaskId,
    /// One entry a member in batch order, or the error that befell the whole batch.
    pub outcome: Result<Vec<Progress>, ExecError>,
    /// When the device began with it.
    pub started: Instant,
    /// When it was done.
    pub finished: Instant,
}

/// What a task did for one member.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Its walk ended here, be it in the last block or early.
    pub ended: bool,
    /// Its outputs, if its walk ended.
    pub outputs: Vec<Tensor>,
}
