//! What the simulation's processes say to each other: what roles do (`ripieno_cluster::plane`), without what it means for
//! tensors, and with repetitions, since messages are lost here.

use ripieno_base::{ModelId, Nanos};
use ripieno_cluster::handover::{Epoch, Held, RequestId, Role, Stamp};

/// A batch: the claim under which it was ordered, and its number under that.
pub(crate) type Batch = (Stamp, u64);

/// A message, and the latest epoch that its sender knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Of a primary, its own.
    pub(crate) epoch: Epoch,
    pub(crate) body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// To every scheduler: I am here.
    Hello(Role),
    /// From the primary: this is my epoch, and I am the primary.
    Heartbeat,
    /// To one whose epoch is over.
    Fenced,
    /// To a backend: obey me, and say what you hold.
    Claim { number: u64 },
    /// From a backend: what it still runs of earlier epochs.
    Report { number: u64, revision: u32, held: Vec<Held> },
    /// To a backend: run these as one batch.
    Start { batch: Batch, members: Vec<Wanted> },
    /// From a backend: this batch has ended.
    Ended { batch: Batch },
    /// From a frontend: these wait.
    Ask(Vec<Wanted>),
    /// To a frontend: the ends of requests.
    Answers(Vec<Answer>),
    /// From a frontend: these answers have come.
    Taken(Vec<RequestId>),
}

/// A request that is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) request: RequestId,
    /// For so long an answer is of use: clocks of two machines need not agree.
    pub(crate) left: Nanos,
    pub(crate) model: ModelId,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) request: RequestId,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has run.
    Ran,
    /// It has not, or nobody knows; the client may try again.
    Retry,
}
