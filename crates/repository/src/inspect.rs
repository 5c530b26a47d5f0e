//! What a repository holds, and what its models cost, without serving them: the commands `models` and `profile`.

use super::load::{Loader, Profiling};
use super::plan::Target;
use super::report::{ModelReport, Progress};
use super::scan::{Candidate, scan};
use std::path::Path;
use std::sync::Arc;

/// Every model at `path`: loaded and checked, with its profile where it is given or cached, and not measured.
pub fn inspect(path: &Path, target: Target) -> Result<Vec<ModelReport>, String> {
    let loader = Loader::new(target, Arc::new(|_, _, _| {}));
    Ok(scan(path)?.iter().map(|candidate| report(&loader, candidate, Profiling::Never)).collect())
}

/// Measures the models at `path`, or the one named `only`, and keeps the profiles in the cache.
pub fn profile(
    path: &Path,
    target: Target,
    only: Option<&str>,
    progress: Progress,
) -> Result<Vec<ModelReport>, String> {
    let candidates = scan(path)?;
    let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name.as_str()).collect();
    if let Some(name) = only.filter(|name| !names.contains(name)) {
        return Err(format!("{}: there is no model \"{name}\"; it holds {}", path.display(), names.join(", ")));
    }
    let loader = Loader::new(target, progress);
    let wanted = candidates.iter().filter(|candidate| only.is_none_or(|name| candidate.name == name));
    Ok(wanted.map(|candidate| report(&loader, candidate, Profiling::Always)).collect())
}

fn report(loader: &Loader, candidate: &Candidate, profiling: Profiling) -> ModelReport {
    let version = candidate.found.as_ref().map_or("", |found| found.version.as_str());
    let prepared = candidate.found.as_ref().map_err(String::clone).and_then(|found| loader.prepare(found, profiling));
    match prepared {
        Ok(prepared) => prepared.report(loader.target().devices),
        Err(error) => ModelReport::failed(&candidate.name, version, error),
    }
}
