//! Decides at load, before profiling, whether requests to a model can share batches.
//!
//! A file without a dynamic first dimension cannot be batched. A model whose rows depend on each
//! other must not be: a client's answer would depend on other clients' requests. Both are served
//! one request at a time, unless the owner demands batching with the key `batching` in
//! `model.toml`.

use super::config::Batching;
use super::plan::{LoadPlan, LoadTarget};
use ripieno_executor::{BlockSource, LoadedModel, ModelSource, RowIndependence, check_rows};
use ripieno_onnx::{Declared, OnnxFile};
use std::sync::Arc;

/// Returns the model as it is to be served, reloaded if without batches, and the reason for which
/// it is not batched.
pub(super) fn decide(
    target: &LoadTarget,
    plan: &mut LoadPlan,
    loaded: Arc<dyn LoadedModel>,
) -> Result<(Arc<dyn LoadedModel>, Option<String>), String> {
    let file = plan.shown_file();
    let Some(why) = unbatchable_reason(target, plan, &loaded)? else { return Ok((loaded, None)) };
    if plan.config.batching == Batching::Require {
        return Err(format!(
            "{file}: {why}, so requests cannot share batches, which batching = \"require\" demands; export it so that each row \
             of a dynamic first dimension is computed on its own, or remove the key to serve it one request at a time"
        ));
    }
    plan.without_batches();
    if !loaded.batched() {
        return Ok((loaded, Some(why)));
    }
    let again = target.engine.load(&plan.source).map_err(|error| {
        format!("{file}: {why}, so requests cannot share batches; to serve it one request at a time failed: {error}")
    })?;
    Ok((again, Some(why)))
}

/// Returns the reason for which requests cannot share batches, if there is one.
fn unbatchable_reason(
    target: &LoadTarget,
    plan: &LoadPlan,
    loaded: &Arc<dyn LoadedModel>,
) -> Result<Option<String>, String> {
    let config = &plan.config;
    if config.batching == Batching::Off {
        return Ok(Some("batching = \"off\"".to_owned()));
    }
    if !loaded.batched() {
        return Ok(Some("its tensors have no dynamic first dimension".to_owned()));
    }
    if config.batching == Batching::Trust || target.emulates() {
        return Ok(None);
    }
    if plan.source.walk.is_unfolded() {
        return check_cells(target, plan).map(|()| None);
    }
    Ok(match check_rows(&*target.engine, loaded, plan.source.max_batch) {
        RowIndependence::Independent => None,
        RowIndependence::Mixed(how) => Some(format!("its rows depend on each other ({how})")),
        RowIndependence::Untried(cause) => {
            tracing::warn!("model {}: whether its rows are independent cannot be tried: {cause}", plan.name);
            None
        }
    })
}

/// Checks each cell on its own, because cell batches combine rows of many requests and steps. A
/// model in cells cannot be served one request at a time.
fn check_cells(target: &LoadTarget, plan: &LoadPlan) -> Result<(), String> {
    for block in &plan.source.blocks {
        let Some(path) = &block.path else { continue };
        let cell = BlockSource { path: Some(path.clone()), ..BlockSource::new(&block.name) };
        let declared = OnnxFile::read(path).and_then(|file| Declared::of(&file)).map_err(|error| error.to_string())?;
        let ranges = block.ranges(&declared.inputs, &plan.source.ranges);
        let isolation = plan.source.isolation.clone();
        let source =
            ModelSource { isolation, ranges, ..ModelSource::new(&block.name, vec![cell], plan.source.max_batch) };
        let loaded = target.engine.load(&source).map_err(|error| error.to_string())?;
        if let RowIndependence::Mixed(how) = check_rows(&*target.engine, &loaded, source.max_batch) {
            return Err(format!(
                "{}: rows of cell \"{}\" depend on each other ({how}), so it would mix requests; export it so that each row is \
                 computed on its own",
                path.display(),
                block.name
            ));
        }
    }
    Ok(())
}
