//! What a scheduler has its host do.

use super::ids::{Epoch, Process, RequestId, Stamp};
use super::store::Swap;

/// For whoever carries messages and asks the store, or for whoever schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerAction {
    /// Ask the store; it may never reply.
    Swap(Swap),
    /// Say that this is the primary's reign.
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
    /// Say that a later reign is known.
    Fenced {
        /// To one whose reign is over.
        to: Process,
        /// Which one.
        epoch: Epoch,
    },
    /// Begin, with nothing.
    Lead(Epoch),
    /// Forget everything.
    Follow,
    /// Schedule this request, unless it is scheduled already.
    Admit(RequestId),
    /// This one ran on since an earlier reign, and has ended well.
    Over(RequestId),
    /// This backend runs nothing of earlier reigns any more: it may be given batches, under this claim.
    Join {
        /// Which one.
        backend: Process,
        /// The claim.
        stamp: Stamp,
    },
    /// It must not be given any.
    Part(Process),
}
