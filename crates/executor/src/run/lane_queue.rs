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
//! While the lane's thread has a task, a second thread may take the next one out, prepare it and
//! put it back; see `second_thread.rs`. Until then the lane's thread waits with all later messages.
//! The lane's thread may also leave the end of a task to the second thread, one at a time.
//!
//! A lane that expects a task spins before it sleeps, because a wake-up takes longer than most
//! decisions. A request of several stages would have this delay at each stage.

use crate::run::gather::LaneModel;
use crate::run::runner::ReadyModel;
use crate::run::task::PreparedTask;
use crate::{ExecError, IdleWork, Task};
use parking_lot::{Condvar, Mutex};
use ripieno_base::{BlockId, ModelId};
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
    /// Runs a task.
    Run(QueuedTask),
    /// Runs work of another component on the idle thread.
    Work(IdleWork),
    /// Gives memory back that batches have used, because its time has come.
    ReleaseMemory,
}

/// A task that a lane has accepted.
pub(crate) struct QueuedTask {
    pub(crate) task: Task,
    /// Time at which the task was accepted.
    pub(crate) accepted: Instant,
    /// The task ready to run, if it was prepared while another one ran.
    pub(crate) prepared: Option<Box<PreparedTask>>,
}

/// The first task of a queue, once it is taken out to be prepared.
#[derive(Default)]
enum AheadTask {
    #[default]
    None,
    /// Another thread prepares it.
    Taken,
    /// It is the next message.
    Ready(QueuedTask),
}

/// Work for the second thread.
pub(crate) enum Chore {
    /// Finishes and reports a task that has run.
    Finish(Finish),
    /// Prepares the next task, of this model.
    Prepare(Box<QueuedTask>, LaneModel),
}

/// The end of a task, after its run.
pub(crate) type Finish = Box<dyn FnOnce() + Send>;

/// The end of a task, once it is left to the second thread.
#[derive(Default)]
enum LeftEnd {
    #[default]
    None,
    Waits(Finish),
    Runs,
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
    /// Signals work for the second thread.
    chore_due: Condvar,
    /// Signals that the second thread has finished a task.
    end_left: Condvar,
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
    /// Whether the last message that the lane's thread received is a task whose run has not ended.
    /// All earlier messages have then been handled.
    running: bool,
    ahead: AheadTask,
    left_end: LeftEnd,
    /// Models whose tasks are prepared while another one runs.
    ahead_models: Vec<(ModelId, LaneModel)>,
    closed: bool,
    /// Whether all tasks have run.
    over: bool,
}

impl QueueState {
    /// Whether the lane's thread can receive a message.
    fn has_message(&self) -> bool {
        match self.ahead {
            AheadTask::None => !self.queue.is_empty(),
            AheadTask::Taken => false,
            AheadTask::Ready(_) => true,
        }
    }

    /// Whether the lane's thread must wait for its next message, or for the end of the queue.
    fn must_wait(&self) -> bool {
        !self.has_message() && (!self.closed || matches!(self.ahead, AheadTask::Taken))
    }

    /// Returns the next task, if it is the next message.
    fn next_task(&self) -> Option<&Task> {
        match (&self.ahead, self.queue.front()) {
            (AheadTask::Ready(next), _) | (AheadTask::None, Some(LaneMessage::Run(next))) => Some(&next.task),
            _ => None,
        }
    }

    /// Returns the model of the first task if it is to be prepared while another one runs.
    fn next_ahead(&self) -> Option<&LaneModel> {
        let first = match (&self.ahead, self.queue.front()) {
            (AheadTask::None, Some(LaneMessage::Run(first))) if self.running => &first.task,
            _ => return None,
        };
        let mut models = self.ahead_models.iter().filter(|_| first.block == BlockId(0));
        models.find(|(id, _)| *id == first.model).map(|(_, model)| model)
    }
}

impl LaneQueue {
    pub(crate) fn new(depth: usize) -> LaneQueue {
        let queue = VecDeque::with_capacity(depth + MAX_ATTACHMENTS);
        let state = QueueState {
            queue,
            tasks: 0,
            attachments: 0,
            work: None,
            attaching: false,
            running: false,
            ahead: AheadTask::None,
            left_end: LeftEnd::None,
            ahead_models: Vec::new(),
            closed: false,
            over: false,
        };
        LaneQueue {
            depth,
            state: Mutex::new(state),
            has_news: AtomicBool::new(false),
            arrived: Condvar::new(),
            attachment_taken: Condvar::new(),
            chore_due: Condvar::new(),
            end_left: Condvar::new(),
        }
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
        state.queue.push_back(LaneMessage::Run(QueuedTask { task, accepted: Instant::now(), prepared: None }));
        self.notify();
        self.notify_ahead(&state);
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
        let waits = |state: &mut QueueState| state.must_wait();
        if let Some(at) = release_at {
            let late = self.arrived.wait_while_until(&mut state, waits, at).timed_out();
            if late && state.must_wait() {
                state.attaching = true;
                return Some(LaneMessage::ReleaseMemory);
            }
        } else {
            self.arrived.wait_while(&mut state, waits);
        }
        self.pop(&mut state)
    }

    /// Returns the next message, if one is queued.
    pub(crate) fn try_receive(&self) -> Option<LaneMessage> {
        self.pop(&mut self.state.lock())
    }

    fn pop(&self, state: &mut QueueState) -> Option<LaneMessage> {
        let message = match std::mem::take(&mut state.ahead) {
            AheadTask::None => state.queue.pop_front(),
            AheadTask::Ready(task) => Some(LaneMessage::Run(task)),
            AheadTask::Taken => {
                state.ahead = AheadTask::Taken;
                None
            }
        };
        self.has_news.store(state.has_message(), Ordering::Relaxed);
        let message = message?;
        state.attaching = matches!(message, LaneMessage::Attach(..) | LaneMessage::Detach(_));
        state.running = matches!(message, LaneMessage::Run(_));
        self.notify_ahead(state);
        match message {
            LaneMessage::Attach(..) => {
                state.attachments -= 1;
                self.attachment_taken.notify_one();
            }
            LaneMessage::Work(_) => state.work = None,
            LaneMessage::Run(_) | LaneMessage::Detach(_) | LaneMessage::ReleaseMemory => {}
        }
        Some(message)
    }

    /// Whether the lane holds nothing to do. If so, it may be busy with its own work until the next
    /// [`receive`](LaneQueue::receive).
    pub(crate) fn begin_idle_work(&self) -> bool {
        let mut state = self.state.lock();
        let idle = state.must_wait() && matches!(state.ahead, AheadTask::None);
        state.attaching |= idle;
        idle
    }

    /// Counts the end of a received task. Returns the number of tasks that the lane still holds.
    pub(crate) fn release(&self) -> usize {
        let mut state = self.state.lock();
        state.tasks -= 1;
        state.running = false;
        state.tasks
    }

    /// Makes tasks of a model be prepared while another one runs, or ends that without the model.
    pub(crate) fn set_ahead(&self, id: ModelId, model: Option<LaneModel>) {
        let mut state = self.state.lock();
        state.ahead_models.retain(|(known, _)| *known != id);
        state.ahead_models.extend(model.map(|model| (id, model)));
        self.notify_ahead(&state);
    }

    /// Waits for work of the second thread, the end of a task first. A task to prepare is taken
    /// out, and the caller must put it back. Returns `None` once
    /// there will be no more.
    pub(crate) fn next_chore(&self) -> Option<Chore> {
        let mut state = self.state.lock();
        loop {
            if let LeftEnd::Waits(finish) = std::mem::take(&mut state.left_end) {
                state.left_end = LeftEnd::Runs;
                return Some(Chore::Finish(finish));
            }
            if state.over {
                return None;
            }
            if let Some(model) = state.next_ahead().cloned() {
                let Some(LaneMessage::Run(task)) = state.queue.pop_front() else { unreachable!("a task is first") };
                state.ahead = AheadTask::Taken;
                self.has_news.store(false, Ordering::Relaxed);
                return Some(Chore::Prepare(Box::new(task), model));
            }
            self.chore_due.wait(&mut state);
        }
    }

    /// Ends the second thread once it has finished the task that is left to it. The lane's thread
    /// must have run all tasks.
    pub(crate) fn end_chores(&self) {
        self.state.lock().over = true;
        self.chore_due.notify_one();
    }

    /// Whether the next message is a first block, which may run beside the end of a task.
    pub(crate) fn is_first_block_next(&self) -> bool {
        self.state.lock().next_task().is_some_and(|next| next.block == BlockId(0))
    }

    /// Leaves the end of the task that has just run to the second thread. No other end may be left.
    pub(crate) fn leave_end(&self, finish: Finish) {
        let mut state = self.state.lock();
        state.running = false;
        state.left_end = LeftEnd::Waits(finish);
        self.chore_due.notify_one();
    }

    /// Waits until the second thread has finished the task that was left to it.
    pub(crate) fn await_left_end(&self) {
        let mut state = self.state.lock();
        self.end_left.wait_while(&mut state, |state| !matches!(state.left_end, LeftEnd::None));
    }

    /// Notes that the second thread has finished the task that was left to it.
    pub(crate) fn finished(&self) {
        self.state.lock().left_end = LeftEnd::None;
        self.end_left.notify_one();
    }

    /// Counts the end of a task that was left to the second thread. Returns the number of tasks
    /// that the lane still holds.
    pub(crate) fn release_left(&self) -> usize {
        let mut state = self.state.lock();
        state.tasks -= 1;
        state.tasks
    }

    /// Puts a task back that was taken out to be prepared.
    pub(crate) fn put_ahead(&self, task: QueuedTask) {
        let mut state = self.state.lock();
        state.ahead = AheadTask::Ready(task);
        self.notify();
    }

    /// Closes the queue. No message may follow.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.notify();
    }

    /// Wakes the second thread if a task is to be prepared.
    fn notify_ahead(&self, state: &QueueState) {
        if state.next_ahead().is_some() {
            self.chore_due.notify_one();
        }
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
    fn an_end_that_is_left_after_the_queue_was_closed_is_finished() {
        let queue = Arc::new(LaneQueue::new(1));
        queue.close();
        let (other, (send, sent)) = (Arc::clone(&queue), std::sync::mpsc::channel());
        let second = thread::spawn(move || {
            let mut finished = 0;
            while let Some(Chore::Finish(finish)) = other.next_chore() {
                finish();
                other.finished();
                finished += 1;
            }
            finished
        });
        for _ in 0..2 {
            let send = send.clone();
            queue.leave_end(Box::new(move || send.send(()).unwrap()));
            queue.await_left_end();
            sent.try_recv().unwrap();
        }
        queue.end_chores();
        assert_eq!(second.join().unwrap(), 2);
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
