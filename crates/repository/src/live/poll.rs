//! Polling of a repository for changes.
//!
//! A file that is being written grows, so a change is loaded only after two polls saw the same
//! state. A missing model is unloaded only after two polls missed it. A model that failed, or that
//! a call unloaded, is tried again only after its files change.

use super::{Files, LiveRepository, ModelControl, VersionSelection, files, versions_of};
use crate::report::ModelReport;
use crate::scan::{ModelCandidate, scan};
use std::collections::BTreeMap;

/// Files of each version of a model; empty if the versions are unknown.
type VersionFiles = Vec<Files>;
pub(super) type RepositorySnapshot = BTreeMap<String, VersionFiles>;

/// State of repository polling.
#[derive(Default)]
pub struct RepositoryPoll {
    /// Snapshot of the last poll; `None` before the first.
    last: Option<RepositorySnapshot>,
    /// Snapshot of each model at its last load attempt.
    attempted: RepositorySnapshot,
}

impl LiveRepository {
    /// Polls once: loads and unloads what has been added, changed or removed and is unchanged since
    /// the previous poll. What [`load_all`](LiveRepository::load_all) found counts as attempted.
    /// Fails only if the path cannot be read, and then changes nothing.
    pub fn poll(&self, state: &mut RepositoryPoll) -> Result<Vec<ModelReport>, String> {
        let candidates = scan(&self.path)?;
        let now = snapshots(&candidates);
        let Some(last) = state.last.replace(now.clone()) else {
            state.attempted = self.first_tried.lock().clone();
            return Ok(Vec::new());
        };
        let gone = |name: &String| !now.contains_key(name) && !last.contains_key(name);
        let gone: Vec<String> = self.slots.lock().keys().filter(|name| gone(name)).cloned().collect();
        for name in gone.into_iter().filter(|name| !self.is_uploaded(name)) {
            self.remove_gone(&name)?;
            state.attempted.remove(&name);
        }
        self.forget_mended(&candidates);
        let is_new = |candidate: &&ModelCandidate| {
            let snapshot = now.get(&candidate.name);
            snapshot == last.get(&candidate.name) && snapshot != state.attempted.get(&candidate.name)
        };
        let due: Vec<&ModelCandidate> = candidates.iter().filter(is_new).collect();
        for candidate in &due {
            state.attempted.insert(candidate.name.clone(), now[&candidate.name].clone());
        }
        let changed = due.into_iter().filter(|candidate| !self.is_served_as_found(candidate));
        Ok(self.load_in_order(changed, VersionSelection::Changed))
    }

    /// Unloads a model whose files are gone, and forgets that it could not be loaded.
    pub(super) fn remove_gone(&self, name: &str) -> Result<(), String> {
        let is_named = matches!(&self.control, ModelControl::Explicit(named) if named.contains(name));
        if !is_named {
            self.forget_failures(name, &[]);
        }
        self.unload_versions(name)
    }

    /// Forgets failures of models that serve what their files hold: the files at fault were removed
    /// or put back.
    pub(super) fn forget_mended(&self, candidates: &[ModelCandidate]) {
        for candidate in candidates.iter().filter(|candidate| candidate.found.is_ok()) {
            if self.is_served_as_found(candidate) && !self.is_uploaded(&candidate.name) {
                self.forget_failures(&candidate.name, &versions_of(candidate));
            }
        }
    }

    fn forget_failures(&self, name: &str, wanted: &[String]) {
        let slot = self.slots.lock().get(name).cloned();
        let Some(slot) = slot else { return };
        let mut slot = slot.lock();
        for version in self.registry.forget_failures(name, wanted) {
            slot.failed.remove(&version);
        }
    }

    pub(super) fn is_served(&self, name: &str) -> bool {
        let slot = self.slots.lock().get(name).cloned();
        slot.is_some_and(|slot| !slot.lock().serving.is_empty())
    }
}

pub(super) fn snapshots(candidates: &[ModelCandidate]) -> RepositorySnapshot {
    candidates.iter().map(|candidate| (candidate.name.clone(), snapshot(candidate))).collect()
}

fn snapshot(candidate: &ModelCandidate) -> VersionFiles {
    candidate
        .found
        .as_ref()
        .map_or_else(|_| Vec::new(), |found| found.each_version().map(|found| files(&found)).collect())
}
