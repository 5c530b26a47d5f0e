//! Engine "cpu": ONNX on the processor with nothing to install, by rten.
//!
//! One copy of a model's weights, packed once for fast multiplication, serves all devices. rten computes in 32-bit
//! floats, 32-bit and 8-bit integers; `convert` keeps that from clients, and models that need more are refused with a
//! pointer to the other engine.
//!
//! Each device owns a pool of rten threads. A device of one lane runs its whole loop inside, on one of them: from there a batch
//! starts without waking a thread. Several lanes share the pool and call into it for each batch, which costs two thread switches
//! each: so a batch that is alone has all threads of the device, and two share them, and lanes that have nothing to do hold
//! none. Rejected: a pool for each lane, with its part of the threads, where a batch alone would run on that part.

mod convert;

use crate::isolated::{self, Kind};
use crate::lane::{DEFAULT_DEPTH, LaneOptions, Lanes};
use crate::model::{LoadedModel, Own, read_blocks};
use crate::plan::Plan;
use crate::rows::Batch;
use crate::runner::{Call, Ready, Runner};
use crate::values::Limits;
use crate::{Device, Engine, ExecError, LoadError, Loaded, ModelSource, Sink};
use convert::Scratch;
use ripieno_model::TensorSpec;
use ripieno_onnx::{Declared, split_gemm};
use rten::{LoadErrorKind, NodeId, RunOptions, ThreadPool};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const NAME: &str = "cpu";
/// rten orders the operators of a graph recursively, on threads whose stacks are 2 MiB; 6,000 in a row are too many for them.
const DEEPEST: usize = 2000;
/// rten multiplies one row by a matrix in another order of sums than several rows.
const LEAST_ROWS: usize = 2;
/// rten computes `Relu` and `Clip` by comparisons that NaN always fails. To have them right, as `Max` and `Min`, took 1.6 ns for an
/// element instead of 0.3, and 3.5; every model would pay for requests that hardly any client sends. So NaN is refused where it
/// comes in. What becomes NaN inside (infinity minus infinity) is still lost.
const LIMITS: Limits = Limits { narrow: true, lose_nan: &["Relu", "Clip"], deepest: Some(DEEPEST) };

/// How the engine uses the machine.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads that work on one batch, for each device.
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
    /// The engine.
    pub fn new(options: CpuOptions) -> CpuEngine {
        let options = CpuOptions { threads: options.threads.max(1) };
        CpuEngine { options, depth: DEFAULT_DEPTH, opened: AtomicUsize::new(0) }
    }

    /// The same engine, whose devices hold up to `depth` tasks each, the running one included.
    pub fn with_depth(mut self, depth: usize) -> CpuEngine {
        self.depth = depth;
        self
    }
}

impl Engine for CpuEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device_key(&self) -> String {
        format!("{NAME}/rten-0.27/{}-thread", self.options.threads)
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn Loaded>, LoadError> {
        let read = read_blocks(source, NAME, LIMITS)?;
        if let Some(isolation) = &source.isolation {
            let kind =
                Kind { onnxruntime: false, library: None, threads: self.options.threads, least_rows: LEAST_ROWS };
            return isolated::load(isolation, kind, source, read);
        }
        let blocks = read.blocks.iter().map(|(path, io)| Block::load(path, io)).collect::<Result<_, _>>()?;
        let own = RtenModel { blocks: Arc::new(blocks) };
        Ok(Arc::new(LoadedModel { plan: Arc::new(read.plan), own }))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (lanes, threads) = (lanes.max(1), self.options.threads);
        let pool = Arc::new(ThreadPool::with_num_threads(threads));
        let outer = Arc::clone(&pool);
        let options = LaneOptions {
            name: format!("{NAME}-{}", self.opened.fetch_add(1, Ordering::Relaxed)),
            depth: self.depth,
            prepare: Box::new(move |loaded, _| prepare(loaded, &pool)),
            enter: if lanes == 1 { Arc::new(move |body| outer.run(body)) } else { Arc::new(|body| body()) },
            aborts: (0..lanes).map(|_| Arc::default()).collect(),
            at_once: threads,
        };
        Lanes::open(options, sink)
    }
}

fn prepare(loaded: &dyn Loaded, pool: &Arc<ThreadPool>) -> Result<Ready, ExecError> {
    let model = LoadedModel::<RtenModel>::of(loaded, NAME)?;
    let blocks = Arc::clone(&model.own.blocks);
    let scratch = blocks.iter().map(|block| block.inputs.iter().map(|_| Scratch::default()).collect());
    let runner = RtenRunner {
        scratch: scratch.collect(),
        options: RunOptions::default().with_thread_pool(Some(Arc::clone(pool))),
        plan: Arc::clone(&model.plan),
        blocks,
    };
    Ok(Ready::new(Arc::clone(&model.plan), Box::new(runner)))
}

struct RtenModel {
    blocks: Arc<Vec<Block>>,
}

impl Own for RtenModel {}

/// One block in rten: the nodes of its inputs and outputs in the file's order.
struct Block {
    model: rten::Model,
    inputs: Vec<NodeId>,
    outputs: Vec<NodeId>,
}

impl Block {
    fn load(path: &Path, io: &Declared) -> Result<Block, LoadError> {
        check_datatypes(path, io)?;
        let refuse =
            |cause: String, fix: &str| LoadError(format!("{}: rten cannot load it: {cause}; {fix}", path.display()));
        let unreadable = |cause: std::io::Error| refuse(cause.to_string(), "make the file readable");
        let mut options = rten::ModelOptions::with_all_ops();
        options.prepack_weights(true);
        for location in &io.external {
            options.external_data(location, std::fs::read(path.with_file_name(location)).map_err(unreadable)?);
        }
        let model = options.load(split_gemm(std::fs::read(path).map_err(unreadable)?));
        let model = model.map_err(|cause| refuse(cause.to_string(), fix(&cause.kind())))?;
        let nodes = |specs: &[TensorSpec]| {
            let node = |spec: &TensorSpec| model.node_id(&spec.name);
            specs.iter().map(node).collect::<Result<Vec<_>, _>>()
        };
        let inputs = nodes(&io.inputs).map_err(|cause| refuse(cause.to_string(), OTHER_ENGINE))?;
        let outputs = nodes(&io.outputs).map_err(|cause| refuse(cause.to_string(), OTHER_ENGINE))?;
        Ok(Block { inputs, outputs, model })
    }
}

const OTHER_ENGINE: &str = "use --engine onnxruntime, or export it otherwise";

fn fix(kind: &LoadErrorKind) -> &'static str {
    match kind {
        LoadErrorKind::ExternalDataError => {
            "keep the weights in the .onnx file, or in a file beside it whose name ends in .data"
        }
        _ => OTHER_ENGINE,
    }
}

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
    plan: Arc<Plan>,
    blocks: Arc<Vec<Block>>,
    options: RunOptions,
    /// For each block and each of its inputs, room for converted elements.
    scratch: Vec<Vec<Scratch>>,
}

impl Runner for RtenRunner {
    fn least_rows(&self) -> usize {
        LEAST_ROWS
    }

    fn run(&mut self, call: &Call<'_>) -> Result<Vec<Batch>, ExecError> {
        let block = &self.blocks[call.block];
        let mut inputs = Vec::with_capacity(call.inputs.len());
        for ((input, &node), scratch) in call.inputs.iter().zip(&block.inputs).zip(&mut self.scratch[call.block]) {
            inputs.push((node, convert::to_rten(input, scratch, self.plan.unbatched)?.into()));
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
