//! An asynchronous device made of a synchronous engine: a few lanes, each one thread that runs what its mailbox holds, in order.
//!
//! A lane's thread also calls the sink, so that the results of a lane come one after the other and a slow receiver slows the lane
//! down instead of filling a queue. Nothing that a task or the sink does ends the thread: a panic is an error like any other.
//!
//! Lanes run side by side on one device: what one of them leaves for a walk is there for the others, under one lock that is held
//! only to take it out and put it back. Each has a runner of its own, so none waits for another inside the engine; where the
//! device has fewer threads than lanes, so many batches run at once and the others take their turns.

use crate::abort::Abort;
use crate::account::Account;
use crate::isolated;
use crate::mailbox::{Mailbox, Message};
use crate::parts::caught;
use crate::runner::Ready;
use crate::turns::Turns;
use crate::worker::{Done, Slots, Worker};
use crate::{Device, ExecError, LoadError, Loaded, Sink, Spent, Task, TaskResult, Work};
use ripieno_base::{ModelId, TaskId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// How many tasks a lane holds unless told otherwise: one runs, and the next is there when it ends.
pub(crate) const DEFAULT_DEPTH: usize = 2;

/// Makes a loaded model runnable on a lane of this device, by its number; called by whoever attaches it.
pub(crate) type Prepare = Box<dyn Fn(&dyn Loaded, usize) -> Result<Ready, ExecError> + Send + Sync>;

/// Runs a lane's loop, for engines that want it inside a thread pool of theirs.
pub(crate) type Enter = Arc<dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync>;

/// What a device is made of.
pub(crate) struct LaneOptions {
    /// The device's name, which its threads bear.
    pub(crate) name: String,
    /// Tasks that each lane holds.
    pub(crate) depth: usize,
    pub(crate) prepare: Prepare,
    pub(crate) enter: Enter,
    /// For each lane, what stops its waits; shared with a runner that waits.
    pub(crate) aborts: Vec<Arc<Abort>>,
    /// How many batches may run at once.
    pub(crate) at_once: usize,
}

/// A device of one or more lanes.
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    prepare: Prepare,
    account: Arc<Account>,
    /// Counts attachments: what a walk left belongs to one of them, whatever its model's id.
    attachments: AtomicU64,
}

/// A lane with a thread of its own. Dropping it runs what was accepted, then ends the thread.
struct Lane {
    mailbox: Arc<Mailbox>,
    abort: Arc<Abort>,
    thread: Option<JoinHandle<()>>,
}

impl Lanes {
    pub(crate) fn open(options: LaneOptions, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let LaneOptions { name, depth, prepare, enter, aborts, at_once } = options;
        let (account, slots) = (Arc::<Account>::default(), Slots::default());
        let turns = (at_once < aborts.len()).then(|| Arc::new(Turns::new(at_once)));
        let mut lanes = Vec::with_capacity(aborts.len());
        for (at, abort) in aborts.into_iter().enumerate() {
            let worker = Worker::new(Arc::clone(&account), slots.clone());
            let name = if at == 0 { name.clone() } else { format!("{name}.{at}") };
            let body = Body { worker, turns: turns.clone(), sink: Arc::clone(&sink) };
            lanes.push(Lane::start(name, depth, abort, Arc::clone(&enter), body)?);
        }
        Ok(Box::new(Lanes { lanes, prepare, account, attachments: AtomicU64::new(0) }))
    }
}

/// What a lane's thread owns.
struct Body {
    worker: Worker,
    turns: Option<Arc<Turns>>,
    sink: Sink,
}

impl Lane {
    fn start(name: String, depth: usize, abort: Arc<Abort>, enter: Enter, mut body: Body) -> Result<Lane, LoadError> {
        let mailbox = Arc::new(Mailbox::new(depth.max(1)));
        let mut run = {
            let (mailbox, abort) = (Arc::clone(&mailbox), Arc::clone(&abort));
            move || body.run_messages(&mailbox, &abort)
        };
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || enter(&mut run))
            .map_err(|cause| LoadError(format!("no thread for device {name}: {cause}")))?;
        Ok(Lane { mailbox, abort, thread: Some(thread) })
    }
}

impl Device for Lanes {
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn depth(&self) -> usize {
        self.lanes[0].mailbox.depth()
    }

    fn attach(&self, id: ModelId, model: Arc<dyn Loaded>) {
        let attachment = self.attachments.fetch_add(1, Ordering::Relaxed);
        for (at, lane) in self.lanes.iter().enumerate() {
            let ready = isolated::prepare(&*model).unwrap_or_else(|| (self.prepare)(&*model, at));
            if let Err(cause) = &ready {
                tracing::error!(model = id.0, %cause, "a model cannot be attached");
            }
            lane.mailbox.attach(id, attachment, ready);
        }
    }

    fn detach(&self, id: ModelId) {
        self.lanes.iter().for_each(|lane| lane.mailbox.detach(id));
    }

    fn submit(&self, task: Task) -> Result<(), Task> {
        let id = task.id;
        let Some(lane) = self.lanes.get(task.lane.index()) else { return Err(task) };
        lane.abort.hold(id);
        lane.mailbox.submit(task).inspect_err(|_| lane.abort.release(id))
    }

    fn run_idle(&self, work: &Work) -> bool {
        self.lanes.iter().any(|lane| lane.mailbox.work(work))
    }

    fn cancel(&self, id: TaskId) {
        self.lanes.iter().for_each(|lane| lane.abort.ask(id));
    }

    fn rows_gathered(&self) -> u64 {
        self.account.rows_gathered()
    }

    fn tasks_without_copy(&self) -> u64 {
        self.account.tasks_without_copy()
    }

    fn spent(&self) -> Spent {
        self.account.spent()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.mailbox.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a device's thread panicked outside its tasks");
        }
    }
}

impl Body {
    fn run_messages(&mut self, mailbox: &Mailbox, abort: &Abort) {
        let mut soon = false;
        while let Some(message) = mailbox.receive(std::mem::take(&mut soon)) {
            match message {
                Message::Attach(id, attachment, model) => self.worker.attach(id, attachment, model),
                Message::Detach(id) => self.worker.detach(id),
                Message::Work(work) => {
                    if catch_unwind(AssertUnwindSafe(|| work())).is_err() {
                        tracing::error!("what a device's thread was lent for panicked");
                    }
                }
                Message::Run(task, accepted) => {
                    abort.begin(task.id);
                    let mut result = self.run_task(abort, &task, accepted);
                    abort.release(task.id);
                    result.holds_next = mailbox.release() > 0;
                    // Who goes on with another block comes back as soon as that is decided.
                    soon = result.outcome.iter().flatten().any(|progress| !progress.ended && progress.failed.is_none());
                    if catch_unwind(AssertUnwindSafe(|| (self.sink)(result))).is_err() {
                        tracing::error!(task = task.id.0, "the receiver of a result panicked");
                    }
                }
            }
        }
    }

    fn run_task(&mut self, abort: &Abort, task: &Task, accepted: Instant) -> TaskResult {
        let ready = task.not_before.map_or(accepted, |not_before| accepted.max(not_before));
        let mut waited = abort.wait_until(ready);
        let turn = self.turns.as_ref().filter(|_| waited.is_ok()).map(|turns| turns.take());
        if turn.is_some() {
            // It may have been cancelled while it waited for its turn.
            waited = abort.wait_until(ready);
        }
        let started = Instant::now();
        if let Err(cancelled) = waited {
            let outcome = Err(cancelled);
            return TaskResult {
                id: task.id,
                outcome,
                again: None,
                lost: None,
                started,
                finished: started,
                holds_next: false,
            };
        }
        // The worker takes the state of a task's walks out before it runs them, so a panic leaves none half done.
        let done = caught(|| self.worker.execute(task, ready, &|| abort.is_stopped(task.id)));
        let (outcome, again) = match done {
            Ok(Done { progress, again }) => (Ok(progress), again),
            Err(cause) => (Err(cause), None),
        };
        let lost = self.worker.lost(task.model).filter(|_| outcome.is_err());
        let finished = Instant::now();
        TaskResult { id: task.id, outcome, again, lost, started, finished, holds_next: false }
    }
}

#[cfg(test)]
mod tests;
