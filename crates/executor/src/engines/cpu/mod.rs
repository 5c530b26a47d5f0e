//! Engine "cpu": runs ONNX on the CPU by rten, without further installation.
//!
//! All devices share one copy of a model's weights, packed once for fast multiplication. rten
//! computes in 32-bit floats and in 32-bit and 8-bit integers. `convert` hides this from clients.
//! Models that need other types are refused, and the error names the other engine.
//!
//! Each device has a pool of rten threads. A device with one lane runs its whole loop on a thread
//! of the pool, so a batch starts without waking a thread. Several lanes share the pool and call
//! into it for each batch, which costs two thread switches. A single batch uses all threads of the
//! device, two batches share them, and idle lanes occupy none. Rejected: a separate pool per lane,
//! in which a single batch would use only a part of the threads.

mod convert;

use crate::contract::model::{EngineData, EngineModel, read_blocks};
use crate::engines::isolated::{self, ProcessEngine};
use crate::probe::values::EngineLimits;
use crate::run::lane::{DEFAULT_DEPTH, LaneDevice, LaneOptions};
use crate::run::plan::ModelPlan;
use crate::run::rows::BatchTensor;
use crate::run::runner::{BlockCall, ReadyModel, Runner};
use crate::{Device, ExecError, Executor, LoadError, LoadedModel, ModelSource, Sink};
use convert::ConversionBuffer;
use ripieno_model::TensorSpec;
use ripieno_onnx::{Declared, OnnxFile, default_value, external_name, rewrite_for_rten};
use rten::{NodeId, RunOptions, ThreadPool, Value};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const NAME: &str = "cpu";
/// Largest depth of a graph. rten orders operators recursively on threads with 2 MiB stacks, which
/// overflow at a depth of 6,000.
const MAX_DEPTH: usize = 2000;
/// Smallest number of rows in a batch. rten sums in a different order for one row than for several.
const MIN_ROWS: usize = 2;
/// rten computes `Relu` and `Clip` by comparisons, which are always false for NaN. So NaN in inputs
/// is refused. NaN that arises inside (infinity minus infinity) is still lost. Correct versions by
/// `Max` and `Min` are much slower: 1.6 and 3.5 ns per element instead of 0.3. Every model would be
/// slower because of requests that hardly any client sends.
const LIMITS: EngineLimits = EngineLimits {
    narrow: true,
    lose_nan: &["Relu", "Clip"],
    deepest: Some(MAX_DEPTH),
    carries: Some(convert::carries),
};

/// Resource settings of the engine.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Number of threads per device. All of them work on one batch.
    pub threads: usize,
}

impl Default for CpuOptions {
    fn default() -> CpuOptions {
        CpuOptions { threads: 1 }
    }
}

/// Engine "cpu".
#[derive(Debug)]
pub struct CpuEngine {
    options: CpuOptions,
    depth: usize,
    opened: AtomicUsize,
}

impl CpuEngine {
    /// Creates the engine.
    pub fn new(options: CpuOptions) -> CpuEngine {
        let options = CpuOptions { threads: options.threads.max(1) };
        CpuEngine { options, depth: DEFAULT_DEPTH, opened: AtomicUsize::new(0) }
    }

    /// Sets the number of tasks that each lane of a device holds, including the running one.
    pub fn with_depth(mut self, depth: usize) -> CpuEngine {
        self.depth = depth;
        self
    }

    /// Returns whether this kind of engine has loaded a model.
    pub(crate) fn has_loaded(loaded: &dyn LoadedModel) -> bool {
        loaded.as_any().is::<EngineModel<RtenModel>>()
    }

    /// Returns the settings of a device with `lanes` lanes.
    pub(crate) fn lane_options(&self, lanes: usize) -> LaneOptions {
        let (lanes, threads) = (lanes.max(1), self.options.threads);
        let pool = Arc::new(ThreadPool::with_num_threads(threads));
        let outer = Arc::clone(&pool);
        LaneOptions {
            name: format!("{NAME}-{}", self.opened.fetch_add(1, Ordering::Relaxed)),
            depth: self.depth,
            prepare: Box::new(move |loaded, _| prepare(loaded, &pool)),
            place: 0,
            enter: if lanes == 1 { Arc::new(move |body| outer.run(body)) } else { Arc::new(|body| body()) },
            aborts: (0..lanes).map(|_| Arc::default()).collect(),
            max_concurrent: threads,
        }
    }
}

impl Executor for CpuEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device_key(&self) -> String {
        format!("{NAME}/rten-0.27/{}-thread", self.options.threads)
    }

    fn resources(&self) -> (usize, Vec<u32>) {
        (self.options.threads, Vec::new())
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        let read = read_blocks(source, NAME, LIMITS)?;
        if let Some(isolation) = &source.isolation {
            let kind = ProcessEngine {
                onnxruntime: false,
                library: None,
                threads: self.options.threads,
                least_rows: MIN_ROWS,
                gpus: Vec::new(),
                gpu_options: source.gpu,
                binds_on_cpu: false,
            };
            return isolated::load(isolation, kind, source, read);
        }
        let blocks = read.blocks.iter().map(|(path, io)| RtenBlock::load(path, io)).collect::<Result<_, _>>()?;
        let own = RtenModel { blocks: Arc::new(blocks) };
        Ok(Arc::new(EngineModel { plan: Arc::new(read.plan), data: own }))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        LaneDevice::open(self.lane_options(lanes), sink)
    }
}

fn prepare(loaded: &dyn LoadedModel, pool: &Arc<ThreadPool>) -> Result<ReadyModel, ExecError> {
    let model = EngineModel::<RtenModel>::of(loaded, NAME)?;
    let blocks = Arc::clone(&model.data.blocks);
    let scratch = blocks.iter().map(|block| block.inputs.iter().map(|_| ConversionBuffer::default()).collect());
    let runner = RtenRunner {
        scratch: scratch.collect(),
        options: RunOptions::default().with_thread_pool(Some(Arc::clone(pool))),
        plan: Arc::clone(&model.plan),
        blocks,
    };
    Ok(ReadyModel::new(Arc::clone(&model.plan), Box::new(runner)))
}

struct RtenModel {
    blocks: Arc<Vec<RtenBlock>>,
}

impl EngineData for RtenModel {}

/// One block in rten, with the node ids of its inputs and outputs in the file's order.
struct RtenBlock {
    model: rten::Model,
    inputs: Vec<NodeId>,
    /// Inputs with defaults: name, node and default.
    optional: Vec<(String, NodeId, Value)>,
    outputs: Vec<NodeId>,
}

impl RtenBlock {
    fn load(path: &Path, io: &Declared) -> Result<RtenBlock, LoadError> {
        check_datatypes(path, io)?;
        let refuse =
            |cause: String, fix: &str| LoadError(format!("{}: rten cannot load it: {cause}; {fix}", path.display()));
        let unreadable = |cause: std::io::Error| refuse(cause.to_string(), "make the file readable");
        let mut options = rten::ModelOptions::with_all_ops();
        options.prepack_weights(true);
        for (at, location) in io.external.iter().enumerate() {
            options
                .external_data(&external_name(at), std::fs::read(path.with_file_name(location)).map_err(unreadable)?);
        }
        let optional: Vec<&str> = io.optional.iter().map(|spec| &*spec.name).collect();
        let content = std::fs::read(path).map_err(unreadable)?;
        let model = options.load(rewrite_for_rten(content, &io.external, &optional));
        let model = model.map_err(|cause| refuse(cause.to_string(), OTHER_ENGINE))?;
        let nodes = |specs: &[TensorSpec]| {
            let node = |spec: &TensorSpec| model.node_id(&spec.name);
            specs.iter().map(node).collect::<Result<Vec<_>, _>>()
        };
        let inputs = nodes(&io.inputs).map_err(|cause| refuse(cause.to_string(), OTHER_ENGINE))?;
        let outputs = nodes(&io.outputs).map_err(|cause| refuse(cause.to_string(), OTHER_ENGINE))?;
        let optional = io.optional.iter().map(|spec| {
            let node = model.node_id(&spec.name).map_err(|cause| refuse(cause.to_string(), OTHER_ENGINE))?;
            let default = default(path, spec).map_err(|cause| refuse(cause, OTHER_ENGINE))?;
            Ok((spec.name.clone(), node, default))
        });
        let optional = optional.collect::<Result<_, LoadError>>()?;
        Ok(RtenBlock { inputs, optional, outputs, model })
    }
}

/// Returns the default of an input.
fn default(path: &Path, spec: &TensorSpec) -> Result<Value, String> {
    let file = OnnxFile::read(path).map_err(|cause| cause.0)?;
    let (shape, data) = default_value(&file, &spec.name).map_err(|cause| cause.0)?;
    convert::constant(spec.datatype, &shape, &data)
}

const OTHER_ENGINE: &str = "use --engine onnxruntime, or export it otherwise";

fn check_datatypes(path: &Path, io: &Declared) -> Result<(), LoadError> {
    let tensors = io.inputs.iter().map(|spec| ("input", spec)).chain(io.outputs.iter().map(|spec| ("output", spec)));
    for (kind, spec) in tensors {
        if !convert::carries(spec.datatype) {
            return Err(LoadError(format!(
                "{kind} '{}' of {} is {}, which engine 'cpu' cannot carry: use --engine onnxruntime",
                spec.name,
                path.display(),
                spec.datatype
            )));
        }
    }
    Ok(())
}

struct RtenRunner {
    plan: Arc<ModelPlan>,
    blocks: Arc<Vec<RtenBlock>>,
    options: RunOptions,
    /// Buffers for converted elements, for each input of each block.
    scratch: Vec<Vec<ConversionBuffer>>,
}

impl Runner for RtenRunner {
    fn min_rows(&self) -> usize {
        MIN_ROWS
    }

    fn release_memory(&mut self) {
        self.scratch.iter_mut().flatten().for_each(|buffer| *buffer = ConversionBuffer::default());
    }

    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError> {
        let block = &self.blocks[call.block];
        let mut inputs = Vec::with_capacity(call.inputs.len());
        for ((input, &node), scratch) in call.inputs.iter().zip(&block.inputs).zip(&mut self.scratch[call.block]) {
            inputs.push((node, convert::to_rten(input, scratch, self.plan.unbatched)?.into()));
        }
        let given = &call.inputs[block.inputs.len()..];
        let mut scratch: Vec<_> = given.iter().map(|_| ConversionBuffer::default()).collect();
        for (input, scratch) in given.iter().zip(&mut scratch) {
            let known = block.optional.iter().find(|(name, ..)| name == input.name);
            let &(_, node, _) = known.ok_or_else(|| ExecError(format!("it takes no input '{}'", input.name)))?;
            inputs.push((node, convert::to_rten(input, scratch, self.plan.unbatched)?.into()));
        }
        for (name, node, default) in &block.optional {
            if given.iter().all(|input| input.name != name) {
                inputs.push((*node, default.into()));
            }
        }
        let values = block.model.run(inputs, &block.outputs, Some(self.options.clone()));
        let values = values.map_err(|cause| ExecError(format!("rten: {cause}")))?;
        let outputs = values.into_iter().zip(&self.plan.blocks[call.block].outputs).map(|(value, &output)| {
            let output = &self.plan.values[output];
            let batch = convert::from_rten(value, output.spec.datatype, self.plan.unbatched);
            batch.map_err(|cause| ExecError(format!("output '{}' of model '{}': {cause}", output.name, self.plan.name)))
        });
        outputs.collect()
    }
}
