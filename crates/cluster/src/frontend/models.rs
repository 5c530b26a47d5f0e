//! The models as a front end knows them: by ids of its own, which stay when the scheduler is another.

use super::table::Counts;
use crate::description::{Description, RemoteModel};
use ripieno_base::ModelId;
use ripieno_executor::Loaded;
use ripieno_runtime::OpenDims;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model that requests may be for.
pub(super) struct KnownModel {
    /// What the primary calls it.
    pub(super) id: ModelId,
    description: Description,
    loaded: RemoteModel,
    pub(super) open: OpenDims,
    pub(super) counts: Arc<Counts>,
}

impl KnownModel {
    /// Checks requests.
    pub(super) fn loaded(&self) -> &dyn Loaded {
        &self.loaded
    }

    /// When a request that came then is too late; never if none.
    pub(super) fn expires(&self, came: Instant, timeout: Option<Duration>) -> Option<Instant> {
        let slo = Duration::from_nanos(self.description.model.slo.0.unsigned_abs());
        let slo = (!self.description.answer_late).then_some(slo);
        came.checked_add(timeout.into_iter().chain(slo).min()?)
    }
}

/// All models that were ever told of, by id; none of those that are not served now.
#[derive(Default)]
pub(super) struct Models {
    names: Vec<(String, String)>,
    known: Vec<Option<Arc<KnownModel>>>,
}

impl Models {
    pub(super) fn get(&self, id: ModelId) -> Option<Arc<KnownModel>> {
        self.known.get(id.index())?.clone()
    }

    /// A scheduler serves these from now on, and no others; by the ids that they have here.
    pub(super) fn renew(&mut self, models: Vec<(ModelId, Description)>) -> Result<Vec<(ModelId, Description)>, String> {
        let before = std::mem::take(&mut self.known);
        self.known = self.names.iter().map(|_| None).collect();
        let mut served = Vec::with_capacity(models.len());
        for (id, description) in models {
            let own = self.id_of(&description)?;
            let counted = before.get(own.index()).and_then(Option::as_ref).map(|model| Arc::clone(&model.counts));
            let counts = counted.unwrap_or_else(Counts::new);
            let loaded = RemoteModel::new(&description, 0)?;
            let open = OpenDims::of(&loaded, false);
            served.push((own, description.clone()));
            self.known[own.index()] = Some(Arc::new(KnownModel { id, description, loaded, open, counts }));
        }
        Ok(served)
    }

    fn id_of(&mut self, description: &Description) -> Result<ModelId, String> {
        let name = (description.name.clone(), description.version.clone());
        let at = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.known.push(None);
            self.names.len() - 1
        });
        u16::try_from(at).map(ModelId).map_err(|_| "more models than there are ids".to_owned())
    }
}
