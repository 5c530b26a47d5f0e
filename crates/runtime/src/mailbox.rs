//! What other threads tell the scheduler.
//!
//! One bounded queue without locks. It can never be full, so nothing mandatory is ever lost or waited for: every kind
//! of mail is bounded by something that its sender must hold first. A submission and a cancellation hold the slots of
//! their request until they have been read, a result holds its task, a grant holds a device slot, orders are sent one
//! at a time, and each of several shards says once of a device that it hangs, and once that all end.
//!
//! It is also the completion queue of all devices: the end of a task is one push from the device's thread, which then takes
//! the scheduler's turn itself if it can, or wakes the scheduler's thread if that sleeps. docs/adr/0007-completions.md says how a device whose end shows in pinned memory
//! keeps this contract.

use crate::admission::ModelEntry;
use crate::devices::Shared;
use crate::jobs::Call;
use crate::parking::Parking;
use crate::turns::Inbox;
use crossbeam_queue::ArrayQueue;
use ripieno_base::{BlockId, DeviceId, ModelId, RequestSlot};
use ripieno_executor::TaskResult;
use ripieno_model::{Model, Profile};
use ripieno_sched::{Grant, Limits};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

/// Orders in the queue at once: one from the holder of the engine's order lock, two to stop, and one to spare.
const ORDERS: usize = 4;

/// A message to the scheduler.
pub(crate) enum Mail {
    /// A request has been admitted.
    Submit(Box<Call>),
    /// The client of the request with this first slot went away.
    Cancel(RequestSlot),
    /// A device has ended a task.
    Done(DeviceId, TaskResult),
    /// The matchmaker gives a model a device.
    Grant(Grant),
    /// Another shard found that a device hangs; if it ends after all it comes again, or not.
    Hangs(DeviceId, bool),
    /// An order, to be confirmed through the sender once it is carried out.
    Order(Order, SyncSender<()>),
    /// End the thread.
    Stop,
}

/// What the owner of the engine wants.
pub(crate) enum Order {
    /// Serve a model that is attached to all devices.
    Load { id: ModelId, entry: Arc<ModelEntry>, model: Box<Model> },
    /// Serve it no more.
    Unload(ModelId),
    /// Use a new profile.
    Profile { id: ModelId, block: BlockId, profile: Profile },
    /// Serve on this device, too, which these models are attached to.
    Join { id: DeviceId, device: Shared, attached: Vec<(ModelId, Arc<ModelEntry>)> },
    /// Serve on this device no more: what it holds is ended first, or if it is `lost` given up.
    Leave { id: DeviceId, lost: bool },
    /// Answer everything that is unanswered, now and from now on, with the news of the shutdown.
    Dismiss,
}

/// The scheduler's one inbox.
pub(crate) struct Mailbox {
    queue: ArrayQueue<Mail>,
    parking: Parking,
    closed: AtomicBool,
}

impl Mailbox {
    /// Of one of so many shards.
    pub(crate) fn new(limits: &Limits, shards: usize) -> Mailbox {
        let others = (shards - 1) * (limits.devices + 1);
        let capacity = 2 * limits.requests + 2 * limits.tasks() + ORDERS + others;
        Mailbox { queue: ArrayQueue::new(capacity), parking: Parking::default(), closed: AtomicBool::new(false) }
    }

    /// Delivers `mail`. If the thread has ended it is dropped instead, which answers what it carries.
    pub(crate) fn post(&self, mail: Mail) {
        self.put(mail);
        self.call();
    }

    /// Leaves `mail` for the next turn, whoever takes it. Unless the sender does, [`Inbox::call`] must follow.
    pub(crate) fn put(&self, mail: Mail) {
        assert!(self.queue.push(mail).is_ok(), "the mailbox is sized for all mail that can exist");
    }

    pub(crate) fn pop(&self) -> Option<Mail> {
        self.queue.pop()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn discard(&self) {
        while let Some(mail) = self.queue.pop() {
            drop(mail);
        }
    }
}

impl Inbox for Mailbox {
    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn parking(&self) -> &Parking {
        &self.parking
    }

    fn call(&self) {
        self.parking.wake();
        // The scheduler thread closes, then discards. Mail that came too late for its discard is discarded here.
        if self.closed.load(Ordering::SeqCst) {
            self.discard();
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.discard();
    }
}
