//! Devices that run an encoder and a decoder over bytes: the encoder adds them up, the decoder
//! counts from the sum.

use bytes::Bytes;
use ripieno_base::{ModelId, Nanos, RequestSlot};
use ripieno_executor::{
    Device, ExecError, Executor, LoadError, LoadedModel, MemberProgress, ModelSource, RequestEntry, RequestError, Sink,
    Task, TaskMember, TaskResult, Tensor,
};
use ripieno_model::{Block, DataType, Extent, Graph, Model, Profile, Steps, TensorSpec, Walk};
use ripieno_runtime::ServedModel;
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest sequence.
pub(crate) const LONGEST: usize = 12;
/// Steps of the decoder beyond the length of the input.
const EXTRA: usize = 2;
/// Number of tasks that a device holds.
pub(crate) const DEPTH: usize = 5;

/// Returns the model's expected answer to a sequence.
pub(crate) fn answer_to(sequence: &[u8]) -> Vec<u8> {
    let sum = sequence.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    let steps = (usize::from(sum % 7) + 1).min(sequence.len() + EXTRA);
    (0..steps).map(|step| sum.wrapping_add(step as u8)).collect()
}

pub(crate) fn sequence(bytes: &[u8]) -> Arc<[Tensor]> {
    vec![tensor(bytes)].into()
}

fn tensor(bytes: &[u8]) -> Tensor {
    let shape = vec![1, bytes.len() as i64];
    Tensor { name: "x".into(), datatype: DataType::Uint8, shape, data: Bytes::copy_from_slice(bytes) }
}

struct Counting;

impl LoadedModel for Counting {
    fn inputs(&self) -> &[TensorSpec] {
        &[]
    }
    fn outputs(&self) -> &[TensorSpec] {
        &[]
    }
    fn blocks(&self) -> usize {
        2
    }
    fn describe(&self, inputs: &[Tensor]) -> Result<(Extent, Option<Graph>), RequestError> {
        let length = inputs[0].data.len();
        if length == 0 || length > LONGEST {
            return Err(RequestError(format!("a sequence of {length}; 1 to {LONGEST} are possible")));
        }
        Ok((Extent { length: length as u32, limit: (length + EXTRA) as u32 }, None))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub(crate) fn counting(slo: Duration) -> ServedModel {
    let profile = Profile::linear(0.01, 0.01, 4).unwrap();
    let block = |name: &str, steps, priority| Block { steps, priority, ..Block::new(name, profile.clone()) };
    let blocks = vec![block("encoder", Steps::Length, 0), block("decoder", Steps::UntilEnd, 1)];
    let slo = Nanos(i64::try_from(slo.as_nanos()).unwrap());
    let model = Model { blocks, walk: Walk::EncodeDecode, ..Model::whole("counting", profile.clone(), slo) };
    ServedModel {
        model,
        loaded: Arc::new(Counting),
        max_queue: Some(100_000),
        max_queued_work: None,
        answer_late: false,
    }
}

/// Opens such devices; they share the state of requests.
#[derive(Default)]
pub(crate) struct Stepping {
    /// Every task with a multiple of this number fails; 0 for none.
    every: usize,
    /// The task with this number fails; 0 for none.
    nth: usize,
    begun: Arc<AtomicUsize>,
    states: States,
    gate: Mutex<Option<Receiver<()>>>,
}

type States = Arc<Mutex<HashMap<RequestSlot, State>>>;

struct State {
    entry: Arc<RequestEntry>,
    walk: u64,
    encoded: u32,
    sum: u8,
    decoded: Vec<u8>,
    over: bool,
}

impl Stepping {
    pub(crate) fn failing(every: usize) -> Arc<dyn Executor> {
        Arc::new(Stepping { every, ..Stepping::default() })
    }

    /// Opens one device; each message lets one task begin.
    pub(crate) fn gated() -> (Arc<dyn Executor>, Sender<()>) {
        Stepping::gated_and_failing(0)
    }

    /// Opens one such device; the `nth` task fails.
    pub(crate) fn gated_and_failing(nth: usize) -> (Arc<dyn Executor>, Sender<()>) {
        let (release, gate) = channel();
        (Arc::new(Stepping { nth, gate: Mutex::new(Some(gate)), ..Stepping::default() }), release)
    }
}

impl Executor for Stepping {
    fn name(&self) -> &'static str {
        "stepping"
    }

    fn device_key(&self) -> String {
        "stepping".to_owned()
    }

    fn load(&self, _: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        Ok(Arc::new(Counting))
    }

    fn open(&self, _: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (tasks, received) = channel::<Task>();
        let (every, nth) = (self.every, self.nth);
        let (begun, states) = (Arc::clone(&self.begun), Arc::clone(&self.states));
        let gate = self.gate.lock().unwrap().take();
        let thread = std::thread::spawn(move || {
            for task in received {
                if let Some(gate) = &gate {
                    // Once the sender is dropped, the gate is open.
                    let _ = gate.recv();
                }
                let (id, started) = (task.id, Instant::now());
                let number = begun.fetch_add(1, Ordering::Relaxed) + 1;
                let fails = number == nth || (every > 0 && number.is_multiple_of(every));
                let mut states = states.lock().unwrap();
                let progress: Vec<MemberProgress> =
                    task.members.iter().map(|member| run(&mut states, task.block.index(), member, fails)).collect();
                drop(states);
                let outcome = if fails { Err(ExecError("the device stumbled".to_owned())) } else { Ok(progress) };
                sink(TaskResult {
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
        });
        Ok(Box::new(SteppingDevice { tasks: Mutex::new(Some(tasks)), thread: Some(thread) }))
    }
}

/// Runs a step and checks that it is the next one of its request.
fn run(states: &mut HashMap<RequestSlot, State>, block: usize, member: &TaskMember, fails: bool) -> MemberProgress {
    let (known, walk) = (states.get(&member.slot), member.walk);
    if known.is_some_and(|state| state.walk > walk) {
        // A device that was given up still runs an old walk.
        return MemberProgress::default();
    }
    if let Some(entry) = &member.entry
        && known.is_none_or(|state| state.walk < walk || !Arc::ptr_eq(&state.entry, entry))
    {
        let entry = Arc::clone(entry);
        states.insert(member.slot, State { entry, walk, encoded: 0, sum: 0, decoded: Vec::new(), over: false });
    }
    let state = states.get_mut(&member.slot).expect("a request is introduced before its steps run");
    assert_eq!(state.walk, walk, "a walk that begins brings its entry");
    state.over |= fails;
    let Extent { length, limit } = state.entry.extent;
    if state.over || member.node >= [length, limit][block] {
        return MemberProgress::default();
    }
    if block == 0 {
        assert_eq!(member.node, state.encoded, "the encoder's steps run in order, each once");
        state.sum = state.sum.wrapping_add(state.entry.inputs()[0].data[member.node as usize]);
        state.encoded += 1;
        return MemberProgress::default();
    }
    assert_eq!(state.encoded, length, "the decoder follows the encoder");
    assert_eq!(member.node as usize, state.decoded.len(), "the decoder's steps run in order, each once");
    let value = state.sum.wrapping_add(member.node as u8);
    state.decoded.push(value);
    state.over = state.decoded.len() == usize::from(state.sum % 7) + 1 || state.decoded.len() == limit as usize;
    let mut progress =
        if state.over { MemberProgress::ended(vec![tensor(&state.decoded)]) } else { MemberProgress::default() };
    if state.entry.stream {
        progress.step = vec![tensor(&[value])];
    }
    progress
}

struct SteppingDevice {
    tasks: Mutex<Option<Sender<Task>>>,
    thread: Option<JoinHandle<()>>,
}

impl Device for SteppingDevice {
    fn depth(&self) -> usize {
        DEPTH
    }

    fn attach(&self, _: ModelId, _: Arc<dyn LoadedModel>) {}

    fn detach(&self, _: ModelId) {}

    fn submit(&self, task: Task) -> Result<(), Task> {
        self.tasks.lock().unwrap().as_ref().expect("the device is open").send(task).expect("the worker listens");
        Ok(())
    }
}

impl Drop for SteppingDevice {
    fn drop(&mut self) {
        drop(self.tasks.lock().unwrap().take());
        if let Some(thread) = self.thread.take() {
            // A panic of the worker has failed the test already.
            let _ = thread.join();
        }
    }
}
