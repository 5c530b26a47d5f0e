//! A GPU as a device for cells.

use crate::context::Context;
use crate::lane::GpuLane;
use crate::memory::{DeviceWords, GpuStream};
use crate::resident::{GpuModel, tables};
use crate::{CellLane, CellModelSpec, CudaError, ModelOnDevice, StepDevice};
use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

/// A GPU.
pub struct CudaGpu {
    context: Arc<Context>,
}

impl CudaGpu {
    /// Opens a GPU by its number in CUDA. Libraries are looked for in the folders first.
    pub fn open(folders: &[PathBuf], ordinal: u32) -> Result<CudaGpu, CudaError> {
        Ok(CudaGpu { context: Arc::new(Context::open(folders, ordinal)?) })
    }
}

impl StepDevice for CudaGpu {
    fn load(&self, spec: Arc<CellModelSpec>) -> Result<Arc<dyn ModelOnDevice>, CudaError> {
        spec.check()?;
        let context = &self.context;
        let (code, segments) = tables(&spec);
        let words = spec.arena_words();
        Ok(Arc::new(GpuModel {
            constants: DeviceWords::of(context, &spec.constants)?,
            arena: DeviceWords::new(context, words, 0)?,
            code: DeviceWords::of(context, &code)?,
            segments: DeviceWords::of(context, &segments)?,
            reader: GpuStream::new(context)?,
            context: Arc::clone(context),
            spec,
        }))
    }
}

impl ModelOnDevice for GpuModel {
    fn lane(self: Arc<Self>) -> Result<Box<dyn CellLane>, CudaError> {
        Ok(Box::new(GpuLane::new(self)?))
    }

    fn read(&self, unit: usize, words: &mut [u32]) -> Result<(), CudaError> {
        self.arena.read(&self.reader, unit * crate::UNIT, words)
    }

    fn copy_row(&self, from: &dyn ModelOnDevice, row: u32, to: u32) -> Result<bool, CudaError> {
        let Some(from) = from.as_any().downcast_ref::<GpuModel>() else { return Ok(false) };
        if !Arc::ptr_eq(&from.spec, &self.spec) || std::ptr::eq(from, self) {
            return Ok(false);
        }
        let ([from_word, to_word], words) = (self.spec.places_of([row, to])?, self.spec.row_units * crate::UNIT);
        self.arena.copy_from(&self.reader, (&from.arena, from_word), to_word, words)?;
        Ok(true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
