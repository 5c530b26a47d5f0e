//! A bounded lock-free queue to one thread, which parks while the queue is empty.
//!
//! The owner of the queue closes it, and all mail is dropped from then on: the owner sets `closed`
//! and then drops what is queued. A sender pushes and then reads `closed`. So one of the two sees
//! what the other did, and no mail stays in a closed queue. The example `loom` checks this under
//! every order of the steps.

use crate::event_loop::Inbox;
use crate::event_loop::parking::Parking;
use crate::sync::{ArrayQueue, AtomicBool, Ordering};

/// The queue and the place where its reader parks.
pub(crate) struct MailQueue<M> {
    queue: ArrayQueue<M>,
    parking: Parking,
    closed: AtomicBool,
}

impl<M> MailQueue<M> {
    pub(crate) fn with_capacity(capacity: usize) -> MailQueue<M> {
        MailQueue { queue: ArrayQueue::new(capacity), parking: Parking::default(), closed: AtomicBool::new(false) }
    }

    /// Delivers `mail` and wakes the loop's thread. If the loop has ended, the mail is dropped, and
    /// dropping a submission answers its request.
    pub(crate) fn post(&self, mail: M) {
        self.put(mail);
        self.wake();
    }

    /// Enqueues `mail` for the next turn. The sender must then take the turn itself or call
    /// [`Inbox::wake`].
    pub(crate) fn put(&self, mail: M) {
        assert!(self.queue.push(mail).is_ok(), "the mailbox is sized for all mail that can exist");
    }

    pub(crate) fn pop(&self) -> Option<M> {
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

impl<M> Inbox for MailQueue<M> {
    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn parking(&self) -> &Parking {
        &self.parking
    }

    fn wake(&self) {
        self.parking.wake();
        // Drops mail that was pushed after the owner had dropped all.
        if self.closed.load(Ordering::SeqCst) {
            self.discard();
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.discard();
    }
}
