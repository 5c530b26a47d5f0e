//! Which models are served: those that all backends of a sub-cluster offer, and that the plan has
//! there. A model that moves to another sub-cluster stays until it is served there.
//!
//! Backends load a newer model beside the one that serves and offer both. Once every backend offers
//! the newer one, the engine loads it, frontends learn of it, and the earlier one is unloaded when
//! its last request has ended. Each scheduler, primary or spare, concludes the same from the
//! same offers, so a hand-over in the middle of a release loses nothing.

use crate::description::ModelDescription;
use crate::offer::{OfferList, OfferedModel};
use ripieno_base::ModelId;
use std::collections::{BTreeMap, BTreeSet};

/// The models of the engine.
#[derive(Default)]
pub(super) struct ReleaseTable {
    pub(super) models: Vec<TableModel>,
    /// Reasons of the engine for refusing what the backends offer, by name of the model.
    pub(super) faults: BTreeMap<String, String>,
}

pub(super) struct TableModel {
    pub(super) id: ModelId,
    pub(super) description: ModelDescription,
    /// True once frontends no longer name it.
    pub(super) leaving: bool,
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

    /// Sets why a model is not served; returns whether that is new.
    pub(super) fn set_fault(&mut self, name: &str, cause: String) -> bool {
        self.faults.insert(name.to_owned(), cause.clone()) != Some(cause)
    }

    /// Returns why the engine serves nothing.
    pub(super) fn fault(&self) -> String {
        let first = self.faults.values().next().cloned();
        first.unwrap_or_else(|| "it has no model that can be served".to_owned())
    }

    /// Returns why a model is not served as the backends offer it, if it is not.
    pub(super) fn fault_of(&self, name: &str, offers: &[OfferList]) -> Option<String> {
        if let Some(fault) = self.faults.get(name) {
            return Some(format!("model {name:?}: {fault}"));
        }
        let is_served = |offer: &OfferedModel| {
            self.models.iter().any(|model| !model.leaving && model.description.is_same(&offer.description))
        };
        let mut newest = offers
            .iter()
            .flat_map(|list| list.iter())
            .filter(|offer| offer.description.name == name && !offer.superseded);
        let differs = !newest.all(is_served);
        differs.then(|| {
            format!(
                "the files of model {name:?} differ between backends; the earlier one serves until they are the same"
            )
        })
    }

    /// Returns the names of all models of the engine, also of those that leave.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.models.iter().map(|model| model.description.name.clone()).collect()
    }

    /// Returns true if frontends may name a model of this name.
    pub(super) fn serves_name(&self, name: &str) -> bool {
        self.models.iter().any(|model| !model.leaving && model.description.name == name)
    }

    pub(super) fn serves(&self, description: &ModelDescription) -> bool {
        self.models.iter().any(|model| !model.leaving && model.description.is_same(description))
    }

    /// Marks the models whose service here is over, and returns their ids. One whose successor the
    /// engine refuses stays.
    pub(super) fn leave_others(
        &mut self,
        wanted: &[ModelDescription],
        is_over: impl Fn(&ModelDescription) -> bool,
    ) -> Vec<ModelId> {
        let ReleaseTable { models, faults } = self;
        let mut left = Vec::new();
        for model in models.iter_mut().filter(|model| !model.leaving) {
            let name = &model.description.name;
            let kept = faults.contains_key(name) && wanted.iter().any(|other| other.name == *name);
            if !kept && is_over(&model.description) {
                model.leaving = true;
                left.push(model.id);
            }
        }
        left
    }
}

/// Returns the models that all backends offer: of each name and version the newest, and none that a
/// newer one of its name replaces everywhere.
pub(super) fn common(offers: &[OfferList]) -> Vec<ModelDescription> {
    let Some((first, others)) = offers.split_first() else { return Vec::new() };
    let mut shared: Vec<(&ModelDescription, bool)> = Vec::new();
    for offer in first.iter().rev() {
        let description = &offer.description;
        let of = |list: &OfferList| {
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
        let offers: Vec<OfferList> = offers.iter().map(|list| list.as_slice().into()).collect();
        common(&offers).into_iter().map(|model| (model.version, model.digest)).collect()
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
        assert!(table.fault_of("m", &[vec![offer(3, "1", "e", false)].into()]).unwrap().contains("differ"));
        assert_eq!(table.fault_of("m", &[vec![offer(3, "1", "d", false)].into()]), None);
        // The engine refuses the newer one: the earlier one stays.
        let refuses = |table: &mut ReleaseTable, cause: &str| table.set_fault("m", cause.to_owned());
        assert!(refuses(&mut table, "too small") && refuses(&mut table, "too large"));
        assert!(!refuses(&mut table, "too large"), "it is logged once");
        assert!(table.leave_others(&[offer(4, "1", "e", false).description], |_| true).is_empty());
        assert!(table.leave_others(&[], |_| false).is_empty());
        assert_eq!(table.leave_others(&[], |_| true), [ModelId(0)]);
        assert!(table.names().contains("m") && !table.serves_name("m"));
    }
}
