//! Outcomes of requests, as counted by metrics.

use crate::Failure;
use serde::{Deserialize, Serialize};

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
    /// Its device or engine process was lost, or no engine process ran.
    Outage,
    /// Not accepted, because a queue bound was reached.
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

    /// Returns the ending under which a failure is counted.
    pub fn of(failure: &Failure) -> Ending {
        match failure {
            Failure::Expired => Ending::Expired,
            Failure::Hopeless | Failure::TooLate { .. } | Failure::TooLong { .. } | Failure::Overload(_) => {
                Ending::Hopeless
            }
            Failure::Cancelled => Ending::Cancelled,
            Failure::Failed(_) => Ending::Failed,
            Failure::Outage { .. } => Ending::Outage,
            Failure::Share(_) => Ending::Share,
            Failure::Refused(_) => Ending::Refused,
            Failure::Unloaded => Ending::Unloaded,
            Failure::ShuttingDown => Ending::ShuttingDown,
        }
    }

    /// Whether the ending counts as good or bad for autoscaling. `None` if more devices would not
    /// have changed it.
    pub fn is_good(self) -> Option<bool> {
        match self {
            Ending::Ok => Some(true),
            Ending::Late | Ending::Expired | Ending::Hopeless | Ending::Share | Ending::Refused => Some(false),
            Ending::Cancelled | Ending::Failed | Ending::Outage | Ending::Unloaded | Ending::ShuttingDown => None,
        }
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
