//! Engine "onnxruntime": runs ONNX by Microsoft's library, which the crate ort loads at run time.
//!
//! A session runs one batch at a time, so a model needs a session per concurrent batch. A device
//! runs as many batches concurrently as it has lanes, but at most as many as it has threads. A
//! batch acquires idle sessions and releases them. Creating a session is slow, because the library
//! optimises the graph and reads the weights again. So `load` creates sessions for all open
//! devices. If a device is opened later, the thread that attaches a model creates the sessions, and
//! no other model waits. The disadvantage is a copy of the weights per concurrent batch.
//!
//! A session has as many threads as its device, so a single batch uses all of them. If lanes run
//! concurrently, the operating system shares the cores among them.
//!
//! With CUDA a session belongs to one GPU, and devices on different GPUs share no sessions. Every
//! lane has a session, and thereby a stream, of its own. Blocks with convolutions have one for each
//! batch size. Within a process only one session is created or runs at a time: while one of them
//! records work for the GPU, waiting for the GPU in another is an error.
//!
//! On the CPU gathered batches are read in place; on GPUs they are copied into bound tensors, or
//! were received into them.
//! Outputs stay in the library's memory until the last answer that contains them is sent.

mod bound;
mod cuda;
mod inputs;
mod library;
mod places;
mod pool;
mod shrink;
mod sized;
mod tensors;

pub use cuda::GpuOptions;
pub(crate) use cuda::find_gpus;

use crate::contract::flow::FlowValue;
use crate::contract::input_memory::InputMemory;
use crate::contract::model::{EngineData, EngineModel, read_blocks};
use crate::engines::isolated::{self, ProcessEngine};
use crate::probe::values::EngineLimits;
use crate::run::lane::{DEFAULT_DEPTH, LaneDevice, LaneOptions};
use crate::run::plan::ModelPlan;
use crate::run::rows::BatchTensor;
use crate::run::runner::{BlockCall, ReadyModel, Runner};
use crate::{Device, ExecError, Executor, LoadError, LoadedModel, ModelSource, Sink};
use bound::BoundTensors;
use cuda::SearchPaths;
use inputs::{InputTensors, ReceivedInputs};
use library::Library;
use ort::logging::LogLevel;
use ort::session::{Session, SessionInputValue, SessionOutputs, builder::SessionBuilder};
use parking_lot::{Mutex, MutexGuard};
use places::{ConcurrencyClaim, EnginePlaces};
use pool::SessionPool;
use ripieno_model::DataType;
use shrink::SessionArena;
use sized::SizedSessions;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tensors::InputAddresses;

const NAME: &str = "onnxruntime";

/// Held while a session on a GPU is created or runs.
static GPU_TURN: Mutex<()> = Mutex::new(());

/// Resource settings of the engine.
#[derive(Clone, Debug)]
pub struct OnnxRuntimeOptions {
    /// File of the library. If `None`, the environment variable `ORT_DYLIB_PATH` is used, then the
    /// system's library, then the Python package onnxruntime.
    pub library: Option<PathBuf>,
    /// Number of threads per device. All of them work on one batch.
    pub threads: usize,
    /// GPUs to run models on, by their numbers in CUDA. Empty for the CPU.
    pub gpus: Vec<u32>,
    /// Whether tensors are bound to buffers on the CPU, too, where it only costs a copy. On GPUs
    /// they always are.
    pub binds_on_cpu: bool,
}

impl Default for OnnxRuntimeOptions {
    fn default() -> OnnxRuntimeOptions {
        OnnxRuntimeOptions { library: None, threads: 1, gpus: Vec::new(), binds_on_cpu: false }
    }
}

/// Engine "onnxruntime".
pub struct OnnxRuntimeEngine {
    library: &'static Library,
    /// Requested path, for engine processes, which load the library themselves.
    path: Option<PathBuf>,
    threads: usize,
    depth: usize,
    opened: AtomicUsize,
    places: Arc<EnginePlaces>,
    /// Names of the GPUs and version of their driver; `None` for the CPU.
    gpu_key: Option<String>,
    /// See [`OnnxRuntimeOptions::binds_on_cpu`].
    binds_on_cpu: bool,
}

impl OnnxRuntimeEngine {
    /// Creates the engine after locating and loading the library, which happens once per process.
    pub fn new(options: OnnxRuntimeOptions) -> Result<OnnxRuntimeEngine, LoadError> {
        let (library, path, gpu_key) = match options.gpus.is_empty() {
            true => (library::load(options.library.as_deref())?, options.library, None),
            false => {
                let explicit = options.library.or_else(library::named_by_variable);
                let parts = SearchPaths::of_system().find(explicit.as_deref(), &options.gpus)?;
                parts.preload()?;
                (library::load(Some(&parts.library))?, Some(parts.library), Some(parts.key))
            }
        };
        Ok(OnnxRuntimeEngine {
            library,
            path,
            threads: options.threads.max(1),
            depth: DEFAULT_DEPTH,
            opened: AtomicUsize::new(0),
            places: EnginePlaces::new(&options.gpus),
            binds_on_cpu: options.binds_on_cpu,
            gpu_key,
        })
    }

    /// Sets the number of tasks that each lane of a device holds, including the running one.
    pub fn with_depth(mut self, depth: usize) -> OnnxRuntimeEngine {
        self.depth = depth;
        self
    }

    /// Returns the settings of a device with `lanes` lanes.
    pub(crate) fn lane_options(&self, lanes: usize) -> LaneOptions {
        let lanes = lanes.max(1);
        // Lanes on a GPU compute there, and not in threads of the CPU.
        let max_concurrent = if self.gpu_key.is_some() { lanes } else { self.threads };
        let claim = ConcurrencyClaim::new(&self.places, lanes.min(max_concurrent));
        LaneOptions {
            name: format!("{NAME}-{}", self.opened.fetch_add(1, Ordering::Relaxed)),
            depth: self.depth,
            place: claim.place(),
            prepare: Box::new(move |loaded, _lane| prepare(loaded, &claim)),
            enter: Arc::new(|body| body()),
            aborts: (0..lanes).map(|_| Arc::default()).collect(),
            max_concurrent,
        }
    }
}

impl Executor for OnnxRuntimeEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device_key(&self) -> String {
        let version = &self.library.version;
        match &self.gpu_key {
            Some(gpus) => format!("{NAME}/{version}/cuda/{gpus}"),
            None => format!("{NAME}/{version}/{}-thread", self.threads),
        }
    }

    fn resources(&self) -> (usize, Vec<u32>) {
        (self.threads, self.places.ordinals())
    }

    fn isolates(&self) -> bool {
        self.gpu_key.is_some()
    }

    fn pads_batches(&self) -> bool {
        self.gpu_key.is_some()
    }

    /// Returns the same library on the CPU.
    fn reference(&self) -> Option<Arc<dyn Executor>> {
        self.gpu_key.as_ref()?;
        Some(Arc::new(OnnxRuntimeEngine {
            path: self.path.clone(),
            opened: AtomicUsize::new(0),
            places: EnginePlaces::new(&[]),
            gpu_key: None,
            binds_on_cpu: false,
            ..*self
        }))
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        let read = read_blocks(source, NAME, EngineLimits::default())?;
        if let Some(isolation) = &source.isolation {
            let kind = ProcessEngine {
                onnxruntime: true,
                library: self.path.clone(),
                threads: self.threads,
                least_rows: 1,
                gpus: self.places.ordinals(),
                gpu_options: source.gpu,
                binds_on_cpu: self.binds_on_cpu,
            };
            return isolated::load(isolation, kind, source, read);
        }
        let binds = self.gpu_key.is_some() || self.binds_on_cpu;
        let files = read
            .blocks
            .iter()
            .map(|(path, declared)| BlockFile { path: path.to_path_buf(), by_size: binds && declared.convolutions });
        let pools = SessionPools {
            library: self.library,
            threads: self.threads,
            binds,
            gpu_options: source.gpu,
            files: files.collect(),
            inputs: self.places.all().map(|_| read.blocks.iter().map(|_| OnceLock::new()).collect()).collect(),
            unbatched: read.plan.unbatched,
            pools: self.places.all().map(SessionPool::new).collect(),
        };
        // One session at least shows whether the library runs the model.
        pools.grow(0)?;
        for at in 1..pools.pools.len() {
            if pools.pools[at].place.concurrent() > 0 {
                pools.grow(at)?;
            }
        }
        Ok(Arc::new(EngineModel { plan: Arc::new(read.plan), data: Arc::new(pools) }))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        match self.gpu_key {
            Some(_) => LaneDevice::open_on_gpu(self.lane_options(lanes), sink),
            None => LaneDevice::open(self.lane_options(lanes), sink),
        }
    }
}

/// Returns the runner of a model for a lane of a device, and creates its sessions.
fn prepare(loaded: &dyn LoadedModel, claim: &ConcurrencyClaim) -> Result<ReadyModel, ExecError> {
    let model = EngineModel::<Arc<SessionPools>>::of(loaded, NAME)?;
    let place = claim.place();
    model.data.grow(place).map_err(|cause| ExecError(cause.to_string()))?;
    let runner = OrtRunner { plan: Arc::clone(&model.plan), pools: Arc::clone(&model.data), place };
    Ok(ReadyModel::new(Arc::clone(&model.plan), Box::new(runner)))
}

/// Creates a model's sessions.
struct SessionPools {
    library: &'static Library,
    threads: usize,
    binds: bool,
    gpu_options: GpuOptions,
    files: Vec<BlockFile>,
    unbatched: bool,
    /// Input tensors by place and block, if tensors are bound, once there is a session.
    inputs: Vec<Vec<OnceLock<Arc<InputTensors>>>>,
    /// One pool for each place.
    pools: Vec<SessionPool>,
}

/// The file of a block.
struct BlockFile {
    path: PathBuf,
    /// Whether each batch size has a session of its own.
    by_size: bool,
}

impl EngineData for Arc<SessionPools> {}

/// The sessions of each block.
type BlockSessions = Vec<SizedSessions<BlockSession>>;

struct BlockSession {
    session: Session,
    /// The binding, if tensors are bound.
    bound: Option<BoundTensors>,
    arena: SessionArena,
}

impl SessionPools {
    /// Creates missing sessions for the current number of concurrent batches at a place. Running
    /// batches do not wait.
    fn grow(&self, place: usize) -> Result<(), LoadError> {
        let pool = &self.pools[place];
        while pool.reserve() {
            let made = self.make(place).inspect_err(|_| pool.unreserve())?;
            pool.release(made);
        }
        Ok(())
    }

    fn make(&self, place: usize) -> Result<BlockSessions, LoadError> {
        let _turn = turn(self.pools[place].place.ordinal());
        let first = |block| Ok(SizedSessions::new(self.make_one(block, place)?, self.files[block].by_size));
        (0..self.files.len()).map(first).collect()
    }

    fn make_one(&self, block: usize, place: usize) -> Result<BlockSession, LoadError> {
        let (path, gpu) = (&self.files[block].path, self.pools[place].place.ordinal());
        self.session(block, place).map_err(|cause| {
            let (file, fix) = (path.display(), fix(gpu, &cause));
            LoadError(format!("{file}: onnxruntime cannot load it: {cause}; {fix}"))
        })
    }

    fn session(&self, block: usize, place: usize) -> Result<BlockSession, ort::Error> {
        let gpu = self.pools[place].place.ordinal();
        let builder = Session::builder(&self.library.environment)?;
        let mut builder = match gpu {
            Some(ordinal) => cuda::configure(configure(builder, 1)?, ordinal, self.gpu_options)?,
            None => configure(builder, self.threads)?,
        };
        let session = builder.commit_from_file(&self.files[block].path)?;
        let bound = self.binds.then(|| self.bound(&session, block, place)).transpose()?;
        if gpu.is_none() {
            shrink::begin_arena(&session)?;
        }
        Ok(BlockSession { session, bound, arena: SessionArena::default() })
    }

    /// Returns the binding of a session.
    fn bound(&self, session: &Session, block: usize, place: usize) -> Result<BoundTensors, ort::Error> {
        let (gpu, inputs) = (self.pools[place].place.ordinal(), &self.inputs[place][block]);
        if inputs.get().is_none() {
            // Another thread may have been first.
            let _ = inputs.set(InputTensors::new(bound::host_memory(session, gpu)?, gpu));
        }
        BoundTensors::new(session, gpu, inputs.wait())
    }
}

/// Returns the memory into which the batches of a model's first block can be received, at its first
/// place. `None` if it gains nothing, or if another engine loaded the model.
pub(crate) fn input_memory(loaded: &dyn LoadedModel) -> Option<Arc<dyn InputMemory>> {
    let model = EngineModel::<Arc<SessionPools>>::of(loaded, NAME).ok()?;
    let SessionPools { inputs, unbatched, .. } = &*model.data;
    let tensors = Arc::clone(inputs[0][0].get()?);
    Some(Arc::new(ReceivedInputs { tensors, unbatched: *unbatched }))
}

/// Waits until no other session of this process is created or runs on a GPU.
fn turn(gpu: Option<u32>) -> Option<MutexGuard<'static, ()>> {
    gpu.map(|_| GPU_TURN.lock())
}

/// Returns what to do about a session that cannot be created.
fn fix(gpu: Option<u32>, cause: &ort::Error) -> String {
    match gpu {
        Some(_) if cause.to_string().contains("fallback to CPU EP") => {
            "the GPU cannot run all of its operators: set allow_cpu_nodes = true in model.toml".to_owned()
        }
        Some(gpu) => format!("if it runs with --device cpu, check cuda:{gpu} and its memory with nvidia-smi"),
        None => "check the file with onnx.checker".to_owned(),
    }
}

/// Name of a fused operator that is disabled. It computes a sum and a layer norm, and takes 1.4 to
/// 2 times as long as the separate operators (docs/guide/slicing.md). Blocks would use it more
/// often than the whole model, because more of their shapes are known.
const SLOWER: &str = "SkipLayerNormFusion";

/// Configures a session. Its idle threads sleep, because other devices and the server need the
/// cores. The library logs nothing, because all its errors are returned.
fn configure(builder: SessionBuilder, threads: usize) -> Result<SessionBuilder, ort::Error> {
    let builder = builder.with_intra_threads(threads)?.with_inter_threads(1)?.with_intra_op_spinning(false)?;
    let builder = builder.with_disabled_optimizers(SLOWER)?;
    Ok(builder.with_log_level(LogLevel::Fatal)?)
}

struct OrtRunner {
    plan: Arc<ModelPlan>,
    pools: Arc<SessionPools>,
    /// Index of the lane's pool.
    place: usize,
}

impl Runner for OrtRunner {
    fn release_memory(&mut self) {
        let pool = &self.pools.pools[self.place];
        if pool.place.ordinal().is_some() {
            return;
        }
        // Sessions that run are left to the lane that runs them.
        let mut released = Vec::new();
        while let Some(mut sessions) = pool.take_idle() {
            for (block, sized) in sessions.iter_mut().enumerate() {
                sized.each().for_each(|session| session.arena.shrink(&mut session.session, &self.plan, block));
            }
            released.push(sessions);
        }
        // The last used sessions stay on top, so that others are not used without need.
        released.into_iter().rev().for_each(|sessions| pool.release(sessions));
    }

    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError> {
        let pool = &self.pools.pools[self.place];
        let gpu = pool.place.ordinal();
        let mut lent = pool.acquire();
        let _turn = turn(gpu);
        let made = lent.sessions[call.block].for_rows(call.rows, || self.pools.make_one(call.block, self.place));
        let BlockSession { session, bound, arena } = made.map_err(|cause| ExecError(cause.0))?;
        let _growth = gpu.is_none().then(|| arena.watch(call.inputs));
        match bound {
            Some(bound) => {
                let outputs = self.outputs(call).map(|output| (&*output.name, output.spec.datatype));
                let outputs: Vec<(&str, DataType)> = outputs.collect();
                let run = bound.run(session, call.inputs, self.plan.unbatched, &outputs);
                let (values, addresses) = run.map_err(ExecError)?;
                self.collect(call, values, &addresses)
            }
            None => {
                let mut inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = Vec::with_capacity(call.inputs.len());
                for input in call.inputs {
                    let value = tensors::to_ort(input, self.plan.unbatched);
                    let value = value.map_err(|cause| ExecError(format!("input '{}': {cause}", input.name)))?;
                    inputs.push((Cow::Borrowed(input.name), value));
                }
                let values = session.run(inputs).map_err(|cause| ExecError(format!("onnxruntime: {cause}")))?;
                self.collect(call, values, &InputAddresses::of(call.inputs))
            }
        }
    }
}

impl OrtRunner {
    /// Returns the outputs of the block that runs.
    fn outputs(&self, call: &BlockCall<'_>) -> impl Iterator<Item = &FlowValue> {
        self.plan.blocks[call.block].outputs.iter().map(|&output| &self.plan.values[output])
    }

    fn collect(
        &self,
        call: &BlockCall<'_>,
        mut values: SessionOutputs<'_>,
        inputs: &InputAddresses,
    ) -> Result<Vec<BatchTensor>, ExecError> {
        let outputs = self.outputs(call).map(|output| {
            let refuse =
                |cause: String| ExecError(format!("output '{}' of model '{}': {cause}", output.name, self.plan.name));
            let value = values.remove(&*output.name).ok_or_else(|| refuse("the session did not give it".to_owned()))?;
            tensors::from_ort(value, output.spec.datatype, self.plan.unbatched, inputs).map_err(refuse)
        });
        outputs.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockSource;
    use ripieno_base::ModelId;

    #[test]
    fn there_are_sessions_for_all_concurrent_batches() {
        let engine = OnnxRuntimeEngine::new(OnnxRuntimeOptions { threads: 2, ..Default::default() }).unwrap();
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/models/way_first.onnx");
        let block = BlockSource { path: Some(path), ..BlockSource::new("way") };
        let loaded = engine.load(&ModelSource::new("way", vec![block], 4)).unwrap();
        let pool = &EngineModel::<Arc<SessionPools>>::of(&*loaded, NAME).unwrap().data.pools[0];
        assert_eq!(pool.made(), 1);
        let open = |lanes: usize| {
            let device = engine.open(lanes, Arc::new(|_| {})).unwrap();
            device.attach(ModelId(0), Arc::clone(&loaded));
            device
        };
        let (wide, narrow) = (open(3), open(1));
        assert_eq!(pool.made(), 3, "two concurrently on the device of three lanes and two threads, one on the other");
        drop(wide);
        let (first, second) = (pool.acquire(), pool.acquire());
        drop((first, second));
        assert_eq!((pool.made(), pool.idle()), (1, 1));
        drop(narrow);
    }
}
