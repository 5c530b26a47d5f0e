//! Models written in Python: each process is an interpreter that runs `ripieno.worker`.
//!
//! The worker speaks the protocol of all engine processes. It also declares the functions of its
//! file, which are the blocks of the model, with their inputs and outputs. No other file says that.
//! So the plan of a model is linked after its first process has started. A process that declares
//! something else later has read another file, and is refused.

use super::declaration::MAX_BLOCKS;
use super::protocol::{Declaration, DeclaredTensor, LoadBlock, LoadPython, LoadRequest, PYTHON_PROTOCOL, number};
use super::supervisor::ProcessPool;
use super::warm_up::ProcessWarmUp;
use super::{Isolated, absolute_path, steps};
use crate::contract::model::EngineModel;
use crate::run::lane::{DEFAULT_DEPTH, LaneDevice, LaneOptions};
use crate::run::plan::{BlockIo, ModelPlan, as_one_row};
use crate::{
    BlockSource, Device, ExecError, Executor, InputLength, Isolation, LengthDims, LoadError, LoadedModel, ModelSource,
    OutputLength, Sink,
};
use parking_lot::Mutex;
use ripieno_model::{DataType, TensorSpec, Walk};
use std::path::Path;
use std::sync::{Arc, Weak};

const NAME: &str = "python";

/// Engine "python": loads models whose blocks are Python functions. Devices of all other engines
/// run them, since their processes compute.
pub struct PythonEngine {
    device_key: String,
    threads: usize,
    gpus: Vec<u32>,
    /// Processes of models that were loaded.
    loaded: Mutex<Vec<LoadedProcesses>>,
}

/// Processes of a loaded model. A load for other batch sizes uses them, too, because importing a
/// framework may take seconds.
struct LoadedProcesses {
    request: LoadRequest,
    isolation: Isolation,
    batch_sizes: Vec<usize>,
    places: Vec<Weak<ProcessPool>>,
}

impl PythonEngine {
    /// Creates the engine for models that devices of `engine` are to run.
    pub fn beside(engine: &dyn Executor) -> PythonEngine {
        let (threads, gpus) = engine.resources();
        let device_key = format!("{NAME}/{}", engine.device_key());
        PythonEngine { device_key, threads, gpus, loaded: Mutex::default() }
    }
}

impl Executor for PythonEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device_key(&self) -> String {
        self.device_key.clone()
    }

    fn resources(&self) -> (usize, Vec<u32>) {
        (self.threads, self.gpus.clone())
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        let named = |cause: String| LoadError(format!("model '{}': {cause}", source.name));
        let isolation = source.isolation.as_ref().ok_or_else(|| named("no interpreter is named".to_owned()))?;
        let request = self.request(source)?;
        let places = match self.known(&request, isolation, &source.batch_sizes) {
            Some(places) => places,
            None => self.start(source, isolation, request)?,
        };
        let declared = places[0].declared().ok_or_else(|| named("its process declared nothing".to_owned()))?;
        let adopted = adopt(source, declared).map_err(named)?;
        let plan = link(&adopted, declared)?;
        let functions = functions(&adopted, declared);
        let data = Isolated { places, least_rows: 1, functions, adopted: Some(Arc::new(adopted)) };
        Ok(Arc::new(EngineModel { plan: Arc::new(plan), data }))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let lanes = lanes.max(1);
        let options = LaneOptions {
            name: NAME.to_owned(),
            depth: DEFAULT_DEPTH,
            prepare: Box::new(|_, _| Err(ExecError("only models in Python run on a device of Python".to_owned()))),
            place: 0,
            enter: Arc::new(|body| body()),
            aborts: (0..lanes).map(|_| Arc::default()).collect(),
            max_concurrent: lanes,
        };
        LaneDevice::open(options, sink)
    }
}

impl PythonEngine {
    /// Returns running processes that have loaded the same file.
    fn known(
        &self,
        request: &LoadRequest,
        isolation: &Isolation,
        batch_sizes: &[usize],
    ) -> Option<Vec<Arc<ProcessPool>>> {
        let loaded = self.loaded.lock();
        let mut same = loaded.iter().filter(|known| {
            known.request == *request && known.isolation == *isolation && known.batch_sizes == batch_sizes
        });
        same.find_map(|known| known.places.iter().map(Weak::upgrade).collect())
    }

    fn start(
        &self,
        source: &ModelSource,
        isolation: &Isolation,
        request: LoadRequest,
    ) -> Result<Vec<Arc<ProcessPool>>, LoadError> {
        let warm_up = Arc::new(ProcessWarmUp::new(MAX_BLOCKS, &source.batch_sizes));
        let pool = |gpu: Option<u32>| {
            let gpu = gpu.map(|ordinal| super::gpu(ordinal, source.gpu));
            let load = LoadRequest { gpu, ..request.clone() };
            ProcessPool::new(source.name.clone(), isolation.clone(), load, Arc::clone(&warm_up))
        };
        let places: Vec<Arc<ProcessPool>> = match &self.gpus[..] {
            [] => vec![pool(None)],
            gpus => gpus.iter().map(|&ordinal| pool(Some(ordinal))).collect(),
        };
        places[0].provide(1)?;
        let (isolation, batch_sizes) = (isolation.clone(), source.batch_sizes.clone());
        let known =
            LoadedProcesses { request, isolation, batch_sizes, places: places.iter().map(Arc::downgrade).collect() };
        self.loaded.lock().push(known);
        Ok(places)
    }

    fn request(&self, source: &ModelSource) -> Result<LoadRequest, LoadError> {
        // All blocks are functions of one file.
        let path = source.blocks.first().and_then(|block| block.path.as_deref()).unwrap_or(Path::new(""));
        let file = LoadBlock { path: absolute_path(path)?, ..LoadBlock::default() };
        let declared = |specs: &[TensorSpec]| specs.iter().map(of_spec).collect();
        let python = LoadPython {
            protocol: PYTHON_PROTOCOL,
            inputs: declared(&source.inputs),
            outputs: declared(&source.outputs),
        };
        Ok(LoadRequest {
            threads: self.threads as u64,
            unbatched: source.unbatched && !source.walk.is_unfolded(),
            blocks: vec![file],
            memory_limit: source.isolation.as_ref().and_then(|isolation| isolation.memory_limit),
            python: Some(python),
            ..LoadRequest::default()
        })
    }
}

fn of_spec(spec: &TensorSpec) -> DeclaredTensor {
    let TensorSpec { name, datatype, shape } = spec;
    let (name, shape) = (name.clone(), shape.clone());
    DeclaredTensor { name, datatype: number(*datatype), shape, ..DeclaredTensor::default() }
}

/// Returns the source with the blocks and the lengths that the model's file declares.
fn adopt(source: &ModelSource, declared: &Declaration) -> Result<ModelSource, String> {
    let mut source = source.clone();
    let names: Vec<&str> = declared.blocks.iter().map(|block| block.name.as_str()).collect();
    let is_undivided = source.blocks.len() == 1 && !source.walk.is_unfolded();
    if is_undivided && names.len() > 1 && source.blocks[0].profile.is_some() {
        return Err("latencies are given for the whole model, but its file has several functions".to_owned());
    }
    if steps::has_steps(declared) {
        steps::adopt(&mut source, declared)?;
    } else if is_undivided {
        let named = |name: &&str| BlockSource { name: (*name).to_owned(), ..source.blocks[0].clone() };
        source.blocks = names.iter().map(named).collect();
        source.walk = if names.len() > 1 { Walk::Chain } else { source.walk };
    }
    if let Some(block) = source.blocks.iter().find(|block| !names.contains(&block.name.as_str())) {
        let names = names.join(", ");
        return Err(format!("its file has no function for [[block]] name = \"{}\"; it has {names}", block.name));
    }
    if source.walk.is_unfolded() {
        if std::mem::take(&mut source.unbatched) {
            // A batch of a cell then is one row.
            source.max_batch = 1;
        }
    } else if source.lengths.inputs.is_empty() {
        source.lengths = lengths(declared, source.lengths.outputs);
        if declared.max_length > 0 {
            source.max_length = declared.max_length;
        }
    }
    Ok(source)
}

/// Returns the number of each block's function in the file.
fn functions(source: &ModelSource, declared: &Declaration) -> Vec<u32> {
    let number = |block: &BlockSource| declared.blocks.iter().position(|function| function.name == block.name);
    source.blocks.iter().map(|block| number(block).unwrap_or(0) as u32).collect()
}

/// Returns the declared dimensions that are the length of a request, with outputs found by trial.
fn lengths(declared: &Declaration, found: Vec<OutputLength>) -> LengthDims {
    let mut dims = LengthDims { inputs: Vec::new(), outputs: found };
    let given = |name: &str| declared.blocks.iter().any(|block| block.outputs.iter().any(|output| output.name == name));
    for block in &declared.blocks {
        for input in block.inputs.iter().filter(|input| input.length_dim > 0 && !given(&input.name)) {
            let input = InputLength { tensor: input.name.clone(), dim: input.length_dim as usize, pad: input.pad };
            dims.inputs.push(input);
        }
        for output in block.outputs.iter().filter(|output| output.length_dim > 0) {
            if !dims.outputs.iter().any(|known| known.tensor == output.name) {
                dims.outputs.push(OutputLength::new(&output.name, output.length_dim as usize));
            }
        }
    }
    dims.inputs.dedup_by(|a, b| a.tensor == b.tensor);
    dims
}

fn link(source: &ModelSource, declared: &Declaration) -> Result<ModelPlan, LoadError> {
    let unbatched = source.unbatched;
    let spec = |tensor: &DeclaredTensor| {
        let datatype = DataType::ALL[tensor.datatype as usize];
        let spec = TensorSpec { name: tensor.name.clone(), datatype, shape: tensor.shape.clone() };
        if unbatched { as_one_row(&spec) } else { spec }
    };
    let io = |block: &BlockSource| {
        let function = declared.blocks.iter().find(|function| function.name == block.name);
        let (inputs, outputs) = function.map_or((&[][..], &[][..]), |found| (&found.inputs, &found.outputs));
        BlockIo {
            place: format!("function '{}'", block.name),
            inputs: inputs.iter().map(spec).collect(),
            outputs: outputs.iter().map(spec).collect(),
            vocabulary: Vec::new(),
            optional: Vec::new(),
        }
    };
    let plan = ModelPlan::link(source, &source.blocks.iter().map(io).collect::<Vec<_>>())?;
    let unknown = source.ranges.iter().find(|range| !plan.inputs.iter().any(|spec| spec.name == range.tensor));
    match unknown {
        Some(range) => Err(LoadError(format!(
            "model '{}': min and max stand at input '{}', which it does not have; correct its name",
            source.name, range.tensor
        ))),
        None if unbatched => Ok(ModelPlan { max_batch: 1, batch_sizes: Vec::new(), ..plan }),
        None => Ok(plan),
    }
}
