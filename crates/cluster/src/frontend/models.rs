//! The models as a frontend knows them: by ids of its own, which stay the same when another
//! scheduler becomes the primary.

use super::counters::ModelCounters;
use super::pending::AnswerLimits;
use crate::description::{ModelDescription, RemoteModel};
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::LoadedModel;
use ripieno_model::Walk;
use ripieno_runtime::OpenDims;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model that requests can name.
pub(super) struct FrontendModel {
    /// The primary's id of the model.
    pub(super) id: ModelId,
    description: ModelDescription,
    loaded: RemoteModel,
    pub(super) open: OpenDims,
    pub(super) counts: Arc<ModelCounters>,
}

impl FrontendModel {
    /// Returns the model that requests are checked against.
    pub(super) fn loaded(&self) -> &dyn LoadedModel {
        &self.loaded
    }

    /// Returns true if an answer may come step by step.
    pub(super) fn streams(&self) -> bool {
        self.description.streams
    }

    /// Returns whether each row runs in one batch.
    pub(super) fn is_whole(&self) -> bool {
        self.description.model.walk == Walk::Whole
    }

    /// Returns the limits of a request that arrived at `came` and has this timeout.
    pub(super) fn limits(&self, came: Instant, timeout: Option<Duration>) -> AnswerLimits {
        let slo = Duration::from_nanos(self.description.model.slo.0.unsigned_abs());
        let due = came.checked_add(timeout.unwrap_or(slo).min(slo));
        let own = timeout.and_then(|timeout| came.checked_add(timeout));
        AnswerLimits { due, expires: if self.description.answer_late { own } else { due } }
    }
}

/// All models that were ever described, by id; `None` for a model that is no longer served.
#[derive(Default)]
pub(super) struct FrontendModels {
    names: Vec<(String, String)>,
    known: Vec<Option<Arc<FrontendModel>>>,
    /// Models of the primary's list before this one: a request that was routed by that list still
    /// arrives, and the scheduler runs it.
    former: Vec<Option<Arc<FrontendModel>>>,
}

impl FrontendModels {
    pub(super) fn get(&self, id: ModelId) -> Option<Arc<FrontendModel>> {
        let of = |models: &[Option<Arc<FrontendModel>>]| models.get(id.index()).cloned().flatten();
        of(&self.known).or_else(|| of(&self.former))
    }

    /// Returns the id, the name and the SLO of each served model.
    pub(super) fn served(&self) -> Vec<(ModelId, String, Nanos)> {
        let served = (0..).zip(&self.known).filter_map(|(id, model)| Some((ModelId(id), model.as_ref()?)));
        served.map(|(id, model)| (id, model.description.name.clone(), model.description.model.slo)).collect()
    }

    /// Returns true if each served model has a version in this list.
    pub(super) fn are_in(&self, models: &[(ModelId, ModelDescription)]) -> bool {
        let listed = |name: &str| models.iter().any(|(_, model)| model.name == name);
        self.known.iter().flatten().all(|model| listed(&model.description.name))
    }

    /// Replaces the served models, and returns them by the frontend's own ids. Ids of the earlier
    /// list mean nothing to another primary.
    pub(super) fn replace(
        &mut self,
        models: Vec<(ModelId, ModelDescription)>,
        is_same_primary: bool,
    ) -> Result<Vec<(ModelId, ModelDescription)>, String> {
        let before = std::mem::take(&mut self.known);
        self.former = if is_same_primary { before.clone() } else { Vec::new() };
        self.known = self.names.iter().map(|_| None).collect();
        let mut served = Vec::with_capacity(models.len());
        for (id, description) in models {
            let own = self.id_of(&description)?;
            let counted = before.get(own.index()).and_then(Option::as_ref).map(|model| Arc::clone(&model.counts));
            let counts = counted.unwrap_or_else(ModelCounters::new);
            let loaded = RemoteModel::new(&description)?;
            let open = OpenDims::of(&loaded, description.walks.is_some());
            served.push((own, description.clone()));
            self.known[own.index()] = Some(Arc::new(FrontendModel { id, description, loaded, open, counts }));
        }
        Ok(served)
    }

    fn id_of(&mut self, description: &ModelDescription) -> Result<ModelId, String> {
        let name = (description.name.clone(), description.version.clone());
        let at = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.known.push(None);
            self.names.len() - 1
        });
        u16::try_from(at).map(ModelId).map_err(|_| "more models than there are ids".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::described;

    #[test]
    fn a_model_that_is_no_longer_listed_stays_known_for_one_more_list_of_the_same_primary() {
        let listed = |version: &str| {
            let model = ModelDescription { version: version.to_owned(), ..described() };
            vec![(ModelId(7), model)]
        };
        let mut models = FrontendModels::default();
        let first = models.replace(listed("1"), false).unwrap()[0].0;
        let second = models.replace(listed("2"), true).unwrap()[0].0;
        assert!(models.get(first).is_some() && models.get(second).is_some());
        models.replace(listed("2"), true).unwrap();
        assert!(models.get(first).is_none() && models.get(second).is_some());
        models.replace(listed("3"), false).unwrap();
        assert!(models.get(second).is_none(), "another primary has other ids");
        assert!(models.are_in(&listed("4")) && !models.are_in(&[]), "another version is the same model");
        assert!(FrontendModels::default().are_in(&[]), "none is served");
    }
}
