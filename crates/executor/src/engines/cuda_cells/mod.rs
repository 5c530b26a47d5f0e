//! Engine "cuda-cells": cells whose state stays on an NVIDIA GPU.
//!
//! A step of a cell computes little, so what decides is all that is around it. ONNX Runtime reads a
//! batch from the host's memory and leaves its outputs there: state crosses the bus twice in each
//! step. Here a cell's graph is compiled into a program: [`plan`] finds inputs and outputs, `lower`
//! reads operators, and `schedule` makes stages. A program reads and writes rows of state by index
//! in the GPU's memory, and a step is one launch. Only what the host needs crosses the bus: ids and
//! other inputs of the request, parts of the answer, and whether the request has ended.
//!
//! Every cell of a model must have a program; otherwise the model is refused with the operator's
//! name, and another engine serves it. Products are cuBLAS's, which may sum in another order for
//! another batch size. So a row is alike in any batch but for rounding, and not bit by bit.
//!
//! The engine runs in the server's process. Its programs are checked when they are loaded, so no
//! model can make a kernel leave its memory.

mod expr;
mod lower;
mod plan;
mod runner;
mod schedule;
mod store;
mod tensors;
#[cfg(test)]
mod tests;

use crate::contract::model::{EngineData, EngineModel, read_blocks};
use crate::probe::values::EngineLimits;
use crate::run::cells::CellModel;
use crate::run::lane::{DEFAULT_DEPTH, LaneDevice, LaneOptions};
use crate::run::runner::ReadyModel;
use crate::{CpuEngine, CpuOptions, Device, ExecError, Executor, LoadError, LoadedModel, ModelSource, Sink};
use parking_lot::Mutex;
use plan::CompiledModel;
use ripieno_cuda::{CudaError, CudaGpu, HostDevice, StepDevice};
use ripieno_model::Walk;
use runner::CudaRunner;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::DeviceRows;

const NAME: &str = "cuda-cells";

/// Engine "cuda-cells".
pub struct CudaCellsEngine {
    devices: Arc<[Arc<dyn StepDevice>]>,
    /// Names of the GPUs and version of their driver.
    key: String,
    depth: usize,
    opened: AtomicUsize,
}

impl CudaCellsEngine {
    /// Opens GPUs by their numbers in CUDA. Libraries are looked for in `folders` first.
    pub(crate) fn open_gpus(folders: &[PathBuf], ordinals: &[u32], key: String) -> Result<CudaCellsEngine, LoadError> {
        let open = |&ordinal| Ok(Arc::new(CudaGpu::open(folders, ordinal)?) as Arc<dyn StepDevice>);
        let devices = ordinals.iter().map(open).collect::<Result<_, CudaError>>();
        Ok(CudaCellsEngine::of(devices.map_err(|cause| LoadError(cause.to_string()))?, key))
    }

    /// Creates an engine that computes on the CPU, slowly, and is strict about memory: for tests of
    /// all but the GPU. Its steps take random times; with a seed of 0 none.
    pub fn on_host(seed: u64) -> CudaCellsEngine {
        CudaCellsEngine::of(Arc::new([Arc::new(HostDevice::new(seed)) as Arc<dyn StepDevice>]), "host".to_owned())
    }

    fn of(devices: Arc<[Arc<dyn StepDevice>]>, key: String) -> CudaCellsEngine {
        CudaCellsEngine { devices, key, depth: DEFAULT_DEPTH, opened: AtomicUsize::new(0) }
    }

    /// Sets the number of tasks that each lane of a device holds, including the running one.
    pub fn with_depth(mut self, depth: usize) -> CudaCellsEngine {
        self.depth = depth;
        self
    }

    /// Returns whether this kind of engine has loaded a model.
    pub(crate) fn has_loaded(loaded: &dyn LoadedModel) -> bool {
        loaded.as_any().is::<EngineModel<CudaModel>>()
    }

    /// Returns the settings of a device with `lanes` lanes. Devices take the GPUs in turn.
    pub(crate) fn lane_options(&self, lanes: usize) -> LaneOptions {
        let lanes = lanes.max(1);
        let opened = self.opened.fetch_add(1, Ordering::Relaxed);
        let place = opened % self.devices.len();
        LaneOptions {
            name: format!("{NAME}-{opened}"),
            depth: self.depth,
            place,
            prepare: Box::new(move |loaded, _| prepare(loaded, place)),
            enter: Arc::new(|body| body()),
            aborts: (0..lanes).map(|_| Arc::default()).collect(),
            max_concurrent: lanes,
        }
    }
}

impl Executor for CudaCellsEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device_key(&self) -> String {
        format!("{NAME}/{}", self.key)
    }

    fn serves(&self, walk: Walk) -> bool {
        walk.is_unfolded()
    }

    /// Returns the built-in engine.
    fn reference(&self) -> Option<Arc<dyn Executor>> {
        Some(Arc::new(CpuEngine::new(CpuOptions::default())))
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        let refuse = |cause: &str| LoadError(format!("model '{}': {cause}", source.name));
        if source.isolation.is_some() {
            return Err(refuse("cells on a GPU run in the server's process; remove isolation = \"process\""));
        }
        let read = read_blocks(source, NAME, EngineLimits::default())?;
        let Some(cells) = read.plan.cells.clone() else { return Err(refuse("it does not run cell by cell")) };
        let CellModel { wiring, .. } = &*cells;
        let files: Vec<&Path> = read.blocks.iter().map(|(path, _)| *path).collect();
        let compiled = Arc::new(plan::compile(&read.plan, wiring, &files, source.gpu)?);
        let model = CudaModel {
            compiled,
            devices: Arc::clone(&self.devices),
            placed: self.devices.iter().map(|_| Mutex::new(None)).collect(),
        };
        // The first device shows whether the model fits into memory.
        model.place(0).map_err(|cause| refuse(&cause.to_string()))?;
        Ok(Arc::new(EngineModel { plan: Arc::new(read.plan), data: model }))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        LaneDevice::open(self.lane_options(lanes), sink)
    }
}

/// Returns the runner of a model for a lane of a device, and records its graphs.
pub(crate) fn prepare(loaded: &dyn LoadedModel, place: usize) -> Result<ReadyModel, ExecError> {
    let model = EngineModel::<CudaModel>::of(loaded, NAME)?;
    let rows = model.data.place(place).map_err(runner::failed)?;
    let lane = Arc::clone(&rows.model).lane().map_err(runner::failed)?;
    let runner = CudaRunner::new(Arc::clone(&model.data.compiled), rows, lane);
    Ok(ReadyModel::new(Arc::clone(&model.plan), Box::new(runner)))
}

/// A compiled model, and its memory on each device.
struct CudaModel {
    compiled: Arc<CompiledModel>,
    devices: Arc<[Arc<dyn StepDevice>]>,
    placed: Vec<Mutex<Option<Arc<DeviceRows>>>>,
}

impl EngineData for CudaModel {}

impl CudaModel {
    /// Returns the model's memory on a device. Takes it the first time.
    fn place(&self, place: usize) -> Result<Arc<DeviceRows>, CudaError> {
        let mut placed = self.placed[place].lock();
        if let Some(rows) = &*placed {
            return Ok(Arc::clone(rows));
        }
        let model = self.devices[place].load(Arc::clone(&self.compiled.spec))?;
        let rows = Arc::new(DeviceRows::new(model, Arc::clone(&self.compiled)));
        *placed = Some(Arc::clone(&rows));
        Ok(rows)
    }
}
