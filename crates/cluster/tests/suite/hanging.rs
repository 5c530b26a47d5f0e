//! Gates that a test closes and opens, and devices that hang at one: their tasks do not end until
//! the test opens it.

use ripieno_base::ModelId;
use ripieno_executor::{Device, Executor, LoadError, LoadedModel, ModelSource, Sink, Task, TaskResult};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Opens such devices over the devices of another engine.
pub(crate) struct Hanging {
    inner: Arc<dyn Executor>,
    gate: Arc<Gate>,
    /// Number of tasks that devices were given.
    given: Arc<AtomicUsize>,
}

/// A gate, open at first.
#[derive(Default)]
pub(crate) struct Gate {
    /// Number of threads that it lets through before it is closed; `None` if it is open.
    admitted: Mutex<Option<usize>>,
    opened: Condvar,
    /// Number of threads that have come to it.
    reached: AtomicUsize,
}

impl Gate {
    /// Closes or opens it.
    pub(crate) fn set(&self, closed: bool) {
        *self.admitted.lock().unwrap() = closed.then_some(0);
        self.opened.notify_all();
    }

    /// Closes it once this number of threads has passed.
    fn admit(&self, number: usize) {
        *self.admitted.lock().unwrap() = Some(number);
        self.opened.notify_all();
    }

    /// Returns true once a thread has come to it.
    pub(crate) fn has_been_reached(&self) -> bool {
        self.reached.load(Ordering::SeqCst) > 0
    }

    /// Waits while it is closed.
    pub(crate) fn pass(&self) {
        self.reached.fetch_add(1, Ordering::SeqCst);
        let admitted = self.admitted.lock().unwrap();
        let mut admitted = self.opened.wait_while(admitted, |admitted| *admitted == Some(0)).unwrap();
        *admitted = admitted.map(|number| number - 1);
    }
}

impl Hanging {
    pub(crate) fn over(inner: Arc<dyn Executor>) -> Arc<Hanging> {
        Arc::new(Hanging { inner, gate: Arc::default(), given: Arc::default() })
    }

    /// Starts or ends the hang.
    pub(crate) fn set(&self, hangs: bool) {
        self.gate.set(hangs);
    }

    /// Makes tasks hang once this number of them has ended.
    pub(crate) fn hang_after(&self, tasks: usize) {
        self.gate.admit(tasks);
    }

    /// Returns the number of tasks that devices were given.
    pub(crate) fn given(&self) -> usize {
        self.given.load(Ordering::SeqCst)
    }

    /// Returns the number of tasks that have run; the ends of some may wait.
    pub(crate) fn reached(&self) -> usize {
        self.gate.reached.load(Ordering::SeqCst)
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
        let gate = Arc::clone(&self.gate);
        let waits = move |result: TaskResult| {
            gate.pass();
            sink(result);
        };
        Ok(Box::new(Inside(self.inner.open(lanes, Arc::new(waits))?, Arc::clone(&self.given))))
    }
}

struct Inside(Box<dyn Device>, Arc<AtomicUsize>);

impl Device for Inside {
    fn lanes(&self) -> usize {
        self.0.lanes()
    }
    fn depth(&self) -> usize {
        self.0.depth()
    }
    fn attach(&self, id: ModelId, model: Arc<dyn LoadedModel>) {
        self.0.attach(id, model);
    }
    fn detach(&self, id: ModelId) {
        self.0.detach(id);
    }
    fn submit(&self, task: Task) -> Result<(), Task> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.submit(task)
    }
}
