//! Which models are served: those that all backends offer.
//!
//! Backends load a newer model beside the one that serves and offer both. Once every backend offers
//! the newer one, the engine loads it, frontends learn of it, and the earlier one is unloaded when
//! its last request has ended. Each scheduler, primary or spare, concludes the same from the
//! same offers, so a hand-over in the middle of a release loses nothing.

use super::{ConnectedPeers, SchedulerShared, ServedModels};
use crate::description::ModelDescription;
use crate::offer::OfferedModel;
use crate::plane::PeerLink;
use ripieno_base::ModelId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time for frontends to name the newer model in their requests: one that does nothing for longer
/// counts as gone.
const RETIRE_GRACE: Duration = PeerLink::MAX_SILENCE;
/// Longest time for the last requests of a model that is replaced.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which they are counted.
const RETIRE_POLL: Duration = Duration::from_millis(50);

/// The models of the engine.
#[derive(Default)]
pub(super) struct ReleaseTable {
    models: Vec<TableModel>,
    /// Reasons of the engine for refusing what the backends offer, by name of the model.
    faults: BTreeMap<String, String>,
}

struct TableModel {
    id: ModelId,
    description: ModelDescription,
    /// True once frontends no longer name it.
    leaving: bool,
}

impl ReleaseTable {
    /// Returns the models that frontends may name.
    pub(super) fn listed(&self) -> Vec<(ModelId, ModelDescription)> {
        let listed = self.models.iter().filter(|model| !model.leaving);
        listed.map(|model| (model.id, model.description.clone())).collect()
    }

    /// Checks that a backend has all models of the engine; the error names the first that it lacks.
    pub(super) fn check(&self, offers: &[OfferedModel]) -> Result<(), String> {
        for TableModel { description, .. } in &self.models {
            let is_named = |offer: &&OfferedModel| offer.description.name == description.name;
            if offers.iter().any(|offer| offer.description.is_same(description)) {
                continue;
            }
            let name = &description.name;
            return Err(match offers.iter().find(is_named) {
                Some(_) => format!(
                    "its model {name:?} is another than the one that is served: version, tensors, walk, max_batch, \
                     settings and files must be equal; load it everywhere by a call to a frontend"
                ),
                None => format!("it has no model {name:?}, which this scheduler serves"),
            });
        }
        Ok(())
    }

    /// Returns why the engine serves nothing.
    pub(super) fn fault(&self) -> String {
        let first = self.faults.values().next().cloned();
        first.unwrap_or_else(|| "it has no model that can be served".to_owned())
    }

    /// Returns why a model is not served as the backends offer it, if it is not.
    pub(super) fn fault_of(&self, name: &str, offers: &[Vec<OfferedModel>]) -> Option<String> {
        if let Some(fault) = self.faults.get(name) {
            return Some(format!("model {name:?}: {fault}"));
        }
        let is_served = |offer: &OfferedModel| {
            self.models.iter().any(|model| !model.leaving && model.description.is_same(&offer.description))
        };
        let mut newest = offers.iter().flatten().filter(|offer| offer.description.name == name && !offer.superseded);
        let differs = !newest.all(is_served);
        differs.then(|| {
            format!(
                "the files of model {name:?} differ between backends; the earlier one serves until they are the same"
            )
        })
    }

    fn serves(&self, description: &ModelDescription) -> bool {
        self.models.iter().any(|model| !model.leaving && model.description.is_same(description))
    }

    /// Marks the models that are no longer wanted, and returns their ids. One whose successor the
    /// engine refuses stays.
    fn leave_others(&mut self, wanted: &[ModelDescription]) -> Vec<ModelId> {
        let ReleaseTable { models, faults } = self;
        let mut left = Vec::new();
        for model in models.iter_mut().filter(|model| !model.leaving) {
            let name = &model.description.name;
            let kept = faults.contains_key(name) && wanted.iter().any(|other| other.name == *name);
            if !kept && !wanted.iter().any(|other| other.is_same(&model.description)) {
                model.leaving = true;
                left.push(model.id);
            }
        }
        left
    }
}

impl SchedulerShared {
    /// Serves what all backends offer. Call it with the peers locked, after each change of them.
    pub(super) fn reconcile(&self, peers: &ConnectedPeers) {
        let Some(served) = peers.served.clone() else { return };
        let offers: Vec<Vec<OfferedModel>> = peers.offers();
        if offers.is_empty() {
            return;
        }
        let wanted = common(&offers);
        let mut table = served.models.lock();
        let mut changed = false;
        for description in &wanted {
            if table.serves(description) {
                continue;
            }
            let loaded =
                description.served().and_then(|model| served.engine.load(model).map_err(|error| error.to_string()));
            match loaded {
                Ok(id) => {
                    tracing::info!(
                        "model {}: version {} is served by all backends",
                        description.name,
                        description.version
                    );
                    table.faults.remove(&description.name);
                    table.models.push(TableModel { id, description: description.clone(), leaving: false });
                    changed = true;
                }
                Err(cause) => {
                    tracing::error!(
                        "model {}: version {} is not served: {cause}",
                        description.name,
                        description.version
                    );
                    table.faults.insert(description.name.clone(), cause);
                }
            }
        }
        let left = table.leave_others(&wanted);
        if !changed && left.is_empty() {
            return;
        }
        let listed = table.listed();
        drop(table);
        (self.on_serving)(Some((&served.engine, &listed[..])));
        if let Some(message) = peers.models() {
            peers.frontends.values().for_each(|frontend| frontend.link.send(&message));
        }
        for id in left {
            let served = Arc::clone(&served);
            let retire = thread::Builder::new().name("scheduler-retire".to_owned()).spawn(move || served.retire(id));
            if let Err(error) = retire {
                tracing::error!(%error, "no thread to unload a model");
            }
        }
    }
}

impl ServedModels {
    /// Unloads a model once its last request has ended.
    fn retire(&self, id: ModelId) {
        thread::sleep(RETIRE_GRACE);
        let begun = Instant::now();
        let is_live = || self.engine.model_metrics(id).is_some_and(|model| model.live > 0);
        while is_live() && begun.elapsed() < RETIRE_TIMEOUT {
            thread::sleep(RETIRE_POLL);
        }
        if let Err(error) = self.engine.unload(id) {
            tracing::debug!(model = id.0, %error, "a model is gone already");
        }
        self.models.lock().models.retain(|model| model.id != id);
    }
}

/// Returns the models that all backends offer: of each name and version the newest, and none that a
/// newer one of its name replaces everywhere.
fn common(offers: &[Vec<OfferedModel>]) -> Vec<ModelDescription> {
    let Some((first, others)) = offers.split_first() else { return Vec::new() };
    let mut shared: Vec<(&ModelDescription, bool)> = Vec::new();
    for offer in first.iter().rev() {
        let description = &offer.description;
        let of = |list: &Vec<OfferedModel>| {
            list.iter().rev().find(|other| other.description.is_same(description)).map(|other| other.superseded)
        };
        let elsewhere: Option<Vec<bool>> = others.iter().map(of).collect();
        let Some(elsewhere) = elsewhere else { continue };
        if !shared.iter().any(|(known, _)| known.is_same(description)) {
            shared.push((description, offer.superseded || elsewhere.contains(&true)));
        }
    }
    let is_replaced = |name: &str| shared.iter().any(|(other, superseded)| !superseded && other.name == name);
    let mut wanted: Vec<&ModelDescription> = Vec::new();
    for (description, superseded) in &shared {
        let is_newest = !wanted.iter().any(|other| other.has_name_of(description));
        if is_newest && !(*superseded && is_replaced(&description.name)) {
            wanted.push(description);
        }
    }
    wanted.into_iter().rev().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::described;

    fn offer(number: u32, version: &str, digest: &str, superseded: bool) -> OfferedModel {
        let mut description = described();
        (description.version, description.digest) = (version.to_owned(), digest.to_owned());
        OfferedModel { number, superseded, description }
    }

    fn chosen(offers: &[Vec<OfferedModel>]) -> Vec<(String, String)> {
        common(offers).into_iter().map(|model| (model.version, model.digest)).collect()
    }

    fn pair(version: &str, digest: &str) -> (String, String) {
        (version.to_owned(), digest.to_owned())
    }

    #[test]
    fn the_earlier_one_serves_until_the_newer_one_is_offered_everywhere() {
        let old = || vec![offer(0, "1", "a", false)];
        let both = || vec![offer(0, "1", "a", true), offer(1, "1", "b", false)];
        assert_eq!(chosen(&[both(), old()]), [pair("1", "a")]);
        assert_eq!(chosen(&[both(), both()]), [pair("1", "b")]);
        assert_eq!(chosen(&[both(), vec![offer(5, "1", "b", false)]]), [pair("1", "b")], "one has freed it already");
        assert!(chosen(&[old(), vec![offer(1, "1", "b", false)]]).is_empty(), "nothing is the same");
    }

    #[test]
    fn a_new_version_takes_the_place_of_another_unless_both_are_wanted() {
        let moved = || vec![offer(0, "1", "a", true), offer(1, "2", "b", false)];
        assert_eq!(chosen(&[moved(), moved()]), [pair("2", "b")]);
        assert_eq!(chosen(&[moved(), vec![offer(0, "1", "a", false)]]), [pair("1", "a")]);
        let kept = || vec![offer(0, "1", "a", false), offer(1, "2", "b", false)];
        assert_eq!(chosen(&[kept(), kept()]), [pair("1", "a"), pair("2", "b")]);
    }

    #[test]
    fn a_model_that_one_backend_takes_out_of_service_is_out_of_service() {
        assert!(chosen(&[vec![offer(0, "1", "a", false)], Vec::new()]).is_empty());
    }

    #[test]
    fn what_a_backend_lacks_is_named() {
        let mut table = ReleaseTable::default();
        table.models.push(TableModel { id: ModelId(0), description: described(), leaving: false });
        assert_eq!(table.check(&[offer(3, "1", "d", false)]), Ok(()));
        assert!(table.check(&[]).unwrap_err().contains("no model \"m\""));
        assert!(table.check(&[offer(3, "1", "e", false)]).unwrap_err().contains("another than the one that is served"));
        assert!(table.fault_of("m", &[vec![offer(3, "1", "e", false)]]).unwrap().contains("differ"));
        assert_eq!(table.fault_of("m", &[vec![offer(3, "1", "d", false)]]), None);
        // The engine refuses the newer one: the earlier one stays.
        table.faults.insert("m".to_owned(), "too large".to_owned());
        assert!(table.leave_others(&[offer(4, "1", "e", false).description]).is_empty());
        assert_eq!(table.leave_others(&[]), [ModelId(0)]);
    }
}
