//! Shared parts of the tests of all engines: models, their expected answers, and a device with a
//! simple interface.

use crate::isolated::Isolating;
use bytes::Bytes;
use ripieno_base::{BlockId, LaneId, ModelId, Nanos, RequestSlot, TaskId};
use ripieno_executor::*;
use ripieno_model::{DataType, Profile, TensorSpec};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Time limit of a wait; only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The largest batch of every model here.
pub(crate) const MAX_BATCH: usize = 16;

/// An engine with the model sources of each kind.
pub(crate) struct Fixture {
    pub(crate) engine: Box<dyn Executor>,
    /// FP32 "x" [-1, 4] to FP32 "y".
    pub(crate) whole: ModelSource,
    /// The same model in two blocks.
    pub(crate) chain: ModelSource,
    /// FP32 "x" [-1, -1] to "y".
    pub(crate) any_width: ModelSource,
    /// The expected answer of `whole` and `chain` to a row.
    pub(crate) answer: fn(&[f32]) -> Vec<f32>,
    /// Number of lanes of its devices.
    pub(crate) lanes: usize,
}

impl Fixture {
    pub(crate) fn stand(&self, source: &ModelSource) -> Stand {
        Stand::of_lanes(&*self.engine, source, self.lanes)
    }

    fn of_two_lanes(self) -> Fixture {
        Fixture { lanes: 2, ..self }
    }
}

pub(crate) fn cpu_of_two_lanes() -> Fixture {
    onnx(Box::new(CpuEngine::new(CpuOptions { threads: 2 }))).of_two_lanes()
}

pub(crate) fn onnxruntime_of_two_lanes() -> Fixture {
    onnxruntime().of_two_lanes()
}

/// The engines that run files, in this process and in others.
pub(crate) fn engines() -> [Box<dyn Executor>; 5] {
    let isolated = [isolated_cpu().engine, isolated_onnxruntime_of_two_lanes().engine];
    let [isolated_cpu, isolated_onnxruntime] = isolated;
    [cpu().engine, onnxruntime().engine, onnxruntime_bound().engine, isolated_cpu, isolated_onnxruntime]
}

/// The engines that run cells: those that run files, and the GPU's on this machine's CPU, whose
/// steps take random times, in this process and in another.
pub(crate) fn cell_engines() -> Vec<Box<dyn Executor>> {
    let on_host = || Box::new(CudaCellsEngine::on_host(5)) as Box<dyn Executor>;
    engines().into_iter().chain([on_host(), Box::new(Isolating(on_host()))]).collect()
}

pub(crate) fn isolated_cpu() -> Fixture {
    onnx(Box::new(Isolating(cpu().engine)))
}

/// In the processes tensors are bound, as on GPUs.
pub(crate) fn isolated_onnxruntime_of_two_lanes() -> Fixture {
    onnx(Box::new(Isolating(onnxruntime_bound().engine))).of_two_lanes()
}

pub(crate) fn emulated_of_two_lanes() -> Fixture {
    emulated().of_two_lanes()
}

pub(crate) fn cpu() -> Fixture {
    onnx(Box::new(CpuEngine::new(CpuOptions::default())))
}

pub(crate) fn onnxruntime() -> Fixture {
    onnx(Box::new(onnxruntime_engine()))
}

/// Creates the engine. These tests need the library: without it they fail with instructions to get
/// it.
pub(crate) fn onnxruntime_engine() -> OnnxRuntimeEngine {
    OnnxRuntimeEngine::new(OnnxRuntimeOptions::default()).unwrap_or_else(|cause| panic!("{cause}"))
}

/// ONNX Runtime with bound tensors, as on GPUs.
pub(crate) fn onnxruntime_bound() -> Fixture {
    let options = OnnxRuntimeOptions { binds_on_cpu: true, ..Default::default() };
    onnx(Box::new(OnnxRuntimeEngine::new(options).unwrap_or_else(|cause| panic!("{cause}"))))
}

/// Both engines on one device; the models are ONNX Runtime's.
pub(crate) fn either() -> Fixture {
    onnx(Box::new(EitherEngine::new(onnxruntime_engine(), CpuEngine::new(CpuOptions::default()))))
}

pub(crate) fn emulated() -> Fixture {
    let source = |blocks: &[&str], width: i64| {
        let spec = |name: &str| TensorSpec { name: name.to_owned(), datatype: DataType::Fp32, shape: vec![-1, width] };
        let profile = Profile::from_table(&[Nanos::from_micros(50); MAX_BATCH]).unwrap();
        let block = |name: &&str| BlockSource { profile: Some(profile.clone()), ..BlockSource::new(*name) };
        let blocks = blocks.iter().map(block).collect();
        ModelSource { inputs: vec![spec("x")], outputs: vec![spec("y")], ..empty("emulated", blocks) }
    };
    Fixture {
        engine: Box::new(EmulatedEngine::new(EmulatedOptions::default())),
        whole: source(&["whole"], 4),
        chain: source(&["first", "second"], 4),
        any_width: source(&["whole"], -1),
        answer: <[f32]>::to_vec,
        lanes: 1,
    }
}

fn onnx(engine: Box<dyn Executor>) -> Fixture {
    Fixture {
        engine,
        whole: files(&["mlp"]),
        chain: files(&["mlp_first", "mlp_second"]),
        any_width: files(&["double"]),
        answer: mlp,
        lanes: 1,
    }
}

/// Returns a model whose blocks are these files of `tests/models`.
pub(crate) fn files(names: &[&str]) -> ModelSource {
    let block = |name: &&str| BlockSource { path: Some(model_path(name)), ..BlockSource::new(*name) };
    empty(names[0], names.iter().map(block).collect())
}

pub(crate) fn model_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(format!("{name}.onnx"))
}

pub(crate) fn empty(name: &str, blocks: Vec<BlockSource>) -> ModelSource {
    ModelSource::new(name, blocks, MAX_BATCH)
}

/// Computes the MLP of `make_models.py`, with the weights' formula.
pub(crate) fn mlp(x: &[f32]) -> Vec<f32> {
    let weight = |at: usize, factor: usize| ((at * factor % 17) as f32 - 8.0) / 8.0;
    let layer = |x: &[f32], columns: usize, w: usize, b: usize| -> Vec<f32> {
        let sum = |j: usize| x.iter().enumerate().map(|(i, x)| x * weight(i * columns + j, w)).sum::<f32>();
        (0..columns).map(|j| sum(j) + weight(j, b)).collect()
    };
    let hidden: Vec<f32> = layer(x, 8, 5, 3).into_iter().map(|h| h.max(0.0)).collect();
    layer(&hidden, 3, 7, 11)
}

/// Returns numbers that differ from row to row and from seed to seed.
pub(crate) fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| (((at + 1) * (seed + 3) * 7919 % 201) as f32 - 100.0) / 40.0).collect()
}

pub(crate) fn fp32(name: &str, shape: &[i64], elements: &[f32]) -> Tensor {
    let data = Bytes::from(elements.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<u8>>());
    Tensor { name: name.into(), datatype: DataType::Fp32, shape: shape.to_vec(), data }
}

pub(crate) fn floats(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.datatype, DataType::Fp32);
    tensor.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Creates a request for the fixture's `whole` and `chain`.
pub(crate) fn request(slot: u32, x: &[f32]) -> TaskMember {
    wide_request(slot, x, 4)
}

pub(crate) fn wide_request(slot: u32, x: &[f32], width: usize) -> TaskMember {
    let rows = x.len() / width;
    TaskMember::new(RequestSlot(slot), rows, entry(fp32("x", &[rows as i64, width as i64], x)))
}

/// Creates the entry of a request of one tensor.
pub(crate) fn entry(tensor: Tensor) -> Option<Arc<RequestEntry>> {
    Some(Arc::new(RequestEntry::of([tensor].into())))
}

/// The same request in a later block.
pub(crate) fn later(member: &TaskMember) -> TaskMember {
    TaskMember { entry: None, ..member.clone() }
}

pub(crate) fn task(id: u32, block: u16, members: Vec<TaskMember>) -> Task {
    let lengths = members.iter().filter_map(|member| Some(member.entry.as_ref()?.extent.length));
    let (block, length) = (BlockId(block), lengths.max().unwrap_or(1));
    Task { id: TaskId(id), model: ModelId(0), block, lane: LaneId(0), length, members, not_before: None }
}

/// A device with one model on it, as model 0.
pub(crate) struct Stand {
    pub(crate) device: Box<dyn Device>,
    pub(crate) results: Receiver<TaskResult>,
    pub(crate) model: Arc<dyn LoadedModel>,
    /// Number of tasks: lanes are used round robin.
    count: AtomicUsize,
}

impl Stand {
    pub(crate) fn new(engine: &dyn Executor, source: &ModelSource) -> Stand {
        Stand::of_lanes(engine, source, 1)
    }

    pub(crate) fn of_lanes(engine: &dyn Executor, source: &ModelSource, lanes: usize) -> Stand {
        let model = engine.load(source).unwrap_or_else(|cause| panic!("{cause}"));
        Stand::of_model(engine, model, lanes)
    }

    pub(crate) fn of_model(engine: &dyn Executor, model: Arc<dyn LoadedModel>, lanes: usize) -> Stand {
        let (sender, results) = channel();
        let device = engine.open(lanes, Arc::new(move |result| drop(sender.send(result)))).unwrap();
        device.attach(ModelId(0), Arc::clone(&model));
        Stand { device, results, model, count: AtomicUsize::new(0) }
    }

    pub(crate) fn run(&self, block: u16, members: Vec<TaskMember>) -> Result<Vec<MemberProgress>, ExecError> {
        let lane = self.count.fetch_add(1, Ordering::Relaxed) % self.device.lanes();
        self.device.submit(Task { lane: LaneId(lane as u16), ..task(0, block, members) }).unwrap();
        self.result().outcome
    }

    pub(crate) fn result(&self) -> TaskResult {
        self.results.recv_timeout(PATIENCE).unwrap()
    }

    /// Runs a model of one block with a request of one tensor; returns the outputs.
    pub(crate) fn ask(&self, tensor: Tensor) -> Result<Vec<Tensor>, ExecError> {
        let rows = tensor.shape[0] as usize;
        let member = TaskMember::new(RequestSlot(0), rows, entry(tensor));
        Ok(self.run(0, vec![member])?.remove(0).outputs)
    }
}

#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f32]) {
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4;
    let equal = found.len() == expected.len() && found.iter().zip(expected).all(close);
    assert!(equal, "{found:?} is not {expected:?}");
}
