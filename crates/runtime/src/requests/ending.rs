//! Outcomes of requests: why there is no answer, and how metrics, recordings and other processes
//! count it.
//!
//! A new reason is a variant of [`Failure`] and its row in [`Failure::row`]. If it passes between
//! processes with other times or counts than a known one, it is also a line of
//! [`Failure::from_numbers`]. The server's `problem.rs` tells it to clients.

use ripieno_executor::BAD_REQUEST;
use ripieno_sched::Why;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// Reason why a job ends without outputs: it was not accepted, or it ended later. The only list of
/// reasons.
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
    /// It was refused, since a link of its frontend takes more than its limit. A retry cannot
    /// succeed.
    #[error("Request timeout expired: {link} take {takes:?}, so a retry cannot be in time")]
    SlowLink {
        /// The link.
        link: SlowLink,
        /// Time that the link takes of each such request.
        takes: Duration,
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

/// A link of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowLink {
    /// The messages of a request and of its answer.
    Messages,
    /// The inputs, which devices fetch from the frontend.
    Inputs,
}

impl fmt::Display for SlowLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlowLink::Messages => "the messages between this frontend and its scheduler and backends",
            SlowLink::Inputs => "the inputs from this frontend to the backends",
        })
    }
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

    /// Returns the failure of a request that the core rejects. The caller may know the cause of a
    /// hopeless or failed one better.
    pub(crate) fn of_core(why: Why, retry_after: impl FnOnce() -> Duration) -> Failure {
        match why {
            Why::Expired => Failure::Expired,
            Why::Hopeless => Failure::Hopeless,
            Why::Cancelled => Failure::Cancelled,
            Why::Failed => Failure::Failed("the engine ended the request without outputs".to_owned()),
            Why::Unloaded => Failure::Unloaded,
            Why::Share => Failure::Share(retry_after()),
            Why::Overload => Failure::Overload(retry_after()),
        }
    }

    /// Returns the ending under which the failure is counted.
    pub fn ending(&self) -> Ending {
        self.row().0
    }

    /// Returns the failure as numbers.
    pub fn to_numbers(&self) -> FailureNumbers {
        self.row().1
    }

    /// The table of all reasons: the ending under which each is counted, and its numbers.
    fn row(&self) -> (Ending, FailureNumbers) {
        let row = |ending, reason| (ending, FailureNumbers { reason, time: Duration::ZERO, counts: [0, 0] });
        let timed = |ending, reason, time: &Duration, counts: [u64; 2]| {
            (ending, FailureNumbers { reason, time: *time, counts })
        };
        match self {
            Failure::Expired => row(Ending::Expired, 1),
            Failure::Hopeless => row(Ending::Hopeless, 2),
            Failure::TooLate { expected, retry_after } => {
                timed(Ending::Hopeless, 2, retry_after, [nanos(*expected).max(1), 0])
            }
            Failure::TooLong { needed } => timed(Ending::Hopeless, 2, &Duration::ZERO, [nanos(*needed).max(1), 0]),
            Failure::SlowLink { link, takes } => {
                let number = if *link == SlowLink::Messages { 1 } else { 2 };
                timed(Ending::Hopeless, 2, &Duration::ZERO, [nanos(*takes).max(1), number])
            }
            Failure::Share(after) => timed(Ending::Share, 3, after, [0, 0]),
            Failure::Overload(after) => timed(Ending::Hopeless, 3, after, [1, 0]),
            Failure::Cancelled => row(Ending::Cancelled, 4),
            Failure::Failed(_) => row(Ending::Failed, 5),
            Failure::Outage { retry_after, .. } => timed(Ending::Outage, 6, retry_after, [0, 0]),
            Failure::Unloaded => row(Ending::Unloaded, 7),
            Failure::ShuttingDown => row(Ending::ShuttingDown, 8),
            Failure::QueueFull { bound, retry_after } => timed(Ending::Refused, 9, retry_after, [*bound as u64, 0]),
            Failure::TooLarge { most, .. } => timed(Ending::Refused, 10, &Duration::ZERO, [*most as u64, 0]),
            Failure::NodesFull { held, bound, retry_after } => {
                timed(Ending::Refused, 11, retry_after, [*bound as u64, *held as u64])
            }
            Failure::Invalid(_) => row(Ending::Refused, 12),
            Failure::NotLoaded => row(Ending::Refused, 14),
        }
    }

    /// Returns the failure with these numbers and this text; `None` if there is no such reason.
    /// Processes of version 0.1 send 13 and 15 for refusals.
    pub fn from_numbers(numbers: FailureNumbers, text: String) -> Option<Failure> {
        let FailureNumbers { reason, time: retry_after, counts: [first, second] } = numbers;
        let (bound, held) = (first as usize, second as usize);
        Some(match reason {
            1 => Failure::Expired,
            2 if first == 0 => Failure::Hopeless,
            2 if second == 1 => Failure::SlowLink { link: SlowLink::Messages, takes: Duration::from_nanos(first) },
            2 if second == 2 => Failure::SlowLink { link: SlowLink::Inputs, takes: Duration::from_nanos(first) },
            2 if retry_after.is_zero() => Failure::TooLong { needed: Duration::from_nanos(first) },
            2 => Failure::TooLate { expected: Duration::from_nanos(first), retry_after },
            3 if first > 0 => Failure::Overload(retry_after),
            3 => Failure::Share(retry_after),
            4 => Failure::Cancelled,
            5 => Failure::Failed(text),
            6 | 13 => Failure::Outage { cause: text, retry_after },
            7 => Failure::Unloaded,
            8 | 15 => Failure::ShuttingDown,
            9 => Failure::QueueFull { bound, retry_after },
            10 => Failure::TooLarge { asked: text, most: bound },
            11 => Failure::NodesFull { held, bound, retry_after },
            12 => Failure::Invalid(text),
            14 => Failure::NotLoaded,
            _ => return None,
        })
    }

    /// Returns the text that the failure holds, or "" if it holds none.
    pub fn text(&self) -> &str {
        match self {
            Failure::Failed(text) | Failure::Outage { cause: text, .. } | Failure::Invalid(text) => text,
            Failure::TooLarge { asked, .. } => asked,
            _ => "",
        }
    }

    /// Returns the reason as recordings keep it, if the failure depends on the load or the engine.
    /// `None` for others: a replay finds them by itself, or they depend on the request.
    pub(crate) fn recorded(&self) -> Option<RefusedWhy> {
        match self {
            Failure::QueueFull { .. } | Failure::NodesFull { .. } => Some(RefusedWhy::QueueFull),
            Failure::Outage { .. } => Some(RefusedWhy::Outage),
            _ => None,
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
        match &mut self {
            Failure::TooLate { expected: time, .. }
            | Failure::TooLong { needed: time }
            | Failure::SlowLink { takes: time, .. } => *time = map(*time),
            _ => {}
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

/// A failure as numbers, for messages between processes. With [`Failure::text`] they are the whole
/// failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureNumbers {
    /// Number of the reason, never 0.
    pub reason: u8,
    /// Time after which a retry may succeed.
    pub time: Duration,
    /// Sizes, or other times in nanoseconds, that the reason holds.
    pub counts: [u64; 2],
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The reason for a refusal before the scheduler, as recordings keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedWhy {
    /// The queue of the model or of the server was full.
    QueueFull,
    /// No process of the model's engine ran.
    Outage,
    /// The client did not send its request within the time for a body.
    SlowClient,
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

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_millis(3);

    /// Returns a failure of the next reason. It names each reason, so a new one does not compile
    /// before it stands here.
    fn next(last: &Failure) -> Option<Failure> {
        let text = || "a text".to_owned();
        Some(match last {
            Failure::Expired => Failure::Hopeless,
            Failure::Hopeless => Failure::TooLate { expected: AFTER * 2, retry_after: AFTER },
            Failure::TooLate { .. } => Failure::TooLong { needed: AFTER },
            Failure::TooLong { .. } => Failure::SlowLink { link: SlowLink::Messages, takes: AFTER },
            Failure::SlowLink { link: SlowLink::Messages, takes } => {
                Failure::SlowLink { link: SlowLink::Inputs, takes: *takes }
            }
            Failure::SlowLink { .. } => Failure::Overload(AFTER),
            Failure::Overload(_) => Failure::Share(AFTER),
            Failure::Share(_) => Failure::Cancelled,
            Failure::Cancelled => Failure::Failed(text()),
            Failure::Failed(_) => Failure::Outage { cause: text(), retry_after: AFTER },
            Failure::Outage { .. } => Failure::QueueFull { bound: 7, retry_after: AFTER },
            Failure::QueueFull { .. } => Failure::TooLarge { asked: text(), most: 7 },
            Failure::TooLarge { .. } => Failure::NodesFull { held: 5, bound: 7, retry_after: AFTER },
            Failure::NodesFull { .. } => Failure::Invalid(text()),
            Failure::Invalid(_) => Failure::NotLoaded,
            Failure::NotLoaded => Failure::Unloaded,
            Failure::Unloaded => Failure::ShuttingDown,
            Failure::ShuttingDown => return None,
        })
    }

    #[test]
    fn each_reason_passes_between_processes_unchanged() {
        let all: Vec<Failure> = std::iter::successors(Some(Failure::Expired), next).collect();
        for failure in &all {
            let passed = Failure::from_numbers(failure.to_numbers(), failure.text().to_owned());
            assert_eq!(passed.as_ref(), Some(failure));
            let doubled = failure.clone().with_times(|time| time * 2);
            assert_eq!(
                doubled.retry_after(),
                failure.retry_after().map(|time| if time == AFTER { AFTER * 2 } else { time })
            );
        }
        let timed = all.iter().filter(|failure| failure.retry_after() == Some(AFTER));
        assert_eq!(timed.count(), 6, "the time after which to retry is in retry_after_mut");
    }
}
