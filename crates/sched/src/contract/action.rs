//! The decisions of a scheduler, and the outbox that carries them to the driver.

use crate::Reason;
use ripieno_base::{BlockId, DeviceId, LaneId, ModelId, RequestSlot, TaskId, Time};

/// A decision.
///
/// Small and `Copy`: actions are logged, compared and replayed as plain data. Preemption at a block
/// border needs no action of its own; it is simply the next `Start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Action {
    /// Runs a batch. The driver answers with exactly one [`TaskDone`](crate::TaskDone).
    Start {
        /// The task; its members are [`Scheduler::members`](crate::Scheduler::members) until the
        /// next input.
        task: TaskId,
        /// The model of the block.
        model: ModelId,
        /// The block to run.
        block: BlockId,
        /// The device to run it on.
        device: DeviceId,
        /// The lane of the device, which runs the task after those started there earlier.
        lane: LaneId,
        /// The length that every member is padded to: in the first block at least its own, in later
        /// ones the same as in the first. 1 where requests do not differ in length, and where walks
        /// unfold: there padding is a step beyond the end, see
        /// [`Scheduler::nodes`](crate::Scheduler::nodes).
        length: u32,
        /// The device must not begin before this time.
        not_before: Time,
    },
    /// Ends a request whose walk is complete: the driver answers the client. The slot may be reused
    /// once no task in flight has it as a member; steps may have been queued before the end was
    /// known.
    Finish {
        /// The request.
        request: RequestSlot,
    },
    /// Ends a request without an answer. The slot may be reused.
    Reject {
        /// The request.
        request: RequestSlot,
        /// The reason, for the client and the metrics.
        why: Why,
    },
    /// Aborts a task in flight: its work is lost. It still ends in its one
    /// [`TaskDone`](crate::TaskDone), with [`Outcome::Cancelled`](crate::Outcome::Cancelled), as
    /// soon as the device can be stopped and never in the same instant.
    Cancel {
        /// The task; cancelled at most once.
        task: TaskId,
    },
}

/// The reason for ending a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Why {
    /// The request's deadline has passed.
    Expired,
    /// The request's deadline lies ahead, but no schedule is likely to meet it, or meeting it would
    /// cost more than one other request.
    Hopeless,
    /// The client withdrew it.
    Cancelled,
    /// The executor reported an error for its batch.
    Failed,
    /// The request's model was unloaded.
    Unloaded,
    /// The request's model or client exceeds its share of the devices, and others need theirs.
    Share,
    /// The request's client sends more than the devices answer in time, and is the only one of the
    /// only model that sends requests.
    Overload,
}

const _: () = assert!(size_of::<Action>() <= 32);

/// A bounded list of actions, owned by the driver, which empties it after every settle. The default
/// has capacity zero.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Actions since the last drain, in order.
    actions: Vec<Action>,
    /// Largest number of actions between two drains.
    capacity: usize,
    /// Reasons of the decisions, if the driver records them.
    reasons: Vec<Reason>,
}

impl Outbox {
    /// Creates an outbox for a scheduler built with these limits; it never allocates again.
    ///
    /// Between two drains each live request ends at most once, and each slot of a lane receives at
    /// most one start and one cancellation.
    pub fn new(limits: &crate::Limits) -> Outbox {
        let capacity = limits.requests + 2 * limits.tasks();
        // Each request is refused once, each start goes before another batch, each model waits.
        let reasons = Vec::with_capacity(limits.requests + limits.tasks() + limits.models);
        Outbox { actions: Vec::with_capacity(capacity), capacity, reasons }
    }

    /// Adds an action. Panics if the policy exceeds the bound.
    pub fn push(&mut self, action: Action) {
        assert!(self.actions.len() < self.capacity, "a policy exceeded the outbox bound of {}", self.capacity);
        self.actions.push(action);
    }

    /// Adds the reason of a decision; one too many is left out.
    pub fn explain(&mut self, reason: Reason) {
        if self.reasons.len() < self.reasons.capacity() {
            self.reasons.push(reason);
        }
    }

    /// The reasons since the last [`Outbox::clear`].
    pub fn reasons(&self) -> &[Reason] {
        &self.reasons
    }

    /// The actions since the last [`Outbox::clear`], in order.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// Returns the actions mutably, for layers that translate them.
    pub fn actions_mut(&mut self) -> &mut [Action] {
        &mut self.actions
    }

    /// Moves all actions to another outbox.
    pub fn move_to(&mut self, out: &mut Outbox) {
        let count = out.actions.len() + self.actions.len();
        assert!(count <= out.capacity, "a policy exceeded the outbox bound of {}", out.capacity);
        out.actions.append(&mut self.actions);
        self.reasons.drain(..).for_each(|reason| out.explain(reason));
    }

    /// Empties the outbox.
    pub fn clear(&mut self) {
        self.actions.clear();
        self.reasons.clear();
    }
}
