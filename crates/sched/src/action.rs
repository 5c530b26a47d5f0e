//! What a scheduler may do: a few verbs, and the outbox that carries them to the driver.

use crate::ToMatchmaker;
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};

/// A decision.
///
/// Small and `Copy`: actions are logged, compared and replayed as plain data. Preemption at a block border needs no
/// verb of its own; it is simply the next `Start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Action {
    /// Run a batch. The driver answers with exactly one [`TaskDone`](crate::TaskDone).
    Start {
        /// The task; its members are [`Scheduler::members`](crate::Scheduler::members) until the next input.
        task: TaskId,
        /// The model of the block.
        model: ModelId,
        /// The block to run.
        block: BlockId,
        /// The device to run it on.
        device: DeviceId,
        /// The lane of the device, which runs it after the tasks started there before.
        lane: LaneId,
        /// The length that every member is padded to: no less than its own in the first block, and what it was padded to
        /// there in later ones. 1 where requests do not differ in length, and where walks unfold: there padding is a step
        /// beyond the end, which [`Scheduler::nodes`](crate::Scheduler::nodes) shows.
        length: u32,
        /// The device must not begin before this instant.
        not_before: Time,
    },
    /// The request's walk is complete: answer the client. The slot may be reused once the tasks in flight that have it as
    /// a member have ended: steps that were queued ahead before its end was known.
    Finish {
        /// The request.
        request: RequestSlot,
    },
    /// The request ends without an answer. The slot may be reused.
    Reject {
        /// The request.
        request: RequestSlot,
        /// The reason, for the client and the metrics.
        why: Why,
    },
    /// Abort a task in flight: its work is lost. It still ends in its one [`TaskDone`](crate::TaskDone), with
    /// [`Outcome::Cancelled`](crate::Outcome::Cancelled), as soon as the device can be stopped and never in this instant.
    Cancel {
        /// The task; cancelled at most once.
        task: TaskId,
    },
}

/// Why a request ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Why {
    /// Its deadline has passed.
    Expired,
    /// Its deadline lies ahead, but no schedule could meet it, or meeting it would cost more requests than it is.
    Hopeless,
    /// The client withdrew it.
    Cancelled,
    /// The executor reported an error for its batch.
    Failed,
    /// Its model was unloaded.
    Unloaded,
    /// Its model or its client asks for more than its share of the devices, and others need theirs.
    Share,
}

const _: () = assert!(size_of::<Action>() <= 32);

/// A bounded list of actions, owned by the driver and emptied by it after every settle. The default takes none.
#[derive(Debug, Default)]
pub struct Outbox {
    actions: Vec<Action>,
    capacity: usize,
    /// What a shard tells its matchmaker.
    pub(crate) mail: Vec<ToMatchmaker>,
}

impl Outbox {
    /// An outbox for a scheduler built with these limits; never allocates again.
    ///
    /// Between two drains each live request ends at most once, and each place of a lane receives at most one start and one
    /// cancellation.
    pub fn new(limits: &crate::Limits) -> Outbox {
        let capacity = limits.requests + 2 * limits.tasks();
        // A shard offers each model once, and of each device slot tells what is sent and what comes back.
        let mail = Vec::with_capacity(limits.models + 2 * limits.tasks());
        Outbox { actions: Vec::with_capacity(capacity), capacity, mail }
    }

    /// Adds an action. Exceeding the bound is a bug of the policy.
    pub fn push(&mut self, action: Action) {
        assert!(self.actions.len() < self.capacity, "a policy exceeded the outbox bound of {}", self.capacity);
        self.actions.push(action);
    }

    /// The actions since the last [`Outbox::clear`], in order.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// The same, for layers between policy and driver that translate them.
    pub(crate) fn actions_mut(&mut self) -> &mut [Action] {
        &mut self.actions
    }

    /// Hands everything on to another outbox.
    pub(crate) fn move_to(&mut self, out: &mut Outbox) {
        let count = out.actions.len() + self.actions.len();
        assert!(count <= out.capacity, "a policy exceeded the outbox bound of {}", out.capacity);
        out.actions.append(&mut self.actions);
    }

    /// Takes what a shard tells its matchmaker, in order; nothing of what runs in one piece.
    pub fn take_mail(&mut self) -> impl Iterator<Item = ToMatchmaker> {
        self.mail.drain(..)
    }

    /// Empties the outbox.
    pub fn clear(&mut self) {
        self.actions.clear();
        self.mail.clear();
    }
}
