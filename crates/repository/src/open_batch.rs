//! Serves a file whose batch an exporter fixed to 1 with a batch dimension, where that is right.
//!
//! The rewritten file is tried at each load: its rows, alone and together, must be answered as the
//! file itself answers them. It is kept beside the model's profiles, as slices are.

use super::cache::hash_of;
use super::config::Granularity;
use super::plan::{LoadPlan, LoadTarget};
use super::row_verdict;
use super::slicing::SliceCache;
use ripieno_executor::{BlockSource, LoadedModel, check_opened};
use ripieno_model::Walk;
use ripieno_onnx::{OPEN_BATCH_VERSION, OnnxFile, RowVerdict, open_batch};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the rewritten block.
const BLOCK: &str = "model";

/// Returns the model with a batch dimension, and replaces the file of the plan. The error says why
/// the file has to be served as it is.
pub(super) fn open(
    target: &LoadTarget,
    plan: &mut LoadPlan,
    fixed: &Arc<dyn LoadedModel>,
) -> Result<Arc<dyn LoadedModel>, String> {
    let [BlockSource { path: Some(file), .. }] = &plan.source.blocks[..] else {
        return Err("it is not one file".to_owned());
    };
    let config = &plan.config;
    if plan.source.walk != Walk::Whole || config.granularity != Granularity::Whole {
        return Err("it is not served whole".to_owned());
    }
    let declared = config.inputs.iter().chain(&config.outputs);
    if let Some(spec) = declared.clone().find(|spec| spec.shape.first() != Some(&-1)) {
        return Err(format!("model.toml declares the shape {:?} of '{}'", spec.shape, spec.name));
    }
    let path = rewritten(plan, file)?;
    let mut source = plan.source.clone();
    source.blocks[0].path = Some(path);
    let verdict = row_verdict::of_model(&source.blocks);
    if let RowVerdict::Meet(finding) = &verdict {
        return Err(format!("rows would depend on each other ({finding})"));
    }
    let opened = target.engine.load(&source).map_err(|error| error.to_string())?;
    let trial = row_verdict::trial_of(&verdict);
    check_opened(&*target.engine, fixed, &opened, source.max_batch, &plan.request_shapes(), trial)?;
    plan.source = source;
    Ok(opened)
}

/// Returns the rewritten file, which is kept for later loads.
fn rewritten(plan: &LoadPlan, file: &Path) -> Result<PathBuf, String> {
    let content = OnnxFile::read(file).map_err(|error| error.to_string())?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let weights = content.external_files();
    let files = std::iter::once(file.to_owned()).chain(weights.iter().map(|name| folder.join(name)));
    let hashes = files.map(|file| hash_of(&file)).collect::<Result<Vec<_>, _>>()?;
    let cache = SliceCache::new(plan, format!("open batch {OPEN_BATCH_VERSION}\n{}", hashes.join(",")));
    let name = format!("{BLOCK}.onnx");
    if let Some(folder) = cache.cached() {
        return Ok(folder.join(name));
    }
    let bytes = open_batch(&content).map_err(|error| error.to_string())?;
    let folder =
        cache.save(&[BLOCK], &|folder| fs::write(folder.join(&name), &bytes).map_err(|error| error.to_string()))?;
    Ok(folder.join(name))
}
