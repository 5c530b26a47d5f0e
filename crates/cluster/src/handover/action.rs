//! What a scheduler has its host do.

use super::ids::{Epoch, Process, RequestId, Stamp};
use super::store::Swap;

/// For whoever carries messages and asks the store, or for whoever schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerAction {
    /// Ask the store; it may never reply.
    Swap(Swap),
    /// Say that this is the primary's epoch.
    Heartbeat {
        /// To a scheduler or a frontend.
        to: Process,
        /// Its own.
        epoch: Epoch,
    },
    /// Have a backend obey, and say what it runs.
    Claim {
        /// The backend.
        to: Process,
        /// Greater than that of each claim before.
        stamp: Stamp,
    },
    /// Say that a later epoch is known.
    Fenced {
        /// To one whose epoch is over.
        to: Process,
        /// Which one.
        epoch: Epoch,
    },
    /// Begin, with nothing.
    BecomePrimary(Epoch),
    /// Forget everything.
    StepDown,
    /// Schedule this request, unless it is scheduled already.
    Admit(RequestId),
    /// This one ran on since an earlier epoch, and has ended well.
    Over(RequestId),
    /// This backend runs nothing of earlier epochs any more: it may be given batches, under this claim.
    Join {
        /// Which one.
        backend: Process,
        /// The claim.
        stamp: Stamp,
    },
    /// It must not be given any.
    Leave(Process),
}
