//! The way into the thread of a device's lane: one bounded queue for tasks, attachments and detachments, so that they keep their
//! order.
//!
//! A channel from the standard library would bound all messages together, but here two bounds are wanted: tasks are
//! handed back once the lane holds its depth (never a wait, since whoever takes a scheduler's turn submits), while attachments
//! are rare and slow, so that their sender simply waits. A detachment is bounded by its attachment and never waits: the turn that
//! it is sent in may be taken by the lane's own thread. The count of tasks held includes the running one and is lowered
//! before its result is reported, so that whoever hears of a result may submit the next task at once.
//!
//! A lane that expects a task looks out for it before it sleeps: being woken takes longer than many a decision, and a request in
//! stages would pay for it at each border.

use crate::runner::Ready;
use crate::{ExecError, Task, Work};
use parking_lot::{Condvar, Mutex};
use ripieno_base::ModelId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A message to a lane's thread.
pub(crate) enum Message {
    /// A model, and the number of the attachment.
    Attach(ModelId, u64, Result<Ready, ExecError>),
    Detach(ModelId),
    /// A task, and when it was accepted.
    Run(Task, Instant),
    /// Something else that a thread without a task has time for.
    Work(Work),
}

/// The most attachments that wait at once; the sender of a further one waits.
const MAX_ATTACHMENTS: usize = 64;

/// How long a lane spins for a task that it expects: about as long as a decision takes, with the waking of who decides.
const SPIN_BEFORE_PARK: Duration = Duration::from_micros(100);

pub(crate) struct Mailbox {
    depth: usize,
    state: Mutex<State>,
    /// Whether a message is queued, or none will follow; a hint, for looking without the lock.
    stirred: AtomicBool,
    arrived: Condvar,
    attachment_taken: Condvar,
}

struct State {
    queue: VecDeque<Message>,
    /// Tasks queued or running.
    tasks: usize,
    /// Attachments queued.
    attachments: usize,
    /// The work that is queued.
    work: Option<Work>,
    /// Whether the lane is at an attachment or a detachment, which may take its time.
    away: bool,
    closed: bool,
}

impl Mailbox {
    pub(crate) fn new(depth: usize) -> Mailbox {
        let queue = VecDeque::with_capacity(depth + MAX_ATTACHMENTS);
        let state = State { queue, tasks: 0, attachments: 0, work: None, away: false, closed: false };
        let (arrived, attachment_taken) = (Condvar::new(), Condvar::new());
        Mailbox { depth, state: Mutex::new(state), stirred: AtomicBool::new(false), arrived, attachment_taken }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Queues a task, or hands it back if so many are held already.
    pub(crate) fn submit(&self, task: Task) -> Result<(), Task> {
        let mut state = self.state.lock();
        if state.tasks >= self.depth {
            return Err(task);
        }
        state.tasks += 1;
        state.queue.push_back(Message::Run(task, Instant::now()));
        self.stir();
        Ok(())
    }

    /// Queues an attachment; waits while too many are queued.
    pub(crate) fn attach(&self, id: ModelId, attachment: u64, model: Result<Ready, ExecError>) {
        let mut state = self.state.lock();
        self.attachment_taken.wait_while(&mut state, |state| state.attachments >= MAX_ATTACHMENTS);
        state.attachments += 1;
        state.queue.push_back(Message::Attach(id, attachment, model));
        self.stir();
    }

    /// Queues a detachment of a model that was attached.
    pub(crate) fn detach(&self, id: ModelId) {
        let mut state = self.state.lock();
        state.queue.push_back(Message::Detach(id));
        self.stir();
    }

    /// Queues work if the lane has nothing else to do. Whether it will begin soon; if other work is queued, it may not.
    pub(crate) fn work(&self, work: &Work) -> bool {
        let mut state = self.state.lock();
        if state.work.is_none() && state.tasks == 0 && !state.away && state.queue.is_empty() && !state.closed {
            state.work = Some(Arc::clone(work));
            state.queue.push_back(Message::Work(Arc::clone(work)));
            self.stir();
        }
        state.work.as_ref().is_some_and(|queued| Arc::ptr_eq(queued, work))
    }

    /// Waits for the next message, wide awake at first if it is expected `soon`; none once the mailbox is closed and empty.
    pub(crate) fn receive(&self, soon: bool) -> Option<Message> {
        if soon {
            self.look_out();
        }
        let mut state = self.state.lock();
        state.away = false;
        self.arrived.wait_while(&mut state, |state| state.queue.is_empty() && !state.closed);
        let message = state.queue.pop_front()?;
        self.stirred.store(state.closed || !state.queue.is_empty(), Ordering::Relaxed);
        state.away = matches!(message, Message::Attach(..) | Message::Detach(_));
        match message {
            Message::Attach(..) => {
                state.attachments -= 1;
                self.attachment_taken.notify_one();
            }
            Message::Work(_) => state.work = None,
            Message::Run(..) | Message::Detach(_) => {}
        }
        Some(message)
    }

    /// A task that was received is over. How many are held still.
    pub(crate) fn release(&self) -> usize {
        let mut state = self.state.lock();
        state.tasks -= 1;
        state.tasks
    }

    /// No message will follow.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.stir();
    }

    /// There is news; called with the lock held.
    fn stir(&self) {
        self.stirred.store(true, Ordering::Relaxed);
        self.arrived.notify_one();
    }

    fn look_out(&self) {
        let until = Instant::now() + SPIN_BEFORE_PARK;
        while !self.stirred.load(Ordering::Relaxed) && Instant::now() < until {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_begins_soon_if_it_is_that_which_is_queued() {
        let mailbox = Mailbox::new(1);
        let works = [1, 2].map(|number| Arc::new(move || assert!(number > 0)) as Work);
        let [first, second] = works;
        assert!(mailbox.work(&first) && mailbox.work(&first));
        assert!(!mailbox.work(&second), "whoever asks for it must look for another thread");
        assert!(matches!(mailbox.receive(false), Some(Message::Work(_))));
        assert!(mailbox.work(&second) && !mailbox.work(&first));
    }
}
