//! Verdicts of the analysis on a model's rows, and a batch that stands at another dimension.

use super::plan::LoadPlan;
use ripieno_executor::{BlockSource, RowTrial};
use ripieno_onnx::{OnnxFile, RowVerdict, analyse_rows, other_batch_dims};

/// Returns the verdict on all blocks of a model: rows must stay apart in each.
pub(super) fn of_model(blocks: &[BlockSource]) -> RowVerdict {
    blocks.iter().map(of_block).fold(RowVerdict::Independent, RowVerdict::and)
}

fn of_block(block: &BlockSource) -> RowVerdict {
    let Some(path) = &block.path else { return RowVerdict::unread(&block.name, "it has no graph") };
    if path.extension().is_some_and(|extension| extension == "py") {
        return RowVerdict::unread(&block.name, "it is a function in Python, which has none");
    }
    match OnnxFile::read(path) {
        Ok(file) => analyse_rows(&file).verdict(),
        Err(cause) => RowVerdict::unread(&block.name, cause.to_string()),
    }
}

/// Returns the purpose of a trial after a verdict.
pub(super) fn trial_of(verdict: &RowVerdict) -> RowTrial {
    if *verdict == RowVerdict::Independent { RowTrial::Confirms } else { RowTrial::Decides }
}

/// Adds to a remedy that another dimension is the batch, if that is proved of the model's file.
pub(super) fn with_batch_dims(plan: &LoadPlan, remedy: &str) -> String {
    let hint = || {
        let [BlockSource { path: Some(path), .. }] = &plan.source.blocks[..] else { return None };
        let file = OnnxFile::read(path).ok().filter(|_| plan.config.batch_dims.is_empty())?;
        let inputs: Vec<&str> = file.graph().input.iter().map(|info| &*info.name).collect();
        let declared = |(name, dim): &(String, usize)| {
            let table = if inputs.contains(&&**name) { "[[input]]" } else { "[[output]]" };
            format!("batch_dim = {dim} at {table} {name}")
        };
        let dims = other_batch_dims(&file)?;
        Some(dims.iter().map(declared).collect::<Vec<_>>().join(", "))
    };
    match hint() {
        Some(dims) => format!("{remedy}; its rows are independent along another dimension: declare {dims}"),
        None => remedy.to_owned(),
    }
}
