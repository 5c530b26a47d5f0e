//! Devices that double bytes: immediately, with occasional errors, or only when the test allows it.

use ripieno_base::{ModelId, RequestSlot};
use ripieno_executor::{
    Device, ExecError, Executor, LoadError, LoadedModel, MemberProgress, ModelSource, Sink, Task, TaskResult, Tensor,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// Opens doubling devices.
pub(crate) struct Doubling {
    every: usize,
    gate: Mutex<Option<Receiver<()>>>,
    /// Number of tasks begun on all devices.
    begun: Arc<AtomicUsize>,
    memory: Memory,
    announce: Mutex<Option<Sender<()>>>,
}

/// Outputs of a block for the next: shared by all devices, since the test's scheduler may move a
/// request.
type Memory = Arc<Mutex<HashMap<RequestSlot, Vec<Tensor>>>>;

/// The test's control of a gated device.
pub(crate) struct Gatekeeper {
    /// Each message lets one task end.
    pub(crate) release: Sender<()>,
    /// One message for each task begun.
    pub(crate) begun: Receiver<()>,
}

impl Doubling {
    pub(crate) fn prompt() -> Arc<dyn Executor> {
        Arc::new(Doubling::new(usize::MAX))
    }

    pub(crate) fn failing(every: usize) -> Arc<dyn Executor> {
        Arc::new(Doubling::new(every))
    }

    /// Opens one device, whose tasks wait for the gatekeeper.
    pub(crate) fn gated() -> (Arc<dyn Executor>, Gatekeeper) {
        Doubling::gated_and_failing(usize::MAX)
    }

    /// Opens such a device on which every `every`-th task fails.
    pub(crate) fn gated_and_failing(every: usize) -> (Arc<dyn Executor>, Gatekeeper) {
        let ((release, gate), (announce, begun)) = (channel(), channel());
        let mut doubling = Doubling::new(every);
        doubling.gate = Mutex::new(Some(gate));
        doubling.announce = Mutex::new(Some(announce));
        (Arc::new(doubling), Gatekeeper { release, begun })
    }

    fn new(every: usize) -> Doubling {
        let (gate, announce) = (Mutex::default(), Mutex::default());
        Doubling { every, gate, begun: Arc::default(), memory: Arc::default(), announce }
    }
}

impl Executor for Doubling {
    fn name(&self) -> &'static str {
        "doubling"
    }

    fn device_key(&self) -> String {
        "doubling".to_owned()
    }

    fn load(&self, _: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        Ok(Arc::new(super::Doubler(1)))
    }

    fn open(&self, _: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (tasks, received) = channel();
        let worker = Worker {
            sink,
            every: self.every,
            begun: Arc::clone(&self.begun),
            gate: self.gate.lock().unwrap().take(),
            announce: self.announce.lock().unwrap().take(),
            memory: Arc::clone(&self.memory),
            blocks: HashMap::new(),
        };
        let thread = std::thread::spawn(move || worker.run(&received));
        let tasks = Mutex::new(Some(tasks));
        Ok(Box::new(DoublingDevice { tasks, thread: Some(thread) }))
    }
}

enum Message {
    /// The model has this many blocks.
    Attach(ModelId, usize),
    Detach(ModelId),
    Run(Task),
}

struct DoublingDevice {
    tasks: Mutex<Option<Sender<Message>>>,
    thread: Option<JoinHandle<()>>,
}

impl Device for DoublingDevice {
    fn depth(&self) -> usize {
        1
    }

    fn attach(&self, id: ModelId, model: Arc<dyn LoadedModel>) {
        self.send(Message::Attach(id, model.blocks()));
    }

    fn detach(&self, id: ModelId) {
        self.send(Message::Detach(id));
    }

    fn submit(&self, task: Task) -> Result<(), Task> {
        self.send(Message::Run(task));
        Ok(())
    }
}

impl DoublingDevice {
    fn send(&self, message: Message) {
        let tasks = self.tasks.lock().unwrap();
        tasks.as_ref().expect("the device is open").send(message).expect("the worker listens");
    }
}

impl Drop for DoublingDevice {
    fn drop(&mut self) {
        drop(self.tasks.lock().unwrap().take());
        if let Some(thread) = self.thread.take() {
            // A panic of the worker has failed the test already.
            let _ = thread.join();
        }
    }
}

struct Worker {
    sink: Sink,
    every: usize,
    begun: Arc<AtomicUsize>,
    gate: Option<Receiver<()>>,
    announce: Option<Sender<()>>,
    memory: Memory,
    blocks: HashMap<ModelId, usize>,
}

impl Worker {
    fn run(mut self, messages: &Receiver<Message>) {
        for message in messages {
            match message {
                Message::Attach(id, blocks) => assert_eq!(self.blocks.insert(id, blocks), None),
                Message::Detach(id) => assert!(self.blocks.remove(&id).is_some()),
                Message::Run(task) => self.run_task(task),
            }
        }
    }

    fn run_task(&mut self, task: Task) {
        let (id, started) = (task.id, Instant::now());
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(announce) = &self.announce {
            // The test may have ended already.
            let _ = announce.send(());
        }
        if let Some(gate) = &self.gate {
            // Once the gatekeeper is dropped, the gate is open.
            let _ = gate.recv();
        }
        let outcome = match number % self.every {
            0 => Err(ExecError("the device stumbled".to_owned())),
            _ => Ok(self.execute(task)),
        };
        (self.sink)(TaskResult {
            id,
            outcome,
            rerun: None,
            lost: None,
            started,
            finished: Instant::now(),
            host_time: std::time::Duration::ZERO,
            holds_next: false,
        });
    }

    fn execute(&mut self, task: Task) -> Vec<MemberProgress> {
        let mut progress = Vec::new();
        for member in task.members {
            let inputs = match member.entry {
                Some(entry) => entry.inputs().to_vec(),
                None => self.memory.lock().unwrap().remove(&member.slot).expect("the block before left something"),
            };
            assert_eq!(inputs[0].data.len(), member.rows);
            let outputs: Vec<Tensor> = inputs.into_iter().map(double).collect();
            let ended = task.block.index() + 1 == self.blocks[&task.model];
            if !ended {
                self.memory.lock().unwrap().insert(member.slot, outputs.clone());
            }
            progress.push(if ended { MemberProgress::ended(outputs) } else { MemberProgress::default() });
        }
        progress
    }
}

fn double(tensor: Tensor) -> Tensor {
    let data = tensor.data.iter().map(|byte| byte.wrapping_mul(2)).collect::<Vec<u8>>().into();
    Tensor { data, ..tensor }
}
