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
//! Programs are checked when they are loaded, so no model can make a kernel leave its memory. They
//! run in the server's process, or in a process for each model and device: see [`place`].

mod expr;
mod lower;
mod place;
mod placed;
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
use crate::run::runner::{ProcessDown, ReadyModel};
use crate::{
    CpuEngine, CpuOptions, Device, ExecError, Executor, Isolation, LoadError, LoadedModel, ModelSource, Outage, Sink,
};
use place::{CellPlace, OwnDevice};
use placed::PlacedModel;
use plan::CompiledModel;
use ripieno_cuda::{CudaError, CudaGpu, HostDevice, StepDevice};
use ripieno_model::Walk;
use runner::CudaRunner;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const NAME: &str = "cuda-cells";

/// Engine "cuda-cells".
pub struct CudaCellsEngine {
    devices: Arc<[Arc<dyn StepDevice>]>,
    /// Numbers of the GPUs in CUDA, or the seed of this machine's CPU.
    found: DevicesFound,
    /// Names of the GPUs and version of their driver.
    key: String,
    depth: usize,
    opened: AtomicUsize,
}

/// The devices, as another process finds them.
enum DevicesFound {
    Gpus(Vec<u32>),
    Host(u64),
}

impl CudaCellsEngine {
    /// Opens GPUs by their numbers in CUDA. Libraries are looked for in `folders` first.
    pub(crate) fn open_gpus(folders: &[PathBuf], ordinals: &[u32], key: String) -> Result<CudaCellsEngine, LoadError> {
        let open = |&ordinal| Ok(Arc::new(CudaGpu::open(folders, ordinal)?) as Arc<dyn StepDevice>);
        let devices = ordinals.iter().map(open).collect::<Result<_, CudaError>>();
        let devices = devices.map_err(|cause| LoadError(cause.to_string()))?;
        Ok(CudaCellsEngine::of(devices, DevicesFound::Gpus(ordinals.to_vec()), key))
    }

    /// Creates an engine that computes on the CPU, slowly, and is strict about memory: for tests of
    /// all but the GPU. Its steps take random times; with a seed of 0 none.
    pub fn on_host(seed: u64) -> CudaCellsEngine {
        let devices: Arc<[Arc<dyn StepDevice>]> = Arc::new([Arc::new(HostDevice::new(seed))]);
        CudaCellsEngine::of(devices, DevicesFound::Host(seed), "host".to_owned())
    }

    fn of(devices: Arc<[Arc<dyn StepDevice>]>, found: DevicesFound, key: String) -> CudaCellsEngine {
        CudaCellsEngine { devices, found, key, depth: DEFAULT_DEPTH, opened: AtomicUsize::new(0) }
    }

    /// Returns the places of a model, one for each device.
    fn places(&self, source: &ModelSource, compiled: &CompiledModel) -> Result<Vec<Arc<dyn CellPlace>>, LoadError> {
        let spec = || Arc::clone(&compiled.spec);
        let own = |device: &Arc<dyn StepDevice>| -> Arc<dyn CellPlace> {
            Arc::new(OwnDevice { device: Arc::clone(device), spec: spec() })
        };
        match &source.isolation {
            None => Ok(self.devices.iter().map(own).collect()),
            Some(isolation) => self.processes(source, isolation, spec),
        }
    }

    #[cfg(target_os = "linux")]
    fn processes(
        &self,
        source: &ModelSource,
        isolation: &Isolation,
        spec: impl Fn() -> Arc<ripieno_cuda::CellModelSpec>,
    ) -> Result<Vec<Arc<dyn CellPlace>>, LoadError> {
        use crate::engines::isolated::{CellProcesses, CellPrograms, CellsOn};
        let programs = CellPrograms::new(&source.name, spec())?;
        let process =
            |on: CellsOn| Arc::new(CellProcesses::new(&source.name, isolation, on, &programs)) as Arc<dyn CellPlace>;
        match &self.found {
            DevicesFound::Gpus(_) if isolation.memory_limit.is_some() => Err(LoadError(format!(
                "model '{}': memory_limit_mb: limits address space, of which CUDA reserves all that the machine has; use \
                 gpu_memory_limit_mb",
                source.name
            ))),
            DevicesFound::Gpus(gpus) => Ok(gpus.iter().map(|&ordinal| process(CellsOn::Gpu(ordinal))).collect()),
            DevicesFound::Host(seed) => Ok(vec![process(CellsOn::Host(*seed))]),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn processes(
        &self,
        source: &ModelSource,
        _: &Isolation,
        _: impl Fn() -> Arc<ripieno_cuda::CellModelSpec>,
    ) -> Result<Vec<Arc<dyn CellPlace>>, LoadError> {
        Err(LoadError(format!(
            "model '{}': cells run in a process of their own on Linux only; remove isolation = \"process\"",
            source.name
        )))
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
        let read = read_blocks(source, NAME, EngineLimits::default())?;
        let Some(cells) = read.plan.cells.clone() else { return Err(refuse("it does not run cell by cell")) };
        let CellModel { wiring, .. } = &*cells;
        let files: Vec<&Path> = read.blocks.iter().map(|(path, _)| *path).collect();
        let compiled = Arc::new(plan::compile(&read.plan, wiring, &files, source.gpu)?);
        let places = self.places(source, &compiled)?.into_iter();
        let placed = places.map(|place| Arc::new(PlacedModel::new(place, Arc::clone(&compiled)))).collect();
        let model = CudaModel { compiled, placed };
        // The first device shows whether the model fits into memory.
        model.placed[0].rows().map_err(|failed| match source.isolation {
            Some(_) => LoadError(failed.cause),
            None => refuse(&failed.cause),
        })?;
        Ok(Arc::new(EngineModel { plan: Arc::new(read.plan), data: model }))
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        LaneDevice::open(self.lane_options(lanes), sink)
    }
}

/// Returns the runner of a model for a lane of a device, and records its graphs.
pub(crate) fn prepare(loaded: &dyn LoadedModel, place: usize) -> Result<ReadyModel, ExecError> {
    let model = EngineModel::<CudaModel>::of(loaded, NAME)?;
    let placed = Arc::clone(&model.data.placed[place]);
    let down = ProcessDown::default();
    let runner = CudaRunner::new(Arc::clone(&model.data.compiled), placed, down.clone())?;
    Ok(ReadyModel { plan: Arc::clone(&model.plan), runner: Box::new(runner), down })
}

/// A compiled model, and its memory on each device.
struct CudaModel {
    compiled: Arc<CompiledModel>,
    placed: Vec<Arc<PlacedModel>>,
}

impl EngineData for CudaModel {
    /// Returns an outage if no device that has the model can run it.
    fn outage(&self) -> Option<Outage> {
        let taken = || self.placed.iter().filter(|placed| placed.is_taken());
        let outages: Option<Vec<Outage>> = match taken().next() {
            Some(_) => taken().map(|placed| placed.place.outage()).collect(),
            None => self.placed[..1].iter().map(|placed| placed.place.outage()).collect(),
        };
        outages?.into_iter().min_by_key(|outage| outage.retry_after)
    }

    fn restarts(&self) -> Option<u64> {
        self.placed.iter().map(|placed| placed.place.restarts()).sum()
    }
}
