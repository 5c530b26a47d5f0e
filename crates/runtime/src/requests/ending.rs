//! Outcomes of requests: why there is no answer, and how metrics count it.

use ripieno_executor::BAD_REQUEST;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thiserror::Error;

/// Reason why a job ends without outputs: it was not accepted, or it ended later. The only list of
/// reasons: what clients read of each stands in the server's `problem.rs`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Failure {
    /// The deadline passed.
    #[error("Request timeout expired")]
    Expired,
    /// No schedule could meet the deadline any more.
    #[error("Request timeout expired: no schedule could meet its deadline")]
    Hopeless,
    /// It was refused on arrival, since it would have been answered too late.
    #[error("Request timeout expired: the request would be answered after {expected:?}; retry after {retry_after:?}")]
    TooLate {
        /// Expected time from its arrival to its answer.
        expected: Duration,
        /// Time by which `expected` exceeds the request's limit.
        retry_after: Duration,
    },
    /// It was refused, since it needs longer than its limit even on idle devices. A retry cannot
    /// succeed.
    #[error(
        "Request timeout expired: the request needs {needed:?} by its profile even on idle devices, so a retry cannot be in time"
    )]
    TooLong {
        /// The time that it needs at least.
        needed: Duration,
    },
    /// The devices cannot answer more requests in time, and all requests are of one client and
    /// model. Holds the time after which to retry.
    #[error("the devices are busy, and cannot answer more requests in time; retry after {0:?}")]
    Overload(Duration),
    /// The model or the client asks for more than its share of the devices. Holds the time after
    /// which to retry.
    #[error(
        "the devices are busy, and the model or the client asks for more than its share of them; retry after {0:?}"
    )]
    Share(Duration),
    /// The client went away.
    #[error("the request was cancelled")]
    Cancelled,
    /// The engine failed on the job's batch.
    #[error("inference failed: {0}")]
    Failed(String),
    /// The device or the engine process of the job's batch was lost, or none runs, or no scheduler
    /// is there.
    #[error("{cause}; retry after {retry_after:?}")]
    Outage {
        /// Cause of the loss, in words.
        cause: String,
        /// Time after which a retry may succeed.
        retry_after: Duration,
    },
    /// It was refused: the queue of the model or of the server is full.
    #[error("Exceeds maximum queue size of {bound} requests; retry after {retry_after:?}")]
    QueueFull {
        /// The bound, in requests.
        bound: usize,
        /// Time after which a retry may succeed.
        retry_after: Duration,
    },
    /// It was refused: it exceeds the limits even of an empty server.
    #[error("{asked} in one request; at most {most} can ever be taken, so send it in parts")]
    TooLarge {
        /// Size of the request, in rows or bytes.
        asked: String,
        /// Largest accepted size.
        most: usize,
    },
    /// It was refused: the graphs of all live requests together hold the largest allowed number of
    /// nodes.
    #[error("the graphs of the requests in the server hold {held} of {bound} nodes; retry after {retry_after:?}")]
    NodesFull {
        /// Number of nodes held.
        held: usize,
        /// Largest number of nodes.
        bound: usize,
        /// Time after which a retry may succeed.
        retry_after: Duration,
    },
    /// It was refused: the inputs do not fit the model: too long, not a tree, or an unknown token.
    #[error("{0}")]
    Invalid(String),
    /// It was refused: the model is not loaded.
    #[error("the model is not loaded")]
    NotLoaded,
    /// The model was unloaded while the job waited.
    #[error("the model was unloaded")]
    Unloaded,
    /// The server shuts down.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// Time after which a model that was just replaced serves under its new id.
const RELEASE: Duration = Duration::from_millis(100);

impl Failure {
    /// Returns the failure of a request on which the engine failed with this error, or which the
    /// model refused.
    pub(crate) fn of_engine(cause: String) -> Failure {
        match cause.strip_prefix(BAD_REQUEST) {
            Some(why) => Failure::Invalid(why.to_owned()),
            None => Failure::Failed(cause),
        }
    }

    /// Returns the ending under which the failure is counted.
    pub fn ending(&self) -> Ending {
        match self {
            Failure::Expired => Ending::Expired,
            Failure::Hopeless | Failure::TooLate { .. } | Failure::TooLong { .. } | Failure::Overload(_) => {
                Ending::Hopeless
            }
            Failure::Share(_) => Ending::Share,
            Failure::Cancelled => Ending::Cancelled,
            Failure::Failed(_) => Ending::Failed,
            Failure::Outage { .. } => Ending::Outage,
            Failure::QueueFull { .. }
            | Failure::NodesFull { .. }
            | Failure::TooLarge { .. }
            | Failure::Invalid(_)
            | Failure::NotLoaded => Ending::Refused,
            Failure::Unloaded => Ending::Unloaded,
            Failure::ShuttingDown => Ending::ShuttingDown,
        }
    }

    /// Returns the time after which a retry may succeed; `None` if it is unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        if *self == Failure::NotLoaded {
            return Some(RELEASE);
        }
        let mut failure = self.clone();
        failure.retry_after_mut().copied()
    }

    /// Returns the failure with its times mapped, for messages that round them.
    #[must_use]
    pub fn with_times(mut self, map: impl Fn(Duration) -> Duration) -> Failure {
        if let Failure::TooLate { expected: time, .. } | Failure::TooLong { needed: time } = &mut self {
            *time = map(*time);
        }
        if let Some(time) = self.retry_after_mut() {
            *time = map(*time);
        }
        self
    }

    fn retry_after_mut(&mut self) -> Option<&mut Duration> {
        match self {
            Failure::TooLate { retry_after, .. }
            | Failure::Overload(retry_after)
            | Failure::Share(retry_after)
            | Failure::Outage { retry_after, .. }
            | Failure::QueueFull { retry_after, .. }
            | Failure::NodesFull { retry_after, .. } => Some(retry_after),
            _ => None,
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Answered by its deadline.
    Ok,
    /// Answered after its deadline.
    Late,
    /// Not answered by its deadline.
    Expired,
    /// Dropped before its deadline, because no schedule could meet it.
    Hopeless,
    /// Dropped because its model or client asks for more than its share.
    Share,
    /// Cancelled by its client.
    Cancelled,
    /// The engine failed on it.
    Failed,
    /// The request's device or engine process was lost, or no engine process ran.
    Outage,
    /// Not accepted, because a queue bound was reached.
    Refused,
    /// The request's model was unloaded.
    Unloaded,
    /// The server shut down.
    ShuttingDown,
}

impl Ending {
    /// All endings.
    pub const ALL: [Ending; 11] = [
        Ending::Ok,
        Ending::Late,
        Ending::Expired,
        Ending::Hopeless,
        Ending::Share,
        Ending::Cancelled,
        Ending::Failed,
        Ending::Outage,
        Ending::Refused,
        Ending::Unloaded,
        Ending::ShuttingDown,
    ];

    /// Whether the ending counts as good or bad. `None` if the client or the operator wanted it.
    pub fn is_good(self) -> Option<bool> {
        match self {
            Ending::Ok => Some(true),
            Ending::Late | Ending::Expired | Ending::Hopeless | Ending::Share | Ending::Refused => Some(false),
            Ending::Failed | Ending::Outage => Some(false),
            Ending::Cancelled | Ending::Unloaded | Ending::ShuttingDown => None,
        }
    }

    /// Whether the ending is bad for another reason than too few devices: the engine failed, or a
    /// device, process or scheduler was missing.
    pub fn is_breakdown(self) -> bool {
        matches!(self, Ending::Failed | Ending::Outage)
    }

    /// Returns the value of the metrics label.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Ok => "ok",
            Ending::Late => "late",
            Ending::Expired => "expired",
            Ending::Hopeless => "hopeless",
            Ending::Share => "share",
            Ending::Cancelled => "cancelled",
            Ending::Failed => "failed",
            Ending::Outage => "outage",
            Ending::Refused => "refused",
            Ending::Unloaded => "unloaded",
            Ending::ShuttingDown => "shutting_down",
        }
    }
}
