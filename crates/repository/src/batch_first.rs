//! Serves a file whose batch is declared at another dimension than the first.
//!
//! The rewritten file takes the place of the model's own in the plan, so that everything after it,
//! the trial of independent rows included, sees the batch first. It is kept beside the model's
//! profiles, as slices are.

use super::cache::hash_of;
use super::config::Granularity;
use super::plan::LoadPlan;
use super::slicing::SliceCache;
use ripieno_executor::BlockSource;
use ripieno_model::Walk;
use ripieno_onnx::{BATCH_FIRST_VERSION, OnnxFile, batch_first};
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the rewritten block.
const BLOCK: &str = "model";

/// Replaces the plan's file by one with the batch first, if `batch_dim` is declared.
pub(super) fn apply(plan: &mut LoadPlan) -> Result<(), String> {
    if plan.config.batch_dims.is_empty() {
        return Ok(());
    }
    let shown = plan.config.file.clone();
    let [BlockSource { path: Some(file), .. }] = &plan.source.blocks[..] else {
        return Err(format!("{shown}: batch_dim needs a model of one file; export the blocks with the batch first"));
    };
    if plan.source.walk != Walk::Whole || plan.config.granularity == Granularity::Cells {
        return Err(format!(
            "{shown}: batch_dim is for whole models; remove walk and granularity, or export the cells anew"
        ));
    }
    let path = rewritten(plan, file).map_err(|cause| format!("{shown}: {cause}"))?;
    plan.source.blocks[0].path = Some(path);
    Ok(())
}

/// Returns the rewritten file, which is kept for later loads.
fn rewritten(plan: &LoadPlan, file: &Path) -> Result<PathBuf, String> {
    let content = OnnxFile::read(file).map_err(|error| error.to_string())?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let weights = content.external_files();
    let files = std::iter::once(file.to_owned()).chain(weights.iter().map(|name| folder.join(name)));
    let hashes = files.map(|file| hash_of(&file)).collect::<Result<Vec<_>, _>>()?;
    let dims = &plan.config.batch_dims;
    let cache = SliceCache::new(plan, format!("batch first {BATCH_FIRST_VERSION}\n{dims:?}\n{}", hashes.join(",")));
    let name = format!("{BLOCK}.onnx");
    if let Some(folder) = cache.cached() {
        return Ok(folder.join(name));
    }
    let bytes = batch_first(&content, dims).map_err(|error| error.to_string())?;
    let folder =
        cache.save(&[BLOCK], &|folder| fs::write(folder.join(&name), &bytes).map_err(|error| error.to_string()))?;
    Ok(folder.join(name))
}
