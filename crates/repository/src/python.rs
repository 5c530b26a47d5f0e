//! Models written in Python: their engine, and the blocks that their code declares.

use super::config::CellsConfig;
use super::model_files::ModelFiles;
use super::plan::{LoadPlan, LoadTarget};
use ripieno_executor::{LoadedModel, PythonEngine};
use std::sync::Arc;

/// Returns the target with the engine for models in Python; `None` for other models.
pub(super) fn target(found: &ModelFiles, target: &LoadTarget) -> Option<LoadTarget> {
    (found.is_python() && !target.emulates())
        .then(|| LoadTarget { engine: Arc::new(PythonEngine::beside(&*target.engine)), ..target.clone() })
}

/// Takes over the blocks and the walk that the model's own code declares.
pub(super) fn adopt(plan: &mut LoadPlan, loaded: &dyn LoadedModel) {
    let Some(source) = loaded.adopted_source() else { return };
    plan.source = source.clone();
    if source.walk.is_unfolded() && plan.config.cells.is_none() {
        plan.config.cells = Some(CellsConfig::of(source));
        plan.source.batch_sizes.clear();
    }
}
