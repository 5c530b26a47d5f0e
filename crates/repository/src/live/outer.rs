//! In which order ensembles are loaded: first what their steps are, then they, then those that have them as steps.

use super::{LiveRepository, Which, first_error, is_ensemble};
use crate::assembly;
use crate::plan::Target;
use crate::scan::{Candidate, scan};
use std::collections::BTreeSet;

/// Ensembles, each after those among its steps; who waits for itself comes last, and is told so when it is loaded.
pub(super) fn inner_first<'a>(ensembles: Vec<&'a Candidate>, target: &Target) -> Vec<&'a Candidate> {
    let mut waiting: Vec<(&Candidate, BTreeSet<String>)> =
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

/// The names of its steps; none where it cannot be read, which is told when it is loaded.
pub(super) fn models(candidate: &Candidate, target: &Target) -> BTreeSet<String> {
    let read = candidate.found.as_ref().ok().and_then(|found| assembly::read(found, target).ok());
    read.map(|read| read.steps.into_iter().map(|step| step.model).collect()).unwrap_or_default()
}

impl LiveRepository {
    /// Of an ensemble, the models of its steps that do not serve, and those of inner ones.
    pub(super) fn load_members(
        &self,
        candidate: &Candidate,
        all: &[Candidate],
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
                first_error(self.bring_up(member, None, Which::All))?;
            }
        }
        Ok(())
    }

    /// Loads ensembles again that have steps of those that were loaded. Who fails serves what it served.
    pub(super) fn renew_outer(&self, loaded: &[&str]) {
        let has_inner = |name: &str| {
            let entry = self.registry.get(name, "").ok();
            let nested = entry.as_ref().and_then(|entry| entry.ensemble.as_ref()).map(|ensemble| &ensemble.nested);
            nested.is_some_and(|nested| loaded.iter().any(|name| nested.contains(*name)))
        };
        // The scan is for ensembles alone: models are looked up anew by each request.
        let is_one = |name: &&str| self.registry.get(name, "").is_ok_and(|entry| entry.ensemble.is_some());
        if !loaded.iter().any(is_one) {
            return;
        }
        let candidates = scan(&self.path).unwrap_or_default();
        let is_outer = |candidate: &&Candidate| {
            is_ensemble(candidate) && !loaded.contains(&candidate.name.as_str()) && has_inner(&candidate.name)
        };
        for outer in inner_first(candidates.iter().filter(is_outer).collect(), self.loader.target()) {
            self.bring_up(outer, None, Which::All);
        }
    }
}
