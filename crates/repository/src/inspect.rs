//! Inspection and profiling of a repository without serving it, for the commands `models` and
//! `profile`.

use super::assembly;
use super::load::{Loader, Profiling};
use super::model_files::ModelFiles;
use super::plan::LoadTarget;
use super::report::{MeasureProgress, ModelReport};
use super::scan::{ModelCandidate, scan};
use std::path::Path;
use std::sync::Arc;

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
