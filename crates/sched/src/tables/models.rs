//! The models that a scheduler serves, and the options about batches of each.

use crate::contract::knobs::{BuildError, Knobs};
use crate::{Limits, Request, Setup};
use ripieno_base::{BlockId, ModelId};
use ripieno_model::{DropRule, Model, Profile};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

/// A loaded model: the common data, and the policy's own.
#[derive(Debug)]
pub struct ModelEntry<T> {
    /// The model as loaded.
    pub model: Model,
    /// The drop rule in force.
    pub drop: DropRule,
    /// The largest batch in rows; a wider request runs alone.
    pub max_batch: usize,
    /// True if the model accepts no further requests.
    pub retired: bool,
    /// The scheduler's own state of the model.
    pub own: T,
}

impl<T> Deref for ModelEntry<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.own
    }
}

impl<T> DerefMut for ModelEntry<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.own
    }
}

/// All models, by id. An unloaded one stays until its id is used again, since its requests may
/// still run.
#[derive(Debug)]
pub struct Models<T> {
    /// Options for models without values of their own.
    options: BatchOptions,
    /// Models by id; `None` for an id that was never used.
    table: Vec<Option<ModelEntry<T>>>,
}

impl<T> Models<T> {
    /// Creates a table without models.
    pub fn new(limits: &Limits, options: BatchOptions) -> Models<T> {
        Models { options, table: (0..limits.models).map(|_| None).collect() }
    }

    /// Loads a model; `own` receives the model and its largest batch.
    pub fn load(&mut self, id: ModelId, model: Model, own: impl FnOnce(&Model, usize) -> T) {
        let place = &mut self.table[id.index()];
        assert!(place.as_ref().is_none_or(|served| served.retired), "the id of a loaded model was reused: {id:?}");
        let drop = model.drop.unwrap_or(self.options.drop);
        let max_batch = self.options.max_batch.of(&model).unwrap_or(usize::MAX).min(model.max_batch);
        let own = own(&model, max_batch);
        *place = Some(ModelEntry { model, drop, max_batch, retired: false, own });
    }

    /// Returns a model, which must be loaded.
    pub fn get(&self, id: ModelId) -> &ModelEntry<T> {
        self.table[id.index()].as_ref().expect("a model stays while its requests live")
    }

    /// Returns a model mutably; it must be loaded.
    pub fn get_mut(&mut self, id: ModelId) -> &mut ModelEntry<T> {
        self.table[id.index()].as_mut().expect("a model stays while its requests live")
    }

    /// Returns the model of this id, if there is one.
    pub fn find(&self, id: ModelId) -> Option<&ModelEntry<T>> {
        self.table[id.index()].as_ref()
    }

    /// Returns the model of a request that has arrived.
    pub fn of_newcomer(&mut self, request: &Request) -> &mut ModelEntry<T> {
        let served = self.table[request.model.index()].as_mut().filter(|served| !served.retired);
        let served = served.expect("the driver sends requests of loaded models only");
        let rows = request.rows as usize;
        assert!(rows >= 1 && rows <= served.model.max_batch, "the driver splits large requests: {request:?}");
        served
    }

    /// Returns the capacity of the table: ids are below it.
    pub fn capacity(&self) -> usize {
        self.table.len()
    }

    /// Returns all models, including unloaded ones with running requests.
    pub fn iter(&self) -> impl Iterator<Item = (ModelId, &ModelEntry<T>)> {
        self.table.iter().zip(0..).filter_map(|(served, id)| Some((ModelId(id), served.as_ref()?)))
    }

    /// Returns all models with their ids, including unloaded ones with live requests.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ModelId, &mut ModelEntry<T>)> {
        self.table.iter_mut().zip(0..).filter_map(|(served, id)| Some((ModelId(id), served.as_mut()?)))
    }

    /// Replaces the profile of a block. Returns the model, whose derived data is to be updated.
    pub fn replace_profile(&mut self, id: ModelId, block: BlockId, profile: Profile) -> &mut ModelEntry<T> {
        let served = self.get_mut(id);
        served.model.blocks[block.index()].replace_profile(profile);
        served
    }
}

/// Options about batches that every policy has.
#[derive(Clone, Debug)]
pub struct BatchOptions {
    /// The rule for models without one of their own.
    pub drop: DropRule,
    /// Largest batch in rows; `None`: the model's own.
    pub max_batch: PerModel<Option<usize>>,
}

impl BatchOptions {
    /// Reads the options; `drop` is the policy's default rule.
    pub fn read(setup: &Setup, knobs: &Knobs<'_>, drop: DropRule) -> Result<BatchOptions, BuildError> {
        let max_batch = PerModel::read(&setup.models, |model| knobs.count("max_batch", model))?;
        Ok(BatchOptions { max_batch, ..BatchOptions::unbounded(knobs, drop)? })
    }

    /// Reads the options of a policy that does not bound batches.
    pub fn unbounded(knobs: &Knobs<'_>, drop: DropRule) -> Result<BatchOptions, BuildError> {
        let rules = [("hopeless", DropRule::Hopeless), ("expired", DropRule::Expired), ("never", DropRule::Never)];
        Ok(BatchOptions { drop: knobs.choice("drop", &rules, drop)?, max_batch: PerModel::all(None) })
    }
}

/// A value that may differ per model: one for the models that have their own, one for the others.
#[derive(Clone, Debug)]
pub struct PerModel<T> {
    /// Values of the models that have their own, by name.
    own: BTreeMap<String, T>,
    /// Value of all other models.
    others: T,
}

impl<T: Copy> PerModel<T> {
    /// Returns the same value for all models.
    pub fn all(value: T) -> PerModel<T> {
        PerModel { own: BTreeMap::new(), others: value }
    }

    /// Calls `read` with the name of each model, and once with `None` for the value of models that
    /// are loaded later.
    pub fn read<E>(models: &[Model], read: impl Fn(Option<&str>) -> Result<T, E>) -> Result<PerModel<T>, E> {
        let own = models.iter().map(|model| Ok((model.name.clone(), read(Some(&model.name))?)));
        Ok(PerModel { own: own.collect::<Result<_, _>>()?, others: read(None)? })
    }

    /// Returns the value for a model.
    pub fn of(&self, model: &Model) -> T {
        self.own.get(&model.name).copied().unwrap_or(self.others)
    }
}
