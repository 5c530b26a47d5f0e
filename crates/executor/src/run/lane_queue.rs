//! The message queue of a lane's thread. One queue holds tasks, attachments and detachments, which
//! keeps their order.
//!
//! Each kind of message has its own bound, so a channel of the standard library is not sufficient:
//!
//! * A task is returned to its sender once the lane holds `depth` tasks. Submission never waits,
//!   because it happens in a scheduler's turn.
//! * Attachments are rare and slow, so their sender waits.
//! * A detachment never waits, because the lane's own thread may take the turn that sends it. Each
//!   detachment needs an attachment, which bounds their number.
//!
//! The number of held tasks includes the running one. It decreases before the task's result is
//! reported, so the receiver of the result may submit the next task immediately.
//!
//! A lane that expects a task spins before it sleeps, because a wake-up takes longer than most
//! decisions. A request of several stages would have this delay at each stage.

use crate::run::runner::ReadyModel;
use crate::{ExecError, IdleWork, Task};
use parking_lot::{Condvar, Mutex};
use ripieno_base::ModelId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A message to a lane's thread.
pub(crate) enum LaneMessage {
    /// Attaches a model. Holds the number of the attachment, and the model or the error of its
    /// preparation.
    Attach(ModelId, u64, Result<ReadyModel, ExecError>),
    Detach(ModelId),
    /// Runs a task. Holds the time at which the task was accepted.
    Run(Task, Instant),
    /// Runs work of another component on the idle thread.
    Work(IdleWork),
    /// Gives memory back that batches have used, because its time has come.
    ReleaseMemory,
}

/// Largest number of queued attachments. The sender of another attachment waits.
const MAX_ATTACHMENTS: usize = 64;

/// Time that a lane spins for an expected task: about the time of a decision and of waking the
/// deciding thread.
const SPIN_BEFORE_PARK: Duration = Duration::from_micros(100);

pub(crate) struct LaneQueue {
    depth: usize,
    state: Mutex<QueueState>,
    /// Whether a message is queued or the queue was closed. A hint that is read without the lock.
    has_news: AtomicBool,
    arrived: Condvar,
    attachment_taken: Condvar,
}

struct QueueState {
    queue: VecDeque<LaneMessage>,
    /// Number of queued and running tasks.
    tasks: usize,
    /// Number of queued attachments.
    attachments: usize,
    /// Queued work, if any.
    work: Option<IdleWork>,
    /// Whether the lane attaches a model or is busy with its own work, which may take long.
    attaching: bool,
    closed: bool,
}

impl LaneQueue {
    pub(crate) fn new(depth: usize) -> LaneQueue {
        let queue = VecDeque::with_capacity(depth + MAX_ATTACHMENTS);
        let state = QueueState { queue, tasks: 0, attachments: 0, work: None, attaching: false, closed: false };
        let (arrived, attachment_taken) = (Condvar::new(), Condvar::new());
        LaneQueue { depth, state: Mutex::new(state), has_news: AtomicBool::new(false), arrived, attachment_taken }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Queues a task. Returns the task if the lane already holds `depth` tasks.
    pub(crate) fn submit(&self, task: Task) -> Result<(), Task> {
        let mut state = self.state.lock();
        if state.tasks >= self.depth {
            return Err(task);
        }
        state.tasks += 1;
        state.queue.push_back(LaneMessage::Run(task, Instant::now()));
        self.notify();
        Ok(())
    }

    /// Queues an attachment. Waits while too many attachments are queued.
    pub(crate) fn attach(&self, id: ModelId, attachment: u64, model: Result<ReadyModel, ExecError>) {
        let mut state = self.state.lock();
        self.attachment_taken.wait_while(&mut state, |state| state.attachments >= MAX_ATTACHMENTS);
        state.attachments += 1;
        state.queue.push_back(LaneMessage::Attach(id, attachment, model));
        self.notify();
    }

    /// Queues the detachment of an attached model.
    pub(crate) fn detach(&self, id: ModelId) {
        let mut state = self.state.lock();
        state.queue.push_back(LaneMessage::Detach(id));
        self.notify();
    }

    /// Queues work if the lane is idle. Returns whether the work will begin soon; false if other
    /// work is queued.
    pub(crate) fn offer_work(&self, work: &IdleWork) -> bool {
        let mut state = self.state.lock();
        if state.work.is_none() && state.tasks == 0 && !state.attaching && state.queue.is_empty() && !state.closed {
            state.work = Some(Arc::clone(work));
            state.queue.push_back(LaneMessage::Work(Arc::clone(work)));
            self.notify();
        }
        state.work.as_ref().is_some_and(|queued| Arc::ptr_eq(queued, work))
    }

    /// Waits for the next message; `None` once the queue is closed and empty. If a message is
    /// expected `soon`, spins before sleeping. Without a message until `release_at`, returns
    /// [`LaneMessage::ReleaseMemory`].
    pub(crate) fn receive(&self, soon: bool, release_at: Option<Instant>) -> Option<LaneMessage> {
        if soon {
            self.spin();
        }
        let mut state = self.state.lock();
        state.attaching = false;
        let idle = |state: &mut QueueState| state.queue.is_empty() && !state.closed;
        if let Some(at) = release_at {
            let late = self.arrived.wait_while_until(&mut state, idle, at).timed_out();
            if late && idle(&mut state) {
                state.attaching = true;
                return Some(LaneMessage::ReleaseMemory);
            }
        } else {
            self.arrived.wait_while(&mut state, idle);
        }
        self.pop(&mut state)
    }

    /// Returns the next message, if one is queued.
    pub(crate) fn try_receive(&self) -> Option<LaneMessage> {
        self.pop(&mut self.state.lock())
    }

    fn pop(&self, state: &mut QueueState) -> Option<LaneMessage> {
        let message = state.queue.pop_front();
        self.has_news.store(!state.queue.is_empty(), Ordering::Relaxed);
        let message = message?;
        state.attaching = matches!(message, LaneMessage::Attach(..) | LaneMessage::Detach(_));
        match message {
            LaneMessage::Attach(..) => {
                state.attachments -= 1;
                self.attachment_taken.notify_one();
            }
            LaneMessage::Work(_) => state.work = None,
            LaneMessage::Run(..) | LaneMessage::Detach(_) | LaneMessage::ReleaseMemory => {}
        }
        Some(message)
    }

    /// Whether the lane holds nothing to do. If so, it may be busy with its own work until the next
    /// [`receive`](LaneQueue::receive).
    pub(crate) fn begin_idle_work(&self) -> bool {
        let mut state = self.state.lock();
        let idle = state.queue.is_empty() && !state.closed;
        state.attaching |= idle;
        idle
    }

    /// Counts the end of a received task. Returns the number of tasks that the lane still holds.
    pub(crate) fn release(&self) -> usize {
        let mut state = self.state.lock();
        state.tasks -= 1;
        state.tasks
    }

    /// Closes the queue. No message may follow.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.notify();
    }

    /// Wakes the receiver. The caller must hold the lock.
    fn notify(&self) {
        self.has_news.store(true, Ordering::Relaxed);
        self.arrived.notify_one();
    }

    /// Whether a message may be queued for [`try_receive`](LaneQueue::try_receive).
    pub(crate) fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed)
    }

    fn spin(&self) {
        let until = Instant::now() + SPIN_BEFORE_PARK;
        while !self.has_news() && Instant::now() < until {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_begins_soon_if_it_is_that_which_is_queued() {
        let mailbox = LaneQueue::new(1);
        let works = [1, 2].map(|number| Arc::new(move || assert!(number > 0)) as IdleWork);
        let [first, second] = works;
        assert!(mailbox.offer_work(&first) && mailbox.offer_work(&first));
        assert!(!mailbox.offer_work(&second), "the caller must find another thread");
        assert!(matches!(mailbox.receive(false, None), Some(LaneMessage::Work(_))));
        assert!(mailbox.offer_work(&second) && !mailbox.offer_work(&first));
    }

    #[test]
    fn an_idle_lane_gives_memory_back_at_the_time_and_after_queued_messages() {
        let mailbox = LaneQueue::new(1);
        let work = Arc::new(|| ()) as IdleWork;
        assert!(mailbox.offer_work(&work));
        let past = Some(Instant::now());
        assert!(matches!(mailbox.receive(false, past), Some(LaneMessage::Work(_))));
        assert!(matches!(mailbox.receive(false, past), Some(LaneMessage::ReleaseMemory)));
        assert!(!mailbox.offer_work(&work), "the lane may be busy for long");
        mailbox.close();
        assert!(mailbox.receive(false, past).is_none());
    }
}
