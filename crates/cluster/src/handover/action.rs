//! The actions that the state machine of a scheduler requests.

use super::ids::{Epoch, ProcessId, ReachedRoles, RequestId, Stamp};
use super::store::Swap;

/// An action for the host: a message to send, a call to the store, or a change for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerAction {
    /// Swap the store's entry; there may be no reply.
    Swap(Swap),
    /// Announce this primary's epoch.
    Heartbeat {
        /// A scheduler or a frontend.
        to: ProcessId,
        /// The own epoch.
        epoch: Epoch,
        /// The roles that this primary reaches.
        reach: ReachedRoles,
    },
    /// Claim a backend, which reports the rows that it still runs.
    Claim {
        /// The backend.
        to: ProcessId,
        /// Greater than the stamp of every earlier claim.
        stamp: Stamp,
    },
    /// Announce a later epoch.
    Fenced {
        /// The process whose epoch is over.
        to: ProcessId,
        /// The later epoch.
        epoch: Epoch,
    },
    /// Start as the primary, with empty state.
    BecomePrimary(Epoch),
    /// Drop all state.
    StepDown,
    /// Schedule this request, unless it is scheduled already.
    Admit(RequestId),
    /// Report success of this request, which an earlier epoch had started.
    Completed(RequestId),
    /// Use this backend under this claim; nothing of earlier epochs runs on it.
    Join {
        /// The backend.
        backend: ProcessId,
        /// The claim.
        stamp: Stamp,
    },
    /// Stop using this backend.
    Leave(ProcessId),
}
