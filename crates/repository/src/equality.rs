//! Comparison at load with a reference engine: a model whose answers differ is refused.

use super::plan::{LoadPlan, LoadTarget};
use ripieno_executor::{AnswerComparison, EngineWithModel, LoadedModel, compare_answers, compare_walks};
use ripieno_model::Walk;
use std::sync::Arc;

/// Default tolerance, relative to the largest number of an output. Recent GPUs multiply with 10
/// bits of each factor (TF32), and the worst of 41 models differed by 0.2 % there.
pub(super) const TOLERANCE: f64 = 5e-3;

/// Compares the model's answers with the engine's reference, if it has one. An error if they
/// differ; a warning if they could not be compared.
pub(super) fn check(
    target: &LoadTarget,
    plan: &LoadPlan,
    loaded: &Arc<dyn LoadedModel>,
) -> Result<Option<String>, String> {
    let Some(reference) = target.engine.reference() else { return Ok(None) };
    let tolerance = plan.config.gpu_tolerance.unwrap_or(TOLERANCE);
    let untried = |cause: &str| {
        format!("{}: its answers on the GPU were not compared with the CPU's: {cause}", plan.shown_file())
    };
    let cells = plan.source.walk.is_unfolded();
    if cells && target.engine.serves(Walk::Whole) {
        return Ok(Some(untried("it runs cell by cell")));
    }
    let expected = match reference.load(&plan.source) {
        Ok(expected) => expected,
        Err(cause) => return Ok(Some(untried(&cause.to_string()))),
    };
    let own = EngineWithModel { engine: &*target.engine, model: loaded };
    let reference = EngineWithModel { engine: &*reference, model: &expected };
    let comparison = match cells {
        true => compare_walks(own, reference, tolerance),
        false => compare_answers(own, reference, &plan.request_shapes(), tolerance),
    };
    match comparison {
        AnswerComparison::Equal => Ok(None),
        AnswerComparison::Untried(cause) => Ok(Some(untried(&cause))),
        AnswerComparison::Different(how) => Err(format!(
            "{}: it answers differently on the GPU than on the CPU: {how}; serve it with --device cpu, or allow more by \
             gpu_tolerance in {}{}",
            plan.shown_file(),
            plan.config.file,
            if cells { ", or compute it with precision = \"fp32\"" } else { "" }
        )),
    }
}
