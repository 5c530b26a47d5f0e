//! Looks at a repository again and again, as somebody edits it.
//!
//! A file that is being written is as long as it is so far. So what has changed is loaded only once it looks the same twice, and what is
//! gone is unloaded once it is gone twice. What failed is tried again when it has changed again; and what was unloaded by a call
//! stays unloaded until then.

use super::{Files, LiveRepository, Which, files};
use crate::report::ModelReport;
use crate::scan::{Candidate, scan};
use std::collections::BTreeMap;

/// The files of each version of a model; none if it is not even known which those are.
type Sight = Vec<Files>;
type Sights = BTreeMap<String, Sight>;

/// What looks at a repository have seen.
#[derive(Default)]
pub struct Looks {
    /// By the last look; none before the first.
    last: Option<Sights>,
    /// Of each model, as it was when it was loaded or failed.
    tried: Sights,
}

impl LiveRepository {
    /// Looks once more, and loads and unloads what has come, changed or gone and stays so since the look before. The first look
    /// comes after [`load_all`](LiveRepository::load_all), and takes what does not serve for tried. An error only if the path cannot be read, and then
    /// nothing is done.
    pub fn look(&self, looks: &mut Looks) -> Result<Vec<ModelReport>, String> {
        let candidates = scan(&self.path)?;
        let now: Sights = candidates.iter().map(|candidate| (candidate.name.clone(), sight(candidate))).collect();
        let Some(last) = looks.last.replace(now.clone()) else {
            // What has changed since it was loaded, a moment ago, is not tried yet.
            let changed = |name: &String| {
                let candidate = candidates.iter().find(|candidate| candidate.name == *name);
                self.is_served(name) && !candidate.is_some_and(|candidate| self.is_served_as_found(candidate))
            };
            looks.tried = now.into_iter().filter(|(name, _)| !changed(name)).collect();
            return Ok(Vec::new());
        };
        let gone = |name: &String| !now.contains_key(name) && !last.contains_key(name);
        let gone: Vec<String> = self.slots.lock().keys().filter(|name| gone(name)).cloned().collect();
        for name in gone.into_iter().filter(|name| !self.is_brought(name)) {
            self.take_out(&name)?;
            looks.tried.remove(&name);
        }
        let is_new = |candidate: &&Candidate| {
            let sight = now.get(&candidate.name);
            sight == last.get(&candidate.name) && sight != looks.tried.get(&candidate.name)
        };
        let due: Vec<&Candidate> = candidates.iter().filter(is_new).collect();
        for candidate in &due {
            looks.tried.insert(candidate.name.clone(), now[&candidate.name].clone());
        }
        let changed = due.into_iter().filter(|candidate| !self.is_served_as_found(candidate));
        Ok(self.bring_up_in_order(changed, Which::Changed))
    }

    pub(super) fn is_served(&self, name: &str) -> bool {
        let slot = self.slots.lock().get(name).cloned();
        slot.is_some_and(|slot| !slot.lock().serving.is_empty())
    }
}

fn sight(candidate: &Candidate) -> Sight {
    candidate
        .found
        .as_ref()
        .map_or_else(|_| Vec::new(), |found| found.each_version().map(|found| files(&found)).collect())
}
