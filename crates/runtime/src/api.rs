//! The runtime's interface to the HTTP and gRPC servers: submit a job, get one answer.

use crate::OpenSizes;
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{LoadedModel, RemoteRows, Tensor};
use ripieno_model::{Extent, Model};
use ripieno_sched::Limits;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// A model to serve.
pub struct ServedModel {
    /// The scheduler's view: profile, SLO, largest batch, instances, drop rule.
    pub model: Model,
    /// The executor's view.
    pub loaded: Arc<dyn LoadedModel>,
    /// Largest number of live requests of this model; further ones are refused.
    pub max_queue: usize,
    /// Whether a request past its SLO is still answered (`late = "answer"`) instead of refused at
    /// its deadline.
    pub answer_late: bool,
}

impl ServedModel {
    /// Default of [`ServedModel::max_queue`].
    pub const MAX_QUEUE: usize = Limits::SERVED_QUEUE;
}

/// One client call.
pub struct Job {
    /// The model.
    pub model: ModelId,
    /// All inputs of the model, checked against its specification; their first dimension is the
    /// rows.
    pub inputs: Arc<[Tensor]>,
    /// Number of rows. A call with more rows than the model's largest batch is split, and its
    /// outputs are joined. 1 where walks unfold.
    pub rows: usize,
    /// The client's own time limit, if it gave one; the model's SLO applies as well.
    pub timeout: Option<Duration>,
    /// The remaining time of the whole ensemble, for a stage of one. It replaces the model's SLO,
    /// and the stage is dropped after it even if the model answers late.
    pub stage: Option<Duration>,
    /// The client whose fair share the job counts against; 0 if unknown.
    pub client: u16,
    /// Priority among requests of the same client for the same model; higher is served first where
    /// not all can be.
    pub priority: u8,
    /// Receives each step of the outputs that hold every step, if the model has any; dropped before
    /// `on_answer` is called. Runs on a runtime thread that serves all clients: it must not block,
    /// and must bound what it buffers.
    pub on_step: Option<OnStep>,
    /// Called exactly once for every accepted job, from a runtime thread; must not block.
    pub on_answer: Box<dyn FnOnce(JobResult) + Send>,
}

/// A client call whose inputs and outputs stay with a remote frontend. It holds all that the
/// scheduler needs to decide when and where to run it.
pub struct RemoteJob {
    /// The model, whose walks do not unfold.
    pub model: ModelId,
    /// The location of the rows, from the first on.
    pub origin: RemoteRows,
    /// Number of rows; may exceed the model's largest batch.
    pub rows: usize,
    /// The extent of its walk, which the frontend computed by [`LoadedModel::describe`].
    pub extent: Extent,
    /// The sizes of its open dimensions, by [`OpenDims::sizes`](crate::OpenDims::sizes).
    pub sizes: OpenSizes,
    /// Bytes of its inputs.
    pub bytes: usize,
    /// See [`Job`].
    pub timeout: Option<Duration>,
    /// See [`Job`].
    pub client: u16,
    /// See [`Job`].
    pub priority: u8,
    /// See [`Job`]; the answer has no outputs.
    pub on_answer: Box<dyn FnOnce(JobResult) + Send>,
}

/// Receives the steps of one job, in order.
pub type OnStep = Box<dyn FnMut(StreamedStep) + Send>;

/// One streamed part of an answer.
#[derive(Clone, Debug)]
pub struct StreamedStep {
    /// The step's contribution to each output that holds every step, of shape [1, 1, …].
    pub outputs: Vec<Tensor>,
    /// Whether the walk ended with this step, so that the answer follows.
    pub last: bool,
}

/// The one answer to an accepted job.
pub type JobResult = Result<JobOutput, Failure>;

/// A successful answer.
#[derive(Debug)]
pub struct JobOutput {
    /// All outputs of the model; their first dimension is the rows.
    pub outputs: Vec<Tensor>,
    /// Time from arrival to the start of the (last part's) batch.
    pub queued: Nanos,
    /// Execution time of that batch.
    pub executed: Nanos,
    /// Number of rows in that batch.
    pub batch: usize,
    /// Whether the answer came after the deadline.
    pub late: bool,
}

/// State of a model's engine processes, where the engine runs in processes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineProcesses {
    /// Whether at least one process runs.
    pub up: bool,
    /// Number of restarts.
    pub restarts: u64,
}

/// Reason why an accepted job ends without outputs.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Failure {
    /// Its deadline passed.
    #[error("Request timeout expired")]
    Expired,
    /// No schedule could meet its deadline any more.
    #[error("Request timeout expired: no schedule could meet its deadline")]
    Hopeless,
    /// Its model or client asks for more than its share of the devices. Holds the time after which
    /// to retry.
    #[error(
        "the devices are busy, and the model or the client asks for more than its share of them; retry after {0:?}"
    )]
    Share(Duration),
    /// The client went away.
    #[error("the request was cancelled")]
    Cancelled,
    /// The engine failed on its batch.
    #[error("inference failed: {0}")]
    Failed(String),
    /// The process of its model's engine ended with its batch, or has not restarted yet.
    #[error("{cause}; retry after {retry_after:?}")]
    Outage {
        /// The end of the process, in words.
        cause: String,
        /// Time after which a new process may run.
        retry_after: Duration,
    },
    /// The remote scheduler refused it.
    #[error("{0}")]
    Refused(Refused),
    /// Its model was unloaded while it waited.
    #[error("the model was unloaded")]
    Unloaded,
    /// The server shut down before it ran.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Reason why a job was not accepted; `on_answer` is not called.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// The queue of the model or of the server is full.
    #[error("Exceeds maximum queue size of {bound} requests; retry after {retry_after:?}")]
    QueueFull {
        /// The bound.
        bound: usize,
        /// Time after which a retry may succeed.
        retry_after: Duration,
    },
    /// It exceeds the limits even of an empty server.
    #[error("{asked} in one request; at most {most} can ever be taken, so send it in parts")]
    TooLarge {
        /// Its size: rows or bytes.
        asked: String,
        /// Largest size that may wait.
        most: usize,
    },
    /// The graphs of all live requests together hold the largest allowed number of nodes.
    #[error("the graphs of the requests in the server hold {held} of {bound} nodes; retry after {retry_after:?}")]
    NodesFull {
        /// Nodes held.
        held: usize,
        /// The bound.
        bound: usize,
        /// Time after which a retry may succeed.
        retry_after: Duration,
    },
    /// The inputs do not fit the model's walk: too long, no tree, an unknown token.
    #[error("{0}")]
    Invalid(String),
    /// The process of the model's engine has ended and not restarted yet.
    #[error("{cause}; retry after {retry_after:?}")]
    Outage {
        /// The end of the process, in words.
        cause: String,
        /// Time after which a new process may run.
        retry_after: Duration,
    },
    /// No such model is loaded.
    #[error("the model is not loaded")]
    NotLoaded,
    /// The server is draining.
    #[error("the server is shutting down")]
    ShuttingDown,
}
