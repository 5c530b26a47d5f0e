//! Engine "onnxruntime" with the built-in one beside it, for models that the library cannot run.
//!
//! Each model is loaded by one of the two: see [`Executor::alternatives`]. A device runs models of
//! both on the same lanes, so that batches of different engines never compete for its cores.

use crate::run::lane::{LaneDevice, LaneOptions};
use crate::{CpuEngine, Device, Executor, LoadError, LoadedModel, ModelSource, OnnxRuntimeEngine, Sink};
use std::sync::Arc;

/// Engine for models of ONNX Runtime and of the built-in engine.
pub struct EitherEngine {
    first: Arc<OnnxRuntimeEngine>,
    second: Arc<CpuEngine>,
}

impl EitherEngine {
    /// Combines two engines with the same number of threads and the same depth.
    pub fn new(first: OnnxRuntimeEngine, second: CpuEngine) -> EitherEngine {
        EitherEngine { first: Arc::new(first), second: Arc::new(second) }
    }
}

impl Executor for EitherEngine {
    fn name(&self) -> &'static str {
        self.first.name()
    }

    fn device_key(&self) -> String {
        self.first.device_key()
    }

    fn resources(&self) -> (usize, Vec<u32>) {
        self.first.resources()
    }

    /// Loads a model by the first engine that can.
    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        let refused = match self.first.load(source) {
            Ok(loaded) => return Ok(loaded),
            Err(cause) => cause,
        };
        self.second.load(source).map_err(|cause| match cause == refused {
            true => cause,
            false => LoadError(format!("{refused}; nor can the built-in engine run it: {cause}")),
        })
    }

    fn alternatives(&self) -> Vec<Arc<dyn Executor>> {
        vec![Arc::clone(&self.first) as Arc<dyn Executor>, Arc::clone(&self.second) as Arc<dyn Executor>]
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        let own = self.first.lane_options(lanes);
        // The lanes are plain threads; the built-in engine enters its pool for each batch.
        let built_in = self.second.lane_options(lanes).prepare;
        let prepare = own.prepare;
        LaneDevice::open(
            LaneOptions {
                prepare: Box::new(move |loaded, lane| match CpuEngine::has_loaded(loaded) {
                    true => built_in(loaded, lane),
                    false => prepare(loaded, lane),
                }),
                ..own
            },
            sink,
        )
    }
}
