//! How a request can end, as counted.

use crate::Failure;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Answered by its deadline.
    Ok,
    /// Answered after its deadline.
    Late,
    /// Not answered by its deadline.
    Expired,
    /// Given up before its deadline, which no schedule could meet.
    Hopeless,
    /// Given up because its model or client asks for more than its share.
    Share,
    /// Withdrawn by its client.
    Cancelled,
    /// The engine failed on it.
    Failed,
    /// There was no process of its model's engine, or it ended with it.
    Outage,
    /// Not accepted: a queue bound was hit.
    Refused,
    /// Its model was unloaded.
    Unloaded,
    /// The server went down.
    ShuttingDown,
}

impl Ending {
    /// Every ending.
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

    /// As this failure counts.
    pub fn of(failure: &Failure) -> Ending {
        match failure {
            Failure::Expired => Ending::Expired,
            Failure::Hopeless => Ending::Hopeless,
            Failure::Cancelled => Ending::Cancelled,
            Failure::Failed(_) => Ending::Failed,
            Failure::Outage { .. } => Ending::Outage,
            Failure::Share(_) => Ending::Share,
            Failure::Refused(_) => Ending::Refused,
            Failure::Unloaded => Ending::Unloaded,
            Failure::ShuttingDown => Ending::ShuttingDown,
        }
    }

    /// Whether it counts as good or bad; as neither where more devices would have changed nothing.
    pub fn is_good(self) -> Option<bool> {
        match self {
            Ending::Ok => Some(true),
            Ending::Late | Ending::Expired | Ending::Hopeless | Ending::Share | Ending::Refused => Some(false),
            Ending::Cancelled | Ending::Failed | Ending::Outage | Ending::Unloaded | Ending::ShuttingDown => None,
        }
    }

    /// As a metric's label.
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
