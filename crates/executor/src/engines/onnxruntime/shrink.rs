//! Memory that a session keeps between batches.
//!
//! A session on the CPU allocates tensors from an arena, which keeps the memory of the largest
//! batch. Without an arena, batches of hundreds of MiB take twice as long, because every tensor
//! needs new pages. So the arena is kept, and shrunk once it is no longer used.
//!
//! The library shrinks an arena only at the end of a run. A run whose termination was requested
//! before it began executes no operator, but ends as every run does. It needs inputs of the right
//! datatypes and ranks, whose values nothing reads.

use super::tensors;
use crate::contract::kept::{KeptBytes, resident_bytes};
use crate::run::plan::ModelPlan;
use crate::run::rows::EngineInput;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{RunOptions, Session, SessionInputValue};
use std::borrow::Cow;

/// Key of a run's option that names the arenas to shrink at its end.
const SHRINK: &str = "memory.enable_memory_arena_shrinkage";

/// Memory of a session's arena, as estimated by the growth of the process.
#[derive(Debug, Default)]
pub(super) struct SessionArena {
    kept: KeptBytes,
    /// Bytes of the inputs of the largest batch since the arena was shrunk.
    largest: usize,
    /// Whether a batch ran since the arena was shrunk.
    used: bool,
}

/// Measures the growth of the process until it is dropped.
pub(super) struct GrowthWatch<'a> {
    kept: &'a mut KeptBytes,
    before: usize,
}

/// Makes the first region of a session's arena a small one. The library never gives the first
/// region back, which would else be as large as the first batch.
pub(super) fn begin_arena(session: &Session) -> Result<(), ort::Error> {
    let arena = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Arena, MemoryType::Default)?;
    Allocator::new(session, arena)?.alloc::<u8>(1).map(drop)
}

impl SessionArena {
    /// Watches the growth during a batch that is larger than all before. `None` for other batches,
    /// because they fit into the arena.
    pub(super) fn watch(&mut self, inputs: &[EngineInput<'_>]) -> Option<GrowthWatch<'_>> {
        let bytes = inputs.iter().map(|input| input.data.len()).sum();
        self.used = true;
        (bytes > self.largest).then(|| {
            self.largest = bytes;
            GrowthWatch { kept: &mut self.kept, before: resident_bytes() }
        })
    }

    /// Gives back the memory of the arena that no tensor uses.
    pub(super) fn shrink(&mut self, session: &mut Session, plan: &ModelPlan, block: usize) {
        if std::mem::take(&mut self.used) {
            if let Err(cause) = run_nothing(session, plan, block) {
                tracing::debug!(model = &*plan.name, block, cause, "the memory of a session was not given back");
            }
            self.largest = 0;
            self.kept.clear();
        }
    }
}

impl Drop for GrowthWatch<'_> {
    fn drop(&mut self) {
        self.kept.add(resident_bytes().saturating_sub(self.before));
    }
}

/// Runs no operator, and shrinks the arena.
fn run_nothing(session: &mut Session, plan: &ModelPlan, block: usize) -> Result<(), String> {
    let inputs = plan.blocks[block].inputs.iter().map(|&value| {
        let spec = &plan.values[value].spec;
        let row_shape: Vec<i64> = spec.shape[1..].iter().map(|&dim| dim.max(1)).collect();
        let elements: i64 = row_shape.iter().product();
        // Eight bytes an element are enough for every datatype. Four of them are an empty string.
        let words = vec![0u64; elements as usize];
        (&plan.values[value].name, spec.datatype, row_shape, words)
    });
    let inputs: Vec<_> = inputs.collect();
    let mut feeds: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = Vec::with_capacity(inputs.len());
    for (name, datatype, row_shape, words) in &inputs {
        let data = &bytemuck::cast_slice(words)[..words.len() * datatype.size().unwrap_or(4)];
        let input = EngineInput { name, datatype: *datatype, row_shape, rows: 1, data, whole: false };
        feeds.push((Cow::Borrowed(&***name), tensors::to_ort(&input, plan.unbatched)?));
    }
    let mut options = RunOptions::new().map_err(|cause| cause.to_string())?;
    options.set(SHRINK, "cpu:0").map_err(|cause| cause.to_string())?;
    options.terminate().map_err(|cause| cause.to_string())?;
    match session.run_with_options(feeds, &options) {
        Ok(_) => Ok(()),
        Err(cause) if cause.to_string().contains("terminate flag") => Ok(()),
        Err(cause) => Err(cause.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::model::EngineModel;
    use crate::engines::onnxruntime::{NAME, OnnxRuntimeEngine, OnnxRuntimeOptions, SessionPools};
    use crate::{BlockSource, Executor, ModelSource};
    use std::path::PathBuf;
    use std::sync::Arc;

    /// Runs nothing in a session of a test model.
    fn shrink(engine: &OnnxRuntimeEngine, name: &str, unbatched: bool) -> Result<(), String> {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/models/{name}.onnx"));
        let block = BlockSource { path: Some(path), ..BlockSource::new(name) };
        let source = ModelSource { unbatched, ..ModelSource::new(name, vec![block], 4) };
        let loaded = engine.load(&source).unwrap_or_else(|cause| panic!("{name}: {cause}"));
        let model = EngineModel::<Arc<SessionPools>>::of(&*loaded, NAME).unwrap();
        let mut sessions = model.data.pools[0].take_idle().unwrap();
        let session = sessions[0].each().next().unwrap();
        let done = run_nothing(&mut session.session, &model.plan, 0);
        session.arena.used = true;
        session.arena.kept.add(100);
        session.arena.shrink(&mut session.session, &model.plan, 0);
        assert_eq!((session.arena.kept.bytes(), session.arena.used), (0, false));
        done
    }

    #[test]
    fn memory_of_models_of_all_datatypes_and_ranks_is_given_back() {
        let engine = OnnxRuntimeEngine::new(OnnxRuntimeOptions::default()).unwrap();
        let kinds = ["fp32", "fp64", "fp16", "bf16", "bool", "bytes", "int8", "int64", "uint16", "uint64"];
        let names = kinds.map(|kind| format!("identity_{kind}"));
        let others = ["pool", "sequence", "recurrent_lstm", "masked_mean", "widened"].map(str::to_owned);
        for name in names.iter().chain(&others) {
            assert_eq!(shrink(&engine, name, false), Ok(()), "{name}");
        }
        for name in ["scalars", "mlp_fixed_batch", "batch_second"] {
            assert_eq!(shrink(&engine, name, true), Ok(()), "{name}");
        }
    }
}
