//! Loading order of ensembles: models of the steps first, inner ensembles before outer ones.

use super::{LiveRepository, VersionSelection, first_error, is_ensemble};
use crate::assembly;
use crate::plan::LoadTarget;
use crate::scan::{ModelCandidate, scan};
use std::collections::BTreeSet;

/// Orders ensembles after the ensembles among their steps. Circular ones come last; loading them
/// reports the error.
pub(super) fn inner_first<'a>(ensembles: Vec<&'a ModelCandidate>, target: &LoadTarget) -> Vec<&'a ModelCandidate> {
    let mut waiting: Vec<(&ModelCandidate, BTreeSet<String>)> =
        ensembles.into_iter().map(|candidate| (candidate, models(candidate, target))).collect();
    let mut ordered = Vec::with_capacity(waiting.len());
    loop {
        let names: BTreeSet<&String> = waiting.iter().map(|(candidate, _)| &candidate.name).collect();
        let waits = |models: &BTreeSet<String>| models.iter().any(|model| names.contains(model));
        let (rest, free): (Vec<_>, Vec<_>) = waiting.iter().cloned().partition(|(_, models)| waits(models));
        if free.is_empty() {
            return ordered.into_iter().chain(rest).map(|(candidate, _)| candidate).collect();
        }
        ordered.extend(free);
        waiting = rest;
    }
}

/// Returns the models of an ensemble's steps; empty if it cannot be read, which loading reports.
pub(super) fn models(candidate: &ModelCandidate, target: &LoadTarget) -> BTreeSet<String> {
    let read = candidate.found.as_ref().ok().and_then(|found| assembly::read(found, target).ok());
    read.map(|read| read.steps.into_iter().map(|step| step.model).collect()).unwrap_or_default()
}

impl LiveRepository {
    /// Loads the models of an ensemble's steps that do not serve, including steps of inner
    /// ensembles.
    pub(super) fn load_members(
        &self,
        candidate: &ModelCandidate,
        all: &[ModelCandidate],
        seen: &mut BTreeSet<String>,
    ) -> Result<(), String> {
        let Some(found) = candidate.found.as_ref().ok().filter(|found| found.is_ensemble) else { return Ok(()) };
        if !seen.insert(candidate.name.clone()) {
            return Ok(());
        }
        for step in assembly::read(found, self.loader.target())?.steps {
            let Some(member) = all.iter().find(|member| member.name == step.model && !seen.contains(&member.name))
            else {
                continue;
            };
            self.load_members(member, all, seen)?;
            if self.registry.get(&step.model, &step.version).is_err() {
                first_error(self.load_candidate(member, None, VersionSelection::All))?;
            }
        }
        Ok(())
    }

    /// Reloads ensembles that contain one of the loaded ensembles. An ensemble that fails keeps
    /// serving its old steps.
    pub(super) fn reload_outer_ensembles(&self, loaded: &[&str]) {
        let has_inner = |name: &str| {
            let entry = self.registry.get(name, "").ok();
            let nested = entry.as_ref().and_then(|entry| entry.ensemble.as_ref()).map(|ensemble| &ensemble.nested);
            nested.is_some_and(|nested| loaded.iter().any(|name| nested.contains(*name)))
        };
        // Scanning is needed for ensembles only, because each request looks plain models up.
        let is_one = |name: &&str| self.registry.get(name, "").is_ok_and(|entry| entry.ensemble.is_some());
        if !loaded.iter().any(is_one) {
            return;
        }
        let candidates = scan(&self.path).unwrap_or_default();
        let is_outer = |candidate: &&ModelCandidate| {
            is_ensemble(candidate) && !loaded.contains(&candidate.name.as_str()) && has_inner(&candidate.name)
        };
        for outer in inner_first(candidates.iter().filter(is_outer).collect(), self.loader.target()) {
            self.load_candidate(outer, None, VersionSelection::All);
        }
    }
}
