//! The messages of the simulation: the roles' messages (`ripieno_cluster::plane`) without their
//! effect on tensors, and with repetitions, since messages are lost here.

use ripieno_base::{ModelId, Nanos};
use ripieno_cluster::handover::{Epoch, ReachedRoles, RequestId, Role, RunningRows, Stamp};

/// A batch: the claim under which it was ordered, and its number under that claim.
pub(crate) type Batch = (Stamp, u64);

/// A message, and the latest epoch that its sender knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Epoch of the sender, for a primary.
    pub(crate) epoch: Epoch,
    pub(crate) body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// To every scheduler: the sender is alive.
    Hello(Role),
    /// From the primary: its epoch, and the roles that it reaches.
    Heartbeat(ReachedRoles),
    /// To a process whose epoch is over.
    Fenced,
    /// To a backend: follow the sender, and report the running rows.
    Claim { number: u64 },
    /// From a backend: the rows that still run from earlier epochs.
    Report { number: u64, revision: u32, held: Vec<RunningRows> },
    /// To a backend: run these requests as one batch.
    Start { batch: Batch, members: Vec<Wanted> },
    /// From a backend: this batch has ended.
    Ended { batch: Batch },
    /// From a frontend: these requests wait.
    Ask(Vec<Wanted>),
    /// To a frontend: the results of requests.
    Answers(Vec<Answer>),
    /// From a frontend: these answers have arrived.
    Taken(Vec<RequestId>),
}

/// A request to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) request: RequestId,
    /// Time for which an answer is useful: clocks of two machines need not agree.
    pub(crate) left: Nanos,
    pub(crate) model: ModelId,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) request: RequestId,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has run.
    Ran,
    /// It has not run, or that is unknown; the client may retry.
    Retry,
}
