//! The runtime's interface to the HTTP and gRPC servers: submit a job, get one answer.

use crate::{Failure, OpenSizes};
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{LoadedModel, RemoteRows, Tensor};
use ripieno_model::{Extent, Graph, Model};
use ripieno_sched::Limits;
use std::sync::Arc;
use std::time::Duration;

/// A model to serve.
pub struct ServedModel {
    /// The scheduler's description: profile, SLO, largest batch, instances, drop rule.
    pub model: Model,
    /// The executor's loaded form of the model.
    pub loaded: Arc<dyn LoadedModel>,
    /// Largest number of live requests of this model. `None` for [`Limits::served_queue`], and for
    /// as many as the engine has free if late requests are refused. Further requests are refused.
    pub max_queue: Option<usize>,
    /// Largest device time of the live requests, each by its own length. Further requests are
    /// refused; one that finds none is accepted however long it is.
    pub max_queued_work: Option<Nanos>,
    /// Whether a request is still answered after the model's SLO (`late = "answer"`). Otherwise it
    /// is refused at its deadline.
    pub answer_late: bool,
}

impl ServedModel {
    /// Live requests of a model that names no bound, on any number of devices.
    pub const MIN_QUEUE: usize = Limits::SERVED_QUEUE;
}

/// One client call.
pub struct Job {
    /// Model to run.
    pub model: ModelId,
    /// All inputs of the model, checked against its specification. The first dimension of each
    /// input is the number of rows.
    pub inputs: Arc<[Tensor]>,
    /// Number of rows. A call with more rows than the model's largest batch is split, and its
    /// outputs are joined. Models that run cell by cell require 1.
    pub rows: usize,
    /// The client's own time limit, if any. The model's SLO applies as well.
    pub timeout: Option<Duration>,
    /// Remaining time of the ensemble, if this job is a stage of one. It replaces the model's SLO.
    /// When it has passed, the job is dropped even if the model answers late.
    pub stage: Option<Duration>,
    /// Client whose fair share the job counts against; 0 if unknown.
    pub client: u16,
    /// Priority among the requests of one client for one model. If not all can be served, higher
    /// priorities are served first.
    pub priority: u8,
    /// Receives the answer step by step, for outputs that the model produces in steps. It is
    /// dropped before `on_answer` is called. It runs on a runtime thread that serves all clients,
    /// so it must not block and must bound its buffers.
    pub on_step: Option<OnStep>,
    /// Receives the answer. A runtime thread calls it exactly once for every accepted job; it must
    /// not block.
    pub on_answer: Box<dyn FnOnce(JobResult) + Send>,
}

impl Job {
    /// Creates a job of an unknown client: without a time limit of its own, steps or priority.
    pub fn new(
        model: ModelId,
        inputs: Arc<[Tensor]>,
        rows: usize,
        on_answer: Box<dyn FnOnce(JobResult) + Send>,
    ) -> Job {
        let (timeout, stage, client, priority, on_step) = (None, None, 0, 0, None);
        Job { model, inputs, rows, timeout, stage, client, priority, on_step, on_answer }
    }
}

/// A client call whose inputs and outputs stay on a remote server. It holds only the information
/// that the scheduler needs.
pub struct RemoteJob {
    /// Model to run. If its requests run cell by cell, it must be [pinned](Model::pinned) where
    /// devices do not share the requests' state.
    pub model: ModelId,
    /// Location of the rows, starting at the first.
    pub origin: RemoteRows,
    /// Number of rows; may exceed the model's largest batch.
    pub rows: usize,
    /// The request's extent, which the remote server computed by [`LoadedModel::describe`]. If
    /// requests run cell by cell, only the length is read.
    pub extent: Extent,
    /// The request's graph, if it has one, from [`LoadedModel::describe`].
    pub graph: Option<Arc<Graph>>,
    /// Whether the remote server wants the answer step by step. The device sends it the steps.
    pub stream: bool,
    /// Sizes of the request's open dimensions, computed by
    /// [`OpenDims::sizes`](crate::OpenDims::sizes).
    pub sizes: OpenSizes,
    /// Size of the inputs in bytes.
    pub bytes: usize,
    /// See [`Job::timeout`].
    pub timeout: Option<Duration>,
    /// Time since the request came to the remote server, apart from the way; it counts towards the
    /// SLO, and is not part of the timeout.
    pub age: Duration,
    /// Time that passes on the way from the remote server and back, which counts towards the
    /// deadline.
    pub way: Duration,
    /// See [`Job::client`].
    pub client: u16,
    /// See [`Job::priority`].
    pub priority: u8,
    /// See [`Job::on_answer`]. The answer has no outputs.
    pub on_answer: Box<dyn FnOnce(JobResult) + Send>,
}

/// Callback for the steps of one job, in order.
pub type OnStep = Box<dyn FnMut(StreamedStep) + Send>;

/// One streamed step of an answer.
#[derive(Clone, Debug)]
pub struct StreamedStep {
    /// The step's part of each streamed output, of shape [1, 1, …].
    pub outputs: Vec<Tensor>,
    /// Whether this is the last step, after which the answer follows.
    pub last: bool,
}

/// The answer to an accepted job.
pub type JobResult = Result<JobOutput, Failure>;

/// A successful answer.
#[derive(Debug)]
pub struct JobOutput {
    /// All outputs of the model. The first dimension of each output is the number of rows.
    pub outputs: Vec<Tensor>,
    /// Time from arrival to the start of the batch. For a split request, the batch of the part that
    /// started last counts.
    pub queued: Nanos,
    /// Execution time of the batch.
    pub executed: Nanos,
    /// Number of rows in the batch.
    pub batch: usize,
    /// Whether the answer comes after the deadline.
    pub late: bool,
}

/// Findings of a model's answers about its rows, while it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchFindings {
    /// Number of rows of served batches that were compared with their answers alone.
    pub rows_compared: u64,
    /// Reason for which each request runs alone although the model was loaded with batches.
    pub stopped: Option<String>,
}

/// State of a model's engine processes, for engines that run outside the server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineProcesses {
    /// Whether at least one process runs.
    pub up: bool,
    /// Number of restarts so far.
    pub restarts: u64,
}
