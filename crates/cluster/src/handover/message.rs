//! What processes say to each other.

use super::ids::{Epoch, RequestId, Role, Stamp};
use ripieno_base::{ModelId, Nanos};

/// A list in a message is no longer.
pub const MOST_RECORDS: usize = 4_096;

/// A message, and the latest reign that its sender knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Of a primary, its own.
    pub epoch: Epoch,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// To every scheduler: I am here.
    Hello(Role),
    /// From the primary: I command.
    Heartbeat,
    /// To one whose epoch is over.
    Fenced,
    /// To a backend: obey me, and say what you hold.
    Claim {
        /// Of the stamp.
        number: u64,
    },
    /// From a backend: what it holds after having obeyed this stamp of the message's epoch.
    Report {
        /// Of the stamp.
        number: u64,
        /// Requests that run, and those whose answer nobody has confirmed.
        held: Vec<Held>,
    },
    /// To a backend: run these as one batch.
    Start {
        /// Of the stamp.
        number: u64,
        /// The batch.
        members: Vec<Wanted>,
    },
    /// From a backend: this batch has ended.
    Ended {
        /// Which one; it may be of an earlier epoch.
        batch: Stamp,
    },
    /// From a frontend: these wait.
    Ask(Vec<Wanted>),
    /// To a frontend: the ends of requests.
    Answers(Vec<Answer>),
    /// From a frontend: these answers have come.
    Taken(Vec<RequestId>),
}

/// A request that is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which one.
    pub request: RequestId,
    /// For so long an answer is of use: clocks of two machines need not agree.
    pub left: Nanos,
    /// What is to be run.
    pub model: ModelId,
    /// Whether some scheduler has been asked before, who may have started it.
    pub repeated: bool,
}

/// A request that a backend knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which one.
    pub request: RequestId,
    /// The batch that it is or was in.
    pub batch: Stamp,
    /// Whether it has run, and only its answer is on the way.
    pub done: bool,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which one.
    pub request: RequestId,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has run.
    Ran,
    /// It has not, or nobody knows; the client may try again.
    Retry,
}
