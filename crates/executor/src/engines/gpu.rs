//! Engine for NVIDIA GPUs: cells by "cuda-cells", all other models by ONNX Runtime.
//!
//! Each model is loaded by one of the two: see [`Executor::alternatives`]. Cells that the first
//! does not know go to the second, too. A device runs models of both on the same lanes. One of the
//! two may be missing: cells need no ONNX Runtime, and ONNX Runtime finds CUDA's libraries in its
//! own package.

use crate::engines::cuda_cells::{self, CudaCellsEngine};
use crate::engines::onnxruntime::find_gpus;
use crate::run::lane::{LaneDevice, LaneOptions};
use crate::{Device, Executor, LoadError, LoadedModel, ModelSource, OnnxRuntimeEngine, OnnxRuntimeOptions, Sink};
use std::sync::Arc;

/// Engine for models on GPUs.
pub struct GpuEngine {
    gpus: Vec<u32>,
    threads: usize,
    cells: Result<Arc<CudaCellsEngine>, LoadError>,
    library: Result<Arc<OnnxRuntimeEngine>, LoadError>,
}

impl GpuEngine {
    /// Opens the GPUs of the options. An error if neither engine can use them.
    pub fn new(options: OnnxRuntimeOptions, depth: usize) -> Result<GpuEngine, LoadError> {
        let (gpus, threads) = (options.gpus.clone(), options.threads);
        let library = OnnxRuntimeEngine::new(options).map(|library| Arc::new(library.with_depth(depth)));
        let cells = find_gpus(&gpus).and_then(|(folders, key)| CudaCellsEngine::open_gpus(&folders, &gpus, key));
        let cells = cells.map(|cells| Arc::new(cells.with_depth(depth)));
        match (&cells, &library) {
            (Err(cells), Err(cause)) => return Err(LoadError(format!("{cause}; nor can it run cells: {cells}"))),
            (Err(cause), Ok(_)) => {
                tracing::warn!("cells run by ONNX Runtime, and their state in the host's memory: {cause}")
            }
            (Ok(_), Err(cause)) => tracing::warn!("only models in cells can be served on the GPU: {cause}"),
            (Ok(_), Ok(_)) => {}
        }
        Ok(GpuEngine { gpus, threads, cells, library })
    }
}

impl Executor for GpuEngine {
    fn name(&self) -> &'static str {
        if self.library.is_ok() { "onnxruntime" } else { "cuda-cells" }
    }

    fn device_key(&self) -> String {
        match (&self.library, &self.cells) {
            (Ok(library), _) => library.device_key(),
            (Err(_), Ok(cells)) => cells.device_key(),
            (Err(_), Err(_)) => String::new(),
        }
    }

    fn resources(&self) -> (usize, Vec<u32>) {
        (self.threads, self.gpus.clone())
    }

    /// Loads a model by the first engine that can.
    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        let mut failed = LoadError(String::new());
        for engine in self.alternatives().iter().filter(|engine| engine.serves(source.walk)) {
            match engine.load(source) {
                Ok(loaded) => return Ok(loaded),
                Err(cause) => failed = cause,
            }
        }
        Err(failed)
    }

    fn alternatives(&self) -> Vec<Arc<dyn Executor>> {
        let cells = self.cells.iter().map(|cells| Arc::clone(cells) as Arc<dyn Executor>);
        let library: Arc<dyn Executor> = match &self.library {
            Ok(library) => Arc::clone(library) as Arc<dyn Executor>,
            Err(cause) => Arc::new(MissingEngine(cause.clone())),
        };
        cells.chain([library]).collect()
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let (cells, library) = (self.cells.is_ok(), self.library.as_ref());
        let own = match (library, &self.cells) {
            (Ok(library), _) => library.lane_options(lanes),
            (Err(_), Ok(cells)) => cells.lane_options(lanes),
            (Err(cause), Err(_)) => return Err(cause.clone()),
        };
        let (prepare, place) = (own.prepare, own.place);
        LaneDevice::open_on_gpu(
            LaneOptions {
                prepare: Box::new(move |loaded, lane| match cells && CudaCellsEngine::has_loaded(loaded) {
                    true => cuda_cells::prepare(loaded, place),
                    false => prepare(loaded, lane),
                }),
                ..own
            },
            sink,
        )
    }
}

/// An engine that is not installed: every model fails with the reason.
struct MissingEngine(LoadError);

impl Executor for MissingEngine {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn device_key(&self) -> String {
        "missing".to_owned()
    }

    fn isolates(&self) -> bool {
        true
    }

    fn load(&self, _: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        Err(self.0.clone())
    }

    fn open(&self, _: usize, _: Sink) -> Result<Box<dyn Device>, LoadError> {
        Err(self.0.clone())
    }
}
