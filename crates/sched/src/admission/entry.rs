//! State of a request in admission control.

use crate::{CostScale, Why};
use ripieno_base::{ModelId, Time};

/// State of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmittedRequest {
    pub(super) model: ModelId,
    pub(super) flow: u32,
    pub(super) rows: u32,
    pub(super) length: u32,
    pub(super) scale: CostScale,
    pub(super) work: i64,
    /// Remaining work, and the work of the blocks that it ran.
    pub(super) left: i64,
    pub(super) ran: i64,
    pub(super) entered: Time,
    pub(super) deadline: Time,
    pub(super) state: AdmissionState,
    /// Whether it has not been started.
    pub(super) waits: bool,
    /// Whether it could not be in time from the start.
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
    rows: 0,
    length: 0,
    scale: CostScale::PROFILED,
    work: 0,
    left: 0,
    ran: 0,
    entered: Time::ORIGIN,
    deadline: Time::ORIGIN,
    state: AdmissionState::Absent,
    waits: false,
    hopeless: false,
};
