//! Messages from other threads to the scheduler.
//!
//! The mailbox is one bounded lock-free queue. It is never full, so no message is lost and no
//! sender waits. Each message is bounded by a resource that its sender holds:
//!
//! * A submission and a cancellation hold the slots of their request until they are read.
//! * A result holds its task.
//! * A grant holds a device slot.
//! * Commands are sent one at a time.
//! * Each shard reports the hang of a device once and the stop of all shards once.
//!
//! The mailbox is also the completion queue of all devices. A device's thread ends a task by one
//! push. Then the thread takes the scheduler's turn if it can, or wakes the scheduler's thread.
//! docs/internals/adr/0007-completions.md explains how a device that signals completion in pinned
//! memory fulfils this contract.

use crate::devices::SharedDevice;
use crate::event_loop::mail_queue::MailQueue;
use crate::learn::capacity::ModelEntry;
use crate::requests::jobs::LiveJob;
use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot};
use ripieno_executor::TaskResult;
use ripieno_model::{Model, Profile};
use ripieno_policies::grants::Grant;
use ripieno_sched::{Limits, NetworkDelay};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Largest number of commands in the queue: one from the holder of the engine's command lock, two
/// stop messages, and one spare.
const MAX_COMMANDS: usize = 4;

/// A message to the scheduler.
pub(crate) enum Mail {
    /// A request has been admitted.
    Submit(Box<LiveJob>),
    /// The client of the request with this first slot went away.
    Cancel(RequestSlot),
    /// A device has ended a task.
    Done(DeviceId, TaskResult),
    /// The matchmaker grants a device to a model.
    Grant(Grant),
    /// Another shard found that a device hangs. The flag says whether the device rejoins if it ends
    /// its task after all.
    Hangs(DeviceId, bool),
    /// A command. The sender receives a confirmation once the command is executed.
    Order(EngineCommand, SyncSender<()>),
    /// Ends the scheduler's thread.
    Stop,
}

/// A command of the engine's owner.
pub(crate) enum EngineCommand {
    /// Serves a model that is attached to all devices.
    Load { id: ModelId, entry: Arc<ModelEntry>, model: Box<Model> },
    /// Stops serving a model.
    Unload(ModelId),
    /// Replaces the profile of a block.
    Profile { id: ModelId, block: BlockId, profile: Profile },
    /// Adds a device to which the models in `attached` are attached.
    Join { id: DeviceId, device: SharedDevice, attached: Vec<(ModelId, Arc<ModelEntry>)> },
    /// Removes a device. If the device is `lost`, its tasks are given up; otherwise they end first.
    Leave { id: DeviceId, lost: bool },
    /// Sets the time that batches are expected to need to reach their devices.
    Delay(NetworkDelay),
    /// Answers all current and future requests with the shutdown failure.
    Dismiss,
}

/// The scheduler's inbox.
pub(crate) type Mailbox = MailQueue<Mail>;

impl Mailbox {
    /// Creates the mailbox of one of `shards` shards.
    pub(crate) fn new(limits: &Limits, shards: usize) -> Mailbox {
        let others = (shards - 1) * (limits.devices + 1);
        MailQueue::with_capacity(2 * limits.requests + 2 * limits.tasks() + MAX_COMMANDS + others)
    }
}
