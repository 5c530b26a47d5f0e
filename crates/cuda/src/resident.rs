//! A model in a GPU's memory, and the tables that its kernels read.

use crate::context::Context;
use crate::memory::{DeviceWords, GpuStream};
use crate::{CellModelSpec, ChainSegment, StepStage};
use std::sync::Arc;

/// A model in a GPU's memory.
pub(crate) struct GpuModel {
    pub(crate) context: Arc<Context>,
    pub(crate) spec: Arc<CellModelSpec>,
    pub(crate) constants: DeviceWords,
    pub(crate) arena: DeviceWords,
    pub(crate) code: DeviceWords,
    pub(crate) segments: DeviceWords,
    pub(crate) reader: GpuStream,
}

/// Returns the instructions of all segments in the order of the stages, and the table of segments:
/// first instruction, number of instructions, width, and whether four columns go together.
pub(crate) fn tables(spec: &CellModelSpec) -> (Vec<u32>, Vec<u32>) {
    let (mut code, mut segments) = (Vec::new(), Vec::new());
    for program in &spec.programs {
        for segment in program.stages.iter().flat_map(segments_of) {
            let wide = segment.is_wide(program.results);
            segments.extend([code.len() / 4, segment.code.len(), segment.width, usize::from(wide)].map(|n| n as u32));
            code.extend(segment.code.iter().flat_map(|instr| instr.words()));
        }
    }
    (code, segments)
}

pub(crate) fn segments_of(stage: &StepStage) -> &[ChainSegment] {
    if let StepStage::Chain(segments) = stage { segments } else { &[] }
}
