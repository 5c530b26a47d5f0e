//! What the front end sees of the runtime: submit a job, get one answer.

use crate::OpenSizes;
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{Loaded, Origin, Tensor};
use ripieno_model::{Extent, Model};
use ripieno_sched::Limits;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// A model to serve.
pub struct ServedModel {
    /// As the scheduler sees it: profile, SLO, largest batch, instances, drop rule.
    pub model: Model,
    /// As the executor sees it.
    pub loaded: Arc<dyn Loaded>,
    /// The most live requests of this model; further ones are refused.
    pub max_queue: usize,
    /// Whether a request past its SLO is still answered (`late = "answer"`), instead of refused at its deadline.
    pub answer_late: bool,
}

impl ServedModel {
    /// The bound of its queue where its owner names none.
    pub const MAX_QUEUE: usize = Limits::SERVED_QUEUE;
}

/// One client call.
pub struct Job {
    /// The model.
    pub model: ModelId,
    /// All inputs of the model, checked against its specification; their first dimension is the rows.
    pub inputs: Arc<[Tensor]>,
    /// Rows; may exceed the model's largest batch, then the call is split and put together again. 1 where walks unfold.
    pub rows: usize,
    /// The client's own time limit, if it gave one; the model's SLO holds as well.
    pub timeout: Option<Duration>,
    /// Of a stage of an ensemble, what is left to it of the time of the whole. That counts instead of the model's SLO, and past it
    /// the stage is given up, even if the model answers late.
    pub stage: Option<Duration>,
    /// Whose share of the devices it takes; 0 if nobody knows.
    pub client: u16,
    /// The higher, the sooner among requests of the same client for the same model, where not all can be served.
    pub priority: u8,
    /// Wants the outputs that hold every step as they come, if the model has any; dropped before `on_answer` is called.
    /// Called from a runtime thread, for which all other clients wait: it must not block, and must bound what it keeps.
    pub on_step: Option<OnStep>,
    /// Called exactly once for every accepted job, from a runtime thread; must not block.
    pub on_answer: Box<dyn FnOnce(Answer) + Send>,
}

/// A client call whose inputs lie with a front end elsewhere, which gets the outputs, too: what there is to know of it
/// to decide when it runs and where.
pub struct RemoteJob {
    /// The model, whose walks do not unfold.
    pub model: ModelId,
    /// Where the rows lie, from the first on.
    pub origin: Origin,
    /// Rows; may exceed the model's largest batch.
    pub rows: usize,
    /// How far it walks, which the front end has found by [`Loaded::describe`].
    pub extent: Extent,
    /// The sizes of its open dimensions, by [`OpenDims::sizes`](crate::OpenDims::sizes).
    pub sizes: OpenSizes,
    /// Bytes of its inputs.
    pub bytes: usize,
    /// As in [`Job`].
    pub timeout: Option<Duration>,
    /// As in [`Job`].
    pub client: u16,
    /// As in [`Job`].
    pub priority: u8,
    /// As in [`Job`]; the answer has no outputs.
    pub on_answer: Box<dyn FnOnce(Answer) + Send>,
}

/// Receives the steps of one job, in order.
pub type OnStep = Box<dyn FnMut(Step) + Send>;

/// A part of an answer that is still under way.
#[derive(Clone, Debug)]
pub struct Step {
    /// What one step adds to outputs that hold every step, each of shape [1, 1, …].
    pub outputs: Vec<Tensor>,
    /// Whether the walk ended with it, so that the answer comes next.
    pub last: bool,
}

/// The one answer to an accepted job.
pub type Answer = Result<Answered, Failure>;

/// A successful answer.
#[derive(Debug)]
pub struct Answered {
    /// All outputs of the model; their first dimension is the rows.
    pub outputs: Vec<Tensor>,
    /// From arrival to the start of its (last part's) batch.
    pub queued: Nanos,
    /// Execution time of that batch.
    pub executed: Nanos,
    /// Rows in that batch.
    pub batch: usize,
    /// Whether it came after the deadline.
    pub late: bool,
}

/// The processes that run a model's engine, where it has some of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processes {
    /// Whether one is there.
    pub up: bool,
    /// How often one was started again.
    pub restarts: u64,
}

/// Why an accepted job ends without outputs.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Failure {
    /// Its deadline passed.
    #[error("Request timeout expired")]
    Expired,
    /// No schedule could meet its deadline any more.
    #[error("Request timeout expired: no schedule could meet its deadline")]
    Hopeless,
    /// Its model or client asks for more than its share of the devices.
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
    /// The process that runs its model's engine ended with its batch, or is not back yet.
    #[error("{cause}; retry after {retry_after:?}")]
    Outage {
        /// What happened to the process.
        cause: String,
        /// When there may be another.
        retry_after: Duration,
    },
    /// It was not taken by whoever decides, elsewhere.
    #[error("{0}")]
    Refused(Refused),
    /// Its model was unloaded while it waited.
    #[error("the model was unloaded")]
    Unloaded,
    /// The server is going down and did not get to it in time.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Why a job was not accepted; `on_answer` is not called.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// The queue bound of the model or of the server is hit.
    #[error("Exceeds maximum queue size of {bound} requests; retry after {retry_after:?}")]
    QueueFull {
        /// The bound.
        bound: usize,
        /// When a retry may succeed.
        retry_after: Duration,
    },
    /// It could not be taken even by an empty server.
    #[error("{asked} in one request; at most {most} can ever be taken, so send it in parts")]
    TooLarge {
        /// What it has: rows, bytes.
        asked: String,
        /// How much of that may wait at once.
        most: usize,
    },
    /// The nodes of all live requests that bring graphs hit their bound.
    #[error("the graphs of the requests in the server hold {held} of {bound} nodes; retry after {retry_after:?}")]
    NodesFull {
        /// Nodes taken.
        held: usize,
        /// The bound.
        bound: usize,
        /// When a retry may succeed.
        retry_after: Duration,
    },
    /// The inputs are not what the model's walk takes: too long, no tree, an unknown token.
    #[error("{0}")]
    Invalid(String),
    /// The process that runs the model's engine has ended, and is not back yet.
    #[error("{cause}; retry after {retry_after:?}")]
    Outage {
        /// What happened to the process.
        cause: String,
        /// When there may be another.
        retry_after: Duration,
    },
    /// No such model is loaded.
    #[error("the model is not loaded")]
    NotLoaded,
    /// The server is draining.
    #[error("the server is shutting down")]
    ShuttingDown,
}
