//! Devices of a real engine that a test may have hang: their results are kept back until it lets go.

use ripieno_base::{ModelId, TaskId};
use ripieno_executor::{Device, Engine as Executor, LoadError, Loaded, ModelSource, Sink, Spent, Task, TaskResult};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Opens such devices.
pub(crate) struct Hanging {
    inner: Arc<dyn Executor>,
    /// By the order in which they were opened.
    opened: Mutex<Vec<Arc<Hold>>>,
}

/// The test's hold on a device.
pub(crate) struct Hold {
    state: Mutex<Held>,
    let_go: Condvar,
    /// Tasks given to it so far. Apart from `state`, which is locked while results are reported: that may bring new tasks.
    submitted: Mutex<usize>,
    given: Condvar,
    sink: Sink,
}

#[derive(Default)]
struct Held {
    hangs: bool,
    /// By how much longer it says that its tasks take.
    slowed: Duration,
    kept: Vec<TaskResult>,
}

impl Hanging {
    pub(crate) fn over(inner: impl Executor + 'static) -> Arc<Hanging> {
        Arc::new(Hanging { inner: Arc::new(inner), opened: Mutex::default() })
    }

    /// The device that was opened as the n-th, from 0.
    pub(crate) fn device(&self, nth: usize) -> Arc<Hold> {
        Arc::clone(&self.opened.lock().unwrap()[nth])
    }

    /// How many were opened.
    pub(crate) fn opened(&self) -> usize {
        self.opened.lock().unwrap().len()
    }
}

impl Hold {
    /// Keeps its results back from now on.
    pub(crate) fn hang(&self) {
        self.state.lock().unwrap().hangs = true;
    }

    /// Hangs no more: what it has kept back is reported, however late.
    pub(crate) fn let_go(&self) {
        let mut state = self.state.lock().unwrap();
        state.hangs = false;
        std::mem::take(&mut state.kept).into_iter().for_each(|result| (self.sink)(result));
        self.let_go.notify_all();
    }

    /// Says from now on that its tasks take so much longer than they do.
    pub(crate) fn slow(&self, by: Duration) {
        self.state.lock().unwrap().slowed = by;
    }

    /// Waits until it has been given so many tasks.
    pub(crate) fn await_tasks(&self, count: usize) {
        let waited =
            self.given.wait_timeout_while(self.submitted.lock().unwrap(), super::SAFETY, |given| *given < count);
        assert!(!waited.unwrap().1.timed_out(), "it is never given {count} tasks");
    }

    /// How many tasks it was given so far.
    pub(crate) fn tasks(&self) -> usize {
        *self.submitted.lock().unwrap()
    }
}

impl Executor for Hanging {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn device_key(&self) -> String {
        self.inner.device_key()
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn Loaded>, LoadError> {
        self.inner.load(source)
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (let_go, given) = (Condvar::new(), Condvar::new());
        let hold = Arc::new(Hold { state: Mutex::default(), let_go, submitted: Mutex::default(), given, sink });
        let held = Arc::clone(&hold);
        let keep: Sink = Arc::new(move |mut result| {
            // Under the lock, so that results come in order.
            let mut state = held.state.lock().unwrap();
            result.finished += state.slowed;
            match state.hangs {
                true => state.kept.push(result),
                false => (held.sink)(result),
            }
        });
        let inner = self.inner.open(lanes, keep)?;
        self.opened.lock().unwrap().push(Arc::clone(&hold));
        Ok(Box::new(HangingDevice { inner, hold }))
    }
}

struct HangingDevice {
    inner: Box<dyn Device>,
    hold: Arc<Hold>,
}

impl Device for HangingDevice {
    fn lanes(&self) -> usize {
        self.inner.lanes()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn attach(&self, id: ModelId, model: Arc<dyn Loaded>) {
        self.inner.attach(id, model);
    }

    fn detach(&self, id: ModelId) {
        self.inner.detach(id);
    }

    fn submit(&self, task: Task) -> Result<(), Task> {
        self.inner.submit(task)?;
        *self.hold.submitted.lock().unwrap() += 1;
        self.hold.given.notify_all();
        Ok(())
    }

    fn cancel(&self, id: TaskId) {
        self.inner.cancel(id);
    }

    fn spent(&self) -> Spent {
        self.inner.spent()
    }
}

impl Drop for HangingDevice {
    /// As a device whose thread is at its task: ends when that ends.
    fn drop(&mut self) {
        drop(self.hold.let_go.wait_while(self.hold.state.lock().unwrap(), |held| held.hangs));
    }
}
