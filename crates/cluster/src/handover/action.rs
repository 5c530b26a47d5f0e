//! What a scheduler has its driver and its host do.

use super::ids::{Epoch, Process, RequestId, Stamp};
use super::message::Message;
use super::requests::Admitted;
use super::store::Swap;

/// For the driver, or for the host that schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerAction {
    /// Driver: say this to every scheduler that is known by address.
    Greet(Message),
    /// Driver: say this; it may be lost.
    Send {
        /// To whom.
        to: Process,
        /// What.
        message: Message,
    },
    /// Driver: ask the store; it may never reply.
    Swap(Swap),
    /// Host: begin, with nothing.
    Lead(Epoch),
    /// Host: forget everything.
    Follow,
    /// Host: schedule this.
    Admit(Admitted),
    /// Host: do not run this any more.
    Withdraw(RequestId),
    /// Host: this backend holds so many batches; none: it must not be given any.
    Load {
        /// Which one.
        backend: Process,
        /// How many.
        batches: Option<usize>,
    },
    /// Host: this batch has ended.
    Ended {
        /// Where.
        backend: Process,
        /// Which one.
        batch: Stamp,
    },
}
