//! A request of a frontend that waits for its answer, and the limits of its time.

use super::counters::LiveGuard;
use super::steps::StepReceiver;
use crate::plane::RequestHeader;
use ripieno_base::Nanos;
use ripieno_executor::Tensor;
use ripieno_model::Graph;
use ripieno_runtime::{Ending, JobOutput, JobResult};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request that waits for its answer.
pub(super) struct PendingRequest {
    /// The header sent to the scheduler, with the frontend's id of the model.
    pub(super) header: RequestHeader,
    pub(super) inputs: Arc<[Tensor]>,
    /// Graph of the request, if it brings one.
    pub(super) graph: Option<Arc<Graph>>,
    /// Receives the answer step by step, if the client reads it so.
    pub(super) steps: Option<Arc<StepReceiver>>,
    /// True once a step was received.
    pub(super) streamed: bool,
    /// Whether each row runs in one batch.
    pub(super) whole: bool,
    pub(super) came: Instant,
    pub(super) limits: AnswerLimits,
    pub(super) live: LiveGuard,
    pub(super) on_answer: Box<dyn FnOnce(JobResult) + Send>,
    /// The reported result without outputs, and the time of the report.
    pub(super) ended: Option<(JobOutput, Instant)>,
    /// The rows that devices have pulled.
    pub(super) pieces: Vec<Piece>,
    /// True once the scheduler that first received it is lost.
    pub(super) orphaned: bool,
}

/// Times until which a request is to be answered; `None` if there is no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerLimits {
    /// Time after which an answer is late.
    pub(super) due: Option<Instant>,
    /// Time after which an error takes the place of the answer.
    pub(super) expires: Option<Instant>,
}

impl AnswerLimits {
    /// Returns true if no late answer is given.
    pub(super) fn is_enforced(self) -> bool {
        self.expires.is_some() && self.expires == self.due
    }
}

/// A request to send again: its header, and its graph if it brings one.
pub(super) type Resubmission = (RequestHeader, Option<Arc<Graph>>);

/// Rows that a device has pulled.
pub(super) struct Piece {
    pub(super) first_row: u32,
    pub(super) rows: u32,
    /// The connection that owes their outputs.
    pub(super) connection: u64,
    /// Time that the device waited for the rows, as far as it is known.
    pub(super) pulled: Duration,
    pub(super) outputs: Option<Vec<Tensor>>,
}

/// A request that has left the table, with its result; the holder answers it.
pub(super) struct CompletedRequest(pub(super) Box<PendingRequest>, pub(super) JobResult);

impl PendingRequest {
    /// Returns the request for a new primary, with its age and the time left at `now`.
    pub(super) fn at(&self, now: Instant) -> Resubmission {
        let age_ms = u16::try_from(now.saturating_duration_since(self.came).as_millis()).unwrap_or(u16::MAX);
        let left = self.limits.expires.map(|expires| expires.saturating_duration_since(now));
        let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        (RequestHeader { left_ns, age_ms, ..self.header }, self.graph.clone())
    }

    /// Returns the piece whose outputs this connection owes.
    pub(super) fn owed_by(&mut self, connection: u64) -> Option<&mut Piece> {
        self.pieces.iter_mut().find(|piece| piece.connection == connection && piece.outputs.is_none())
    }

    /// Returns the number of rows whose outputs have arrived.
    pub(super) fn rows_received(&self) -> u32 {
        self.pieces.iter().filter(|piece| piece.outputs.is_some()).map(|piece| piece.rows).sum()
    }

    /// Returns true if the scheduler reports all times of the request: the time between several
    /// batches is not reported, and a lost scheduler reports none.
    pub(super) fn reports_times(&self) -> bool {
        self.whole && !self.orphaned
    }

    /// Returns the connections that still owe outputs.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.iter().filter(|piece| piece.outputs.is_none()).map(|piece| piece.connection)
    }
}

impl CompletedRequest {
    /// Returns its number if the primary may not know that it has ended.
    pub(super) fn orphaned_id(&self) -> Option<u64> {
        self.0.orphaned.then_some(self.0.header.request)
    }

    /// Counts the request and answers it.
    pub(super) fn answer(self) {
        let CompletedRequest(pending, answer) = self;
        let PendingRequest { header: RequestHeader { rows, .. }, came, live, steps, on_answer, .. } = *pending;
        // Its reader sees the end of the steps before the answer.
        if let Some(steps) = steps {
            steps.close();
        }
        let metrics = &live.0.metrics;
        let took = Nanos(i64::try_from(came.elapsed().as_nanos()).unwrap_or(i64::MAX));
        match &answer {
            Ok(JobOutput { queued, executed, late, .. }) => {
                metrics.on_success(*late, rows as usize, took, *queued, *executed);
            }
            Err(failure) if failure.ending() == Ending::Refused => metrics.on_refused(),
            Err(failure) => metrics.on_failure(failure.ending(), took),
        }
        // A client with an answer no longer counts as waiting.
        drop(live);
        on_answer(answer);
    }
}
