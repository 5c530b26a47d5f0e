//! May requests to a model share batches? Settled when it is loaded, before anything is measured.
//!
//! A file without a dynamic first dimension cannot be run in batches, and one whose rows depend on each other must not be: a
//! client would get an answer that depends on who else asked. Both are served all the same, one request at a time, unless the
//! owner would rather have them refused: `batching` in `model.toml`.

use super::config::Batching;
use super::plan::{Plan, Target};
use ripieno_executor::{BlockSource, Loaded, ModelSource, Rows, check_rows};
use ripieno_onnx::{Declared, OnnxFile};
use std::sync::Arc;

/// The model as it is to be served, loaded again if without batches; and why it is so, if it is.
pub(super) fn settle(
    target: &Target,
    plan: &mut Plan,
    loaded: Arc<dyn Loaded>,
) -> Result<(Arc<dyn Loaded>, Option<String>), String> {
    let file = plan.shown_file();
    let Some(why) = why_not(target, plan, &loaded)? else { return Ok((loaded, None)) };
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

/// Why requests cannot share batches, if they cannot.
fn why_not(target: &Target, plan: &Plan, loaded: &Arc<dyn Loaded>) -> Result<Option<String>, String> {
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
        Rows::Independent => None,
        Rows::Mixed(how) => Some(format!("its rows depend on each other ({how})")),
        Rows::Untried(cause) => {
            tracing::warn!("model {}: whether its rows are independent cannot be tried: {cause}", plan.name);
            None
        }
    })
}

/// Cells join rows of many requests and steps, so each of them is tried by itself. There is no way to serve them one by one.
fn check_cells(target: &Target, plan: &Plan) -> Result<(), String> {
    for block in &plan.source.blocks {
        let Some(path) = &block.path else { continue };
        let cell = BlockSource { path: Some(path.clone()), ..BlockSource::new(&block.name) };
        let declared = OnnxFile::read(path).and_then(|file| Declared::of(&file)).map_err(|error| error.to_string())?;
        let ranges = block.ranges(&declared.inputs, &plan.source.ranges);
        let isolation = plan.source.isolation.clone();
        let source =
            ModelSource { isolation, ranges, ..ModelSource::new(&block.name, vec![cell], plan.source.max_batch) };
        let loaded = target.engine.load(&source).map_err(|error| error.to_string())?;
        if let Rows::Mixed(how) = check_rows(&*target.engine, &loaded, source.max_batch) {
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
