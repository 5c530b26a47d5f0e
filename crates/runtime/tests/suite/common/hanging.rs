//! Devices of a real engine that a test can make hang: their results are held back until it
//! releases them.

use ripieno_base::{ModelId, TaskId};
use ripieno_executor::{Device, Executor, LoadError, LoadedModel, ModelSource, PhaseTimes, Sink, Task, TaskResult};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Opens such devices.
pub(crate) struct Hanging {
    inner: Arc<dyn Executor>,
    /// Devices in the order in which they were opened.
    opened: Mutex<Vec<Arc<Hold>>>,
}

/// The test's control of a device.
pub(crate) struct Hold {
    state: Mutex<Held>,
    let_go: Condvar,
    /// Number of tasks submitted to it. Separate from `state`, which is locked while results are
    /// reported: that may submit new tasks.
    submitted: Mutex<usize>,
    given: Condvar,
    sink: Sink,
}

#[derive(Default)]
struct Held {
    hangs: bool,
    /// Delay that it adds to the reported durations of its tasks.
    slowed: Duration,
    kept: Vec<TaskResult>,
}

impl Hanging {
    pub(crate) fn over(inner: impl Executor + 'static) -> Arc<Hanging> {
        Arc::new(Hanging { inner: Arc::new(inner), opened: Mutex::default() })
    }

    /// Returns the n-th opened device, from 0.
    pub(crate) fn device(&self, nth: usize) -> Arc<Hold> {
        Arc::clone(&self.opened.lock().unwrap()[nth])
    }

    /// Returns the number of opened devices.
    pub(crate) fn opened(&self) -> usize {
        self.opened.lock().unwrap().len()
    }
}

impl Hold {
    /// Holds its results back from this call on.
    pub(crate) fn hang(&self) {
        self.state.lock().unwrap().hangs = true;
    }

    /// Ends the hang: the held results are reported, however late.
    pub(crate) fn let_go(&self) {
        let mut state = self.state.lock().unwrap();
        state.hangs = false;
        std::mem::take(&mut state.kept).into_iter().for_each(|result| (self.sink)(result));
        self.let_go.notify_all();
    }

    /// Adds this delay to the reported durations of its tasks.
    pub(crate) fn slow(&self, by: Duration) {
        self.state.lock().unwrap().slowed = by;
    }

    /// Waits until this number of tasks was submitted to it.
    pub(crate) fn await_tasks(&self, count: usize) {
        let waited =
            self.given.wait_timeout_while(self.submitted.lock().unwrap(), super::SAFETY, |given| *given < count);
        assert!(!waited.unwrap().1.timed_out(), "it is never given {count} tasks");
    }

    /// Returns the number of tasks submitted to it.
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

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
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

    fn attach(&self, id: ModelId, model: Arc<dyn LoadedModel>) {
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

    fn spent(&self) -> PhaseTimes {
        self.inner.spent()
    }
}

impl Drop for HangingDevice {
    /// Like a device whose thread runs a task: ends when the task ends.
    fn drop(&mut self) {
        drop(self.hold.let_go.wait_while(self.hold.state.lock().unwrap(), |held| held.hangs));
    }
}
