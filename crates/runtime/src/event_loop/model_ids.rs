//! Allocation of model ids, and the lookup of models by server threads.
//!
//! An id passes through the states free, held, serving, leaving, and free again. An id is held
//! while its model is being loaded. It is leaving from the unload until the scheduler thread has
//! seen the model's last request end. So an id never refers to two models. Ids are assigned round
//! robin. Otherwise a request that looked up a model just before its unload could reach the next
//! model with the same id.

use crate::learn::capacity::ModelEntry;
use parking_lot::RwLock;
use ripieno_base::ModelId;
use std::sync::Arc;

/// All model ids.
pub(crate) struct ModelIds(RwLock<IdTable>);

struct IdTable {
    states: Box<[IdState]>,
    /// Index at which the search for a free id starts.
    next: usize,
}

#[derive(Clone)]
enum IdState {
    Free,
    Serving(Arc<ModelEntry>),
    /// The model was unloaded, but its requests may still run.
    Leaving(Arc<ModelEntry>),
    Held,
}

impl ModelIds {
    pub(crate) fn new(models: usize) -> ModelIds {
        ModelIds(RwLock::new(IdTable { states: vec![IdState::Free; models].into(), next: 0 }))
    }

    /// Returns the model with this id, if it is being served.
    pub(crate) fn get(&self, id: ModelId) -> Option<Arc<ModelEntry>> {
        match self.0.read().states.get(id.index()) {
            Some(IdState::Serving(entry)) => Some(Arc::clone(entry)),
            _ => None,
        }
    }

    /// Reserves a free id, which [`ModelIds::serve`] then uses; `None` if every id is taken.
    pub(crate) fn reserve(&self) -> Option<ModelId> {
        let mut table = self.0.write();
        let ids = table.states.len();
        let mut in_turn = (0..ids).map(|step| (table.next + step) % ids);
        let at = in_turn.find(|&at| matches!(table.states[at], IdState::Free))?;
        table.states[at] = IdState::Held;
        table.next = at + 1;
        Some(ModelId(at as u16))
    }

    pub(crate) fn serve(&self, id: ModelId, entry: Arc<ModelEntry>) {
        self.0.write().states[id.index()] = IdState::Serving(entry);
    }

    /// Refuses further requests for the model. Returns false if the model is not being served.
    pub(crate) fn leave(&self, id: ModelId) -> bool {
        let mut table = self.0.write();
        let Some(state) = table.states.get_mut(id.index()) else { return false };
        let IdState::Serving(entry) = state else { return false };
        *state = IdState::Leaving(Arc::clone(entry));
        true
    }

    pub(crate) fn free(&self, id: ModelId) {
        self.0.write().states[id.index()] = IdState::Free;
    }

    /// Returns the models that a joining device must know, ordered by id: served models, and
    /// unloaded ones whose requests may still run.
    pub(crate) fn running(&self) -> Vec<(ModelId, Arc<ModelEntry>)> {
        let table = self.0.read();
        let known = (0..).map(ModelId).zip(&table.states).filter_map(|(id, state)| match state {
            IdState::Serving(entry) | IdState::Leaving(entry) => Some((id, Arc::clone(entry))),
            IdState::Free | IdState::Held => None,
        });
        known.collect()
    }

    /// Returns the served models, ordered by id.
    pub(crate) fn serving(&self) -> Vec<(ModelId, Arc<ModelEntry>)> {
        let table = self.0.read();
        let served = table.states.iter().enumerate().filter_map(|(at, state)| match state {
            IdState::Serving(entry) => Some((ModelId(at as u16), Arc::clone(entry))),
            _ => None,
        });
        served.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::served;

    #[test]
    fn ids_are_given_in_turn() {
        let registry = ModelIds::new(3);
        let given = [0, 1, 2, 0].map(|_| {
            let id = registry.reserve().unwrap();
            registry.free(id);
            id.0
        });
        assert_eq!(given, [0, 1, 2, 0]);
    }

    #[test]
    fn an_id_is_free_again_only_when_its_model_has_gone() {
        let registry = ModelIds::new(1);
        let id = registry.reserve().unwrap();
        assert!(registry.reserve().is_none());
        assert!(registry.get(id).is_none() && !registry.leave(id));
        registry.serve(id, Arc::new(ModelEntry::new(&served(1, 1))));
        assert!(registry.get(id).is_some() && registry.reserve().is_none());
        assert!(registry.leave(id) && !registry.leave(id));
        assert!(registry.get(id).is_none() && registry.reserve().is_none());
        registry.free(id);
        assert_eq!(registry.reserve(), Some(id));
        assert!(registry.get(ModelId(9)).is_none() && !registry.leave(ModelId(9)));
    }
}
