//! An asynchronous device made of a synchronous engine: one thread that runs what its mailbox holds, in order.
//!
//! The thread also calls the sink, so that a device's results come one after the other and a slow receiver slows the
//! device down instead of filling a queue. Nothing that a task or the sink does ends the thread: a panic becomes the
//! error of its task.

use crate::abort::Abort;
use crate::mailbox::{Mailbox, Message};
use crate::worker::{Copies, Ready, Worker};
use crate::{Device, ExecError, LoadError, Loaded, Progress, Sink, Task, TaskResult};
use ripieno_base::{ModelId, TaskId};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// How many tasks a device holds unless told otherwise: one runs, and the next is there when it ends.
pub(crate) const DEFAULT_DEPTH: usize = 2;

/// Makes a loaded model runnable on this device; called by whoever attaches it.
pub(crate) type Prepare = Box<dyn Fn(&dyn Loaded) -> Result<Ready, ExecError> + Send + Sync>;

/// Runs the thread's loop, for engines that want it inside a thread pool of theirs.
pub(crate) type Enter = Box<dyn FnOnce(&mut (dyn FnMut() + Send)) + Send>;

/// What a lane is made of.
pub(crate) struct LaneOptions {
    /// The thread's name.
    pub(crate) name: String,
    pub(crate) depth: usize,
    pub(crate) prepare: Prepare,
    pub(crate) enter: Enter,
    /// Stops what waits; shared with a runner that waits.
    pub(crate) abort: Arc<Abort>,
}

/// A device with a thread of its own. Dropping it runs what was accepted, then ends the thread.
pub(crate) struct Lane {
    mailbox: Arc<Mailbox>,
    prepare: Prepare,
    abort: Arc<Abort>,
    copies: Arc<Copies>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    pub(crate) fn open(options: LaneOptions, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let LaneOptions { name, depth, prepare, enter, abort } = options;
        let mailbox = Arc::new(Mailbox::new(depth.max(1)));
        let copies = Arc::new(Copies::default());
        let mut body = {
            let (mailbox, abort) = (Arc::clone(&mailbox), Arc::clone(&abort));
            let mut worker = Worker::new(Arc::clone(&copies));
            move || run_messages(&mailbox, &abort, &mut worker, &sink)
        };
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || enter(&mut body))
            .map_err(|cause| LoadError(format!("no thread for device {name}: {cause}")))?;
        Ok(Box::new(Lane { mailbox, prepare, abort, copies, thread: Some(thread) }))
    }
}

impl Device for Lane {
    fn depth(&self) -> usize {
        self.mailbox.depth()
    }

    fn attach(&self, id: ModelId, model: Arc<dyn Loaded>) {
        let ready = (self.prepare)(&*model);
        if let Err(cause) = &ready {
            tracing::error!(model = id.0, %cause, "a model cannot be attached");
        }
        self.mailbox.control(Message::Attach(id, ready));
    }

    fn detach(&self, id: ModelId) {
        self.mailbox.control(Message::Detach(id));
    }

    fn submit(&self, task: Task) -> Result<(), Task> {
        let id = task.id;
        self.abort.hold(id);
        self.mailbox.submit(task).inspect_err(|_| self.abort.release(id))
    }

    fn cancel(&self, id: TaskId) {
        self.abort.ask(id);
    }

    fn rows_gathered(&self) -> u64 {
        self.copies.rows_gathered()
    }

    fn tasks_without_copy(&self) -> u64 {
        self.copies.tasks_without_copy()
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

fn run_messages(mailbox: &Mailbox, abort: &Abort, worker: &mut Worker, sink: &Sink) {
    while let Some(message) = mailbox.receive() {
        match message {
            Message::Attach(id, model) => worker.attach(id, model),
            Message::Detach(id) => worker.detach(id),
            Message::Run(task, accepted) => {
                abort.begin(task.id);
                let result = run_task(worker, abort, &task, accepted);
                abort.release(task.id);
                mailbox.release();
                if catch_unwind(AssertUnwindSafe(|| sink(result))).is_err() {
                    tracing::error!(task = task.id.0, "the receiver of a result panicked");
                }
            }
        }
    }
}

fn run_task(worker: &mut Worker, abort: &Abort, task: &Task, accepted: Instant) -> TaskResult {
    let ready = task.not_before.map_or(accepted, |not_before| accepted.max(not_before));
    let waited = abort.wait_until(ready);
    let started = Instant::now();
    if let Err(cancelled) = waited {
        return TaskResult { id: task.id, outcome: Err(cancelled), started, finished: started };
    }
    // The worker takes the state of a task's walks out before it runs them, so a panic leaves none half done.
    let outcome = catch_unwind(AssertUnwindSafe(|| worker.execute(task, ready)));
    let outcome: Result<Vec<Progress>, ExecError> = outcome.unwrap_or_else(|panic| Err(panicked(&*panic)));
    TaskResult { id: task.id, outcome, started, finished: Instant::now() }
}

fn panicked(panic: &(dyn Any + Send)) -> ExecError {
    let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    ExecError(format!("the engine panicked: {}", words.unwrap_or("without a word")))
}

#[cfg(test)]
mod tests;
