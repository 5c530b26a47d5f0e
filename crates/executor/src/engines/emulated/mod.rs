//! Engine "emulated": takes the time of a profile and computes nothing.
//!
//! Demonstrations, tests and whole clusters can run without an accelerator, with the timing that
//! the scheduler plans with. A batch ends ℓ(b) after its earliest possible start, which is not
//! before the end of the previous batch. So late wake-ups do not accumulate, and a saturated device
//! has exactly the throughput of its profile. Lanes share the device (`sharing`).
//!
//! An output equals the input of the same name. Without one, it equals the first input of the same
//! type and shape, and otherwise zeros. So a client can recognise its own answer.

mod cells;
mod sharing;

use crate::contract::model::{EngineData, EngineModel};
use crate::run::abort::Abort;
use crate::run::lane::{DEFAULT_DEPTH, LaneDevice, LaneOptions};
use crate::run::plan::{BlockIo, ModelPlan, as_one_row};
use crate::run::rows::{BatchTensor, EngineInput};
use crate::run::runner::{BlockCall, ReadyModel, Runner};
use crate::{BlockSource, Device, ExecError, Executor, LoadError, LoadedModel, ModelSource, Sink};
use bytes::Bytes;
use ripieno_model::{Block, DataType, TensorSpec};
use sharing::Sharing;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const NAME: &str = "emulated";

/// Settings of the emulation.
#[derive(Clone, Debug, Default)]
pub struct EmulatedOptions {
    /// Name of the device, which is part of [`Executor::device_key`]. May be empty.
    pub name: String,
}

/// Engine "emulated".
#[derive(Debug)]
pub struct EmulatedEngine {
    options: EmulatedOptions,
    depth: usize,
    opened: AtomicUsize,
}

impl EmulatedEngine {
    /// Creates the engine.
    pub fn new(options: EmulatedOptions) -> EmulatedEngine {
        EmulatedEngine { options, depth: DEFAULT_DEPTH, opened: AtomicUsize::new(0) }
    }

    /// Sets the number of tasks that each lane of a device holds, including the running one.
    pub fn with_depth(mut self, depth: usize) -> EmulatedEngine {
        self.depth = depth;
        self
    }
}

impl Executor for EmulatedEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device_key(&self) -> String {
        if self.options.name.is_empty() { NAME.to_owned() } else { format!("{NAME}/{}", self.options.name) }
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        let ios = block_ios(source)?;
        let plan = match source.walk.is_unfolded() {
            true => ModelPlan::link(&cells::unlinked(source), &ios)?,
            false => ModelPlan::link(&unconditional(source), &ios)?,
        };
        let costs = source.blocks.iter().map(|block| cost(source, block)).collect::<Result<_, _>>()?;
        Ok(Arc::new(EngineModel { plan: Arc::new(plan), data: EmulatedCosts(costs) }))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let aborts: Vec<Arc<Abort>> = (0..lanes.max(1)).map(|_| Arc::default()).collect();
        let sharing = Arc::new(Sharing::new(aborts.clone()));
        let options = LaneOptions {
            name: format!("{NAME}-{}", self.opened.fetch_add(1, Ordering::Relaxed)),
            depth: self.depth,
            prepare: Box::new(move |loaded, lane| {
                let model = EngineModel::<EmulatedCosts>::of(loaded, NAME)?;
                let (plan, costs) = (Arc::clone(&model.plan), model.data.0.clone());
                let runner = EmulatedRunner { plan: Arc::clone(&plan), costs, sharing: Arc::clone(&sharing), lane };
                Ok(ReadyModel::new(plan, Box::new(runner)))
            }),
            place: 0,
            enter: Arc::new(|body| body()),
            max_concurrent: aborts.len(),
            aborts,
        };
        LaneDevice::open(options, sink)
    }
}

/// Returns the model without its conditions, because there are no computed values to compare.
fn unconditional(source: &ModelSource) -> ModelSource {
    let mut source = ModelSource { condition: None, ..source.clone() };
    for block in &mut source.blocks {
        (block.exit, block.skip) = (None, None);
        block.exit_outputs.clear();
        block.hidden.clear();
    }
    source
}

/// Profile of each block.
struct EmulatedCosts(Vec<Block>);

impl EngineData for EmulatedCosts {}

fn cost(source: &ModelSource, block: &BlockSource) -> Result<Block, LoadError> {
    let (model, name) = (&source.name, &block.name);
    let profile = block.profile.clone().ok_or_else(|| {
        LoadError(format!(
            "model '{model}': block '{name}' has no latency profile to emulate: give latency_ms, or alpha_ms and \
             beta_ms, in its model.toml"
        ))
    })?;
    if profile.max_batch() < source.max_batch {
        return Err(LoadError(format!(
            "model '{model}': the latency profile of block '{name}' ends at a batch of {}, before max_batch = {}: give \
             a longer latency_ms or a smaller max_batch in its model.toml",
            profile.max_batch(),
            source.max_batch
        )));
    }
    Ok(Block { lengths: block.lengths.clone(), ..Block::new(name, profile) })
}

/// Returns the inputs and outputs of each block. The last block outputs the model's outputs, and
/// the others output their inputs.
fn block_ios(source: &ModelSource) -> Result<Vec<BlockIo>, LoadError> {
    let declared = |key: &str, specs: &[TensorSpec], name: &str| match specs {
        [] => Ok(vec![TensorSpec { name: name.to_owned(), datatype: DataType::Fp32, shape: vec![-1, 1] }]),
        specs if source.unbatched => Ok(specs.iter().map(as_one_row).collect()),
        specs => specs.iter().map(|spec| check_spec(source, key, spec)).collect::<Result<Vec<_>, _>>(),
    };
    let inputs = declared("inputs", &source.inputs, "input")?;
    let outputs = declared("outputs", &source.outputs, "output")?;
    if source.walk.is_unfolded() {
        return cells::ios(source, &inputs, &outputs);
    }
    let last = source.blocks.len().saturating_sub(1);
    let io = |(at, block): (usize, &BlockSource)| BlockIo {
        place: format!("block '{}'", block.name),
        inputs: inputs.clone(),
        optional: Vec::new(),
        outputs: if at == last { outputs.clone() } else { inputs.clone() },
        vocabulary: Vec::new(),
    };
    Ok(source.blocks.iter().enumerate().map(io).collect())
}

fn check_spec(source: &ModelSource, key: &str, spec: &TensorSpec) -> Result<TensorSpec, LoadError> {
    let (model, name) = (&source.name, &spec.name);
    if spec.shape.first() == Some(&-1) && spec.shape.iter().all(|&dim| dim >= -1) {
        return Ok(spec.clone());
    }
    let shape = &spec.shape;
    Err(LoadError(format!(
        "model '{model}': {key} in its model.toml declares '{name}' with shape {shape:?}: the first dimension must be -1, \
         the batch"
    )))
}

struct EmulatedRunner {
    plan: Arc<ModelPlan>,
    costs: Vec<Block>,
    /// State that the models and lanes of one device share.
    sharing: Arc<Sharing>,
    lane: usize,
}

impl Runner for EmulatedRunner {
    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError> {
        let cost = &self.costs[call.block];
        if call.rows > cost.max_batch() {
            let (rows, longest) = (call.rows, cost.max_batch());
            return Err(ExecError(format!("a batch of {rows} is beyond the latency profile, which ends at {longest}")));
        }
        let latency = Duration::from_nanos(cost.cost(call.rows, call.length).0.unsigned_abs());
        let outputs = self.plan.blocks[call.block].outputs.iter().map(|&output| {
            let spec = &self.plan.values[output].spec;
            answer(&self.plan, call, spec).map_err(|cause| ExecError(format!("output '{}': {cause}", spec.name)))
        });
        let outputs = outputs.collect();
        self.sharing.run(self.lane, call.ready, latency, cost.share(call.rows, call.length))?;
        outputs
    }
}

fn answer(plan: &ModelPlan, call: &BlockCall<'_>, output: &TensorSpec) -> Result<BatchTensor, String> {
    let of_block = &plan.blocks[call.block].inputs;
    let declared = |input: &EngineInput<'_>| {
        let mut specs = of_block.iter().map(|&value| &plan.values[value].spec);
        specs.find(|spec| spec.name == input.name)
    };
    let alike = |input: &&EngineInput<'_>| {
        declared(input).is_some_and(|spec| spec.datatype == output.datatype && spec.shape == output.shape)
    };
    let same_name = call.inputs.iter().find(|input| input.name == output.name && input.datatype == output.datatype);
    match same_name.or_else(|| call.inputs.iter().find(alike)) {
        Some(input) => {
            let shape = [call.rows as i64].into_iter().chain(input.row_shape.iter().copied()).collect();
            BatchTensor::new(input.datatype, shape, Bytes::copy_from_slice(input.data))
        }
        None => zeros(call.rows, output),
    }
}

fn zeros(rows: usize, output: &TensorSpec) -> Result<BatchTensor, String> {
    let row = output.shape[1..].iter().map(|&dim| if dim == -1 { 1 } else { dim });
    let shape: Vec<i64> = [rows as i64].into_iter().chain(row).collect();
    // An empty string is encoded as its length, four zero bytes.
    let size = output.datatype.size().unwrap_or(4);
    let bytes = shape.iter().try_fold(size, |product, &dim| product.checked_mul(dim as usize));
    BatchTensor::new(output.datatype, shape, Bytes::from(vec![0; bytes.ok_or("its declared shape is too large")?]))
}
