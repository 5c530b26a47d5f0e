//! Outcomes of requests, as counted by metrics.

use crate::Failure;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Answered by its deadline.
    Ok,
    /// Answered after its deadline.
    Late,
    /// Not answered by its deadline.
    Expired,
    /// Dropped before its deadline, which no schedule could meet.
    Hopeless,
    /// Dropped because its model or client asks for more than its share.
    Share,
    /// Cancelled by its client.
    Cancelled,
    /// The engine failed on it.
    Failed,
    /// No process of its model's engine ran, or the process ended during its batch.
    Outage,
    /// Not accepted: a queue bound was hit.
    Refused,
    /// Its model was unloaded.
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

    /// Returns the ending that this failure counts as.
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

    /// Whether it counts as good or bad; `None` where more devices would not have changed the
    /// outcome.
    pub fn is_good(self) -> Option<bool> {
        match self {
            Ending::Ok => Some(true),
            Ending::Late | Ending::Expired | Ending::Hopeless | Ending::Share | Ending::Refused => Some(false),
            Ending::Cancelled | Ending::Failed | Ending::Outage | Ending::Unloaded | Ending::ShuttingDown => None,
        }
    }

    /// The value of the metrics label.
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
