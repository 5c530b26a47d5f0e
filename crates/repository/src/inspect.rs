//! Inspection and profiling of a repository without serving it, for the commands `models --no-load`
//! and `profile`.

use super::assembly;
use super::config::Batching;
use super::containment::check_weights;
use super::load::{Loader, Profiling};
use super::model_files::ModelFiles;
use super::plan::{LoadPlan, LoadTarget};
use super::report::{MeasureProgress, ModelReport, NOT_TRIED, describe};
use super::scan::{ModelCandidate, scan};
use super::slo::SloOrigin;
use super::triton::TritonConfig;
use ripieno_model::TensorSpec;
use ripieno_onnx::{Declared, OnnxFile};
use std::path::Path;
use std::sync::Arc;

/// Reads the files and settings of every model at `path`. No engine loads them, so that a model
/// without an error may still fail to load.
pub fn read(path: &Path, target: &LoadTarget) -> Result<Vec<ModelReport>, String> {
    let reports = |candidate: &ModelCandidate| match &candidate.found {
        Ok(found) => found.each_version().map(|found| read_version(&found, target)).collect(),
        Err(error) => vec![ModelReport::failed(&candidate.name, "", error.clone())],
    };
    Ok(scan(path)?.iter().flat_map(reports).collect())
}

fn read_version(found: &ModelFiles, target: &LoadTarget) -> ModelReport {
    let read = match found.is_ensemble {
        true => assembly::read(found, target).map(|read| assembly::report(found, &read, target)),
        false => read_model(found, target),
    };
    match read {
        Ok(report) => ModelReport { state: NOT_TRIED.to_owned(), ..report },
        Err(error) => ModelReport::failed(&found.name, &found.version, error.replace('\n', " ")),
    }
}

fn read_model(found: &ModelFiles, target: &LoadTarget) -> Result<ModelReport, String> {
    let plan = LoadPlan::new(found, target)?;
    for file in plan.files().into_iter().filter(|_| !plan.is_python) {
        check_weights(found, &file, target.allow_symlinks)?;
    }
    let (mut inputs, mut outputs) = (plan.config.inputs.clone(), plan.config.outputs.clone());
    // If the engine links several blocks, only the declared tensors are known.
    if let [file] = &plan.files()[..]
        && !plan.is_python
    {
        let declared = OnnxFile::read(file).and_then(|file| Declared::of(&file)).map_err(|error| error.to_string())?;
        (inputs, outputs) = (declared.inputs, declared.outputs);
    }
    let shown = |specs: &[TensorSpec]| specs.iter().map(|spec| describe(spec, true)).collect();
    let slo = plan.slo.resolve(&plan.config, plan.source.max_batch, None);
    Ok(ModelReport {
        inputs: shown(&inputs),
        outputs: shown(&outputs),
        slo_ms: slo.map(|slo| slo.span.as_millis_f64()),
        slo_is_derived: slo.map(|slo| slo.origin == SloOrigin::Profile),
        late: slo.map(|slo| if slo.answer_late { "answer" } else { "refuse" }),
        max_batch: Some(plan.source.max_batch),
        unbatched: (plan.config.batching == Batching::Off).then(|| "batching = \"off\"".to_owned()),
        warnings: plan.triton.iter().flat_map(TritonConfig::warnings).collect(),
        error: None,
        ..ModelReport::failed(&found.name, &found.version, String::new())
    })
}

/// Loads and checks every model at `path`; reports given or cached profiles, and measures none.
pub fn inspect(path: &Path, target: LoadTarget) -> Result<Vec<ModelReport>, String> {
    let loader = Loader::new(target, Arc::new(|_, _, _| {}));
    Ok(scan(path)?.iter().flat_map(|candidate| reports(&loader, candidate, Profiling::Never)).collect())
}

/// Measures the models at `path`, or only the one named `only`, and caches the profiles.
pub fn profile(
    path: &Path,
    target: LoadTarget,
    only: Option<&str>,
    progress: MeasureProgress,
) -> Result<Vec<ModelReport>, String> {
    let candidates = scan(path)?;
    let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    if let Some(name) = only.filter(|name| !names.contains(name)) {
        return Err(format!("{}: there is no model \"{name}\"; it holds {}", path.display(), names.join(", ")));
    }
    let loader = Loader::new(target, progress);
    let wanted = candidates.iter().filter(|candidate| only.is_none_or(|name| candidate.name == name));
    Ok(wanted.flat_map(|candidate| reports(&loader, candidate, Profiling::Always)).collect())
}

/// Returns one report for each version that would be served.
fn reports(loader: &Loader, candidate: &ModelCandidate, profiling: Profiling) -> Vec<ModelReport> {
    let found = match &candidate.found {
        Ok(found) => found,
        Err(error) => return vec![ModelReport::failed(&candidate.name, "", error.clone())],
    };
    found.each_version().map(|found| report(loader, &found, profiling)).collect()
}

fn report(loader: &Loader, found: &ModelFiles, profiling: Profiling) -> ModelReport {
    let target = loader.target();
    let report = match found.is_ensemble {
        true => assembly::read(found, target).map(|read| assembly::report(found, &read, target)),
        false => loader.prepare(found, profiling).map(|prepared| prepared.report(target.devices)),
    };
    report.unwrap_or_else(|error| ModelReport::failed(&found.name, &found.version, error))
}
