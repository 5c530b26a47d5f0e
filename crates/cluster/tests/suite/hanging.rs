//! Devices that a test can make hang: their tasks do not end until the test releases them.

use ripieno_base::ModelId;
use ripieno_executor::{Device, Executor, LoadError, LoadedModel, ModelSource, Sink, Task, TaskResult};
use std::sync::{Arc, Condvar, Mutex};

/// Opens such devices over the devices of another engine.
pub(crate) struct Hanging {
    inner: Arc<dyn Executor>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    hangs: Mutex<bool>,
    let_go: Condvar,
}

impl Hanging {
    pub(crate) fn over(inner: Arc<dyn Executor>) -> Arc<Hanging> {
        Arc::new(Hanging { inner, gate: Arc::default() })
    }

    /// Starts or ends the hang.
    pub(crate) fn set(&self, hangs: bool) {
        *self.gate.hangs.lock().unwrap() = hangs;
        self.gate.let_go.notify_all();
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
            drop(gate.let_go.wait_while(gate.hangs.lock().unwrap(), |hangs| *hangs).unwrap());
            sink(result);
        };
        Ok(Box::new(Inside(self.inner.open(lanes, Arc::new(waits))?)))
    }
}

struct Inside(Box<dyn Device>);

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
        self.0.submit(task)
    }
}
