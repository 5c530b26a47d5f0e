//! State of a request, and of a model, in admission control.

use super::cost::RequestCosts;
use super::shares::CLIENTS;
use crate::Why;
use ripieno_base::{ModelId, Ratio, Time};
use ripieno_model::{DropRule, Model};

/// State of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmittedRequest {
    /// Model of the request.
    pub(super) model: ModelId,
    /// Flow of the request: the model's number times [`CLIENTS`], plus the client's.
    pub(super) flow: u32,
    /// Device time in full batches.
    pub(super) work: i64,
    /// Time of arrival.
    pub(super) entered: Time,
    /// Deadline of the request.
    pub(super) deadline: Time,
    /// State of the request.
    pub(super) state: AdmissionState,
    /// True if the request could not be in time from the start.
    pub(super) hopeless: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionState {
    Absent,
    /// The policy has it.
    Inside,
    /// Refused; rejected in the next settle.
    Refused,
    /// Refused, and being withdrawn from a policy that has received its graph.
    Withdrawn(Why),
}

pub(super) const ABSENT: AdmittedRequest = AdmittedRequest {
    model: ModelId(0),
    flow: 0,
    work: 0,
    entered: Time::ORIGIN,
    deadline: Time::ORIGIN,
    state: AdmissionState::Absent,
    hopeless: false,
};

/// A model and its requests in the policy.
#[derive(Debug)]
pub(super) struct AdmittedModel {
    /// Costs of the model's requests.
    pub(super) costs: RequestCosts,
    /// Drop rule of the model; `None` for the policy's default.
    drop: Option<DropRule>,
    /// Work of the model's requests in the policy, by client.
    by_client: Box<[i64]>,
    /// Work of the model's requests in the policy, in total.
    pub(super) work: i64,
    /// Number of clients with requests in the policy.
    pub(super) clients: i64,
    /// Part of the SLO that the queue may last.
    pub(super) queue_part: QueuePart,
}

/// A part of the SLO, in parts of 65,536.
pub(super) type QueuePart = Ratio<{ 1 << 16 }>;
/// Additive increase of the part with each answer in time.
const INCREASE: QueuePart = QueuePart::from_parts(QueuePart::WHOLE.parts() / 4_096);
/// Reciprocal of the multiplicative decrease of the part with each late answer. While the queue is
/// full, 1.5 % of the answers are late at the whole SLO, and 3 % at half of it.
const DECREASE: u64 = 64;

impl AdmittedModel {
    pub(super) fn new(model: Box<Model>) -> AdmittedModel {
        let drop = model.drop;
        AdmittedModel {
            costs: RequestCosts::new(model),
            drop,
            by_client: Box::new([0; CLIENTS]),
            work: 0,
            clients: 0,
            queue_part: QueuePart::WHOLE,
        }
    }

    /// Returns whether late answers are acceptable.
    pub(super) fn may_be_late(&self) -> bool {
        matches!(self.drop, Some(DropRule::Never | DropRule::Expired))
    }

    /// Records an answer, which changes the part of the SLO that the queue may last. The real cost
    /// of the policy's batches is unknown here, so late answers steer the bound.
    pub(super) fn on_answer(&mut self, late: bool) {
        let part = self.queue_part;
        let next = if late { part - QueuePart::from_parts(part.parts() / DECREASE) } else { part + INCREASE };
        self.queue_part = next.clamp(INCREASE, QueuePart::WHOLE);
    }

    /// Returns the work in the policy of a flow's client.
    pub(super) fn work_of(&self, flow: u32) -> i64 {
        self.by_client[flow as usize % CLIENTS]
    }

    /// Adds a request's work; negative if the request leaves the policy.
    pub(super) fn add(&mut self, flow: u32, work: i64) {
        let own = &mut self.by_client[flow as usize % CLIENTS];
        let before = i64::from(*own > 0);
        *own += work;
        self.clients += i64::from(*own > 0) - before;
        self.work += work;
    }
}
