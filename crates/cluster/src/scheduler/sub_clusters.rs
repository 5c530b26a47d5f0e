//! The sub-clusters of a scheduler: each has an engine of its own, with its own event loop.
//!
//! Towards frontends a model has one number, which holds its sub-cluster and the engine's id. So a
//! request finds its engine without a table, and a client sees one cluster.

use super::releases::ReleaseTable;
use super::{SchedulerShared, StartedEngine};
use crate::description::ModelDescription;
use parking_lot::Mutex;
use ripieno_base::ModelId;
use ripieno_runtime::{Engine, NetworkDelay};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Number of ids of each sub-cluster.
const IDS: u16 = 256;

/// The engine of a sub-cluster, and its models.
pub(super) struct SubClusterEngine {
    /// Position in the plan.
    pub(super) place: usize,
    pub(super) engine: Engine,
    /// Number of connected backends that the engine has had as devices.
    pub(super) devices: AtomicUsize,
    /// The largest number of tasks on each lane of a device.
    pub(super) depth: usize,
    /// The quantile of measured delays that the policy plans with, in thousandths; `None`: it plans
    /// with none of them.
    pub(super) delay_permille: Option<u32>,
    /// The delay that the policy plans with; `None` before enough was measured.
    pub(super) delay: Mutex<Option<NetworkDelay>>,
    pub(super) models: Mutex<ReleaseTable>,
}

/// The sub-clusters, by their place; empty before the first backend.
#[derive(Clone, Default)]
pub(super) struct SubClusters(Arc<Vec<Arc<SubClusterEngine>>>);

/// The engines and models of a scheduler.
#[derive(Clone)]
pub struct ServedCluster {
    engines: Vec<Engine>,
    models: Vec<(ModelId, ModelDescription)>,
}

impl ServedCluster {
    /// Returns the engine of each sub-cluster.
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Returns the models, by the numbers that frontends name.
    pub fn models(&self) -> &[(ModelId, ModelDescription)] {
        &self.models
    }

    /// Returns the engine of a model, and its id there.
    pub fn engine_of(&self, model: ModelId) -> Option<(&Engine, ModelId)> {
        let (place, id) = split(model);
        Some((self.engines.get(place)?, id))
    }
}

/// Returns the sub-cluster of a model's number, and the id of its engine.
pub(super) fn split(model: ModelId) -> (usize, ModelId) {
    (usize::from(model.0 / IDS), ModelId(model.0 % IDS))
}

impl SubClusterEngine {
    /// Returns the number that frontends know a model by.
    pub(super) fn number(&self, id: ModelId) -> ModelId {
        ModelId(self.place as u16 * IDS + id.0)
    }

    /// Returns the models that frontends may name, by their numbers.
    pub(super) fn listed(&self) -> Vec<(ModelId, ModelDescription)> {
        let listed = self.models.lock().listed();
        listed.into_iter().map(|(id, description)| (self.number(id), description)).collect()
    }

    /// Checks that the lanes of a backend are deep enough for the policy.
    pub(super) fn takes(&self, depth: usize) -> Result<(), String> {
        let needed = self.depth;
        if depth >= needed {
            return Ok(());
        }
        Err(format!("its lanes hold {depth} tasks, and the policy queues {needed} of them"))
    }
}

impl SubClusters {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<SubClusterEngine>> {
        self.0.iter()
    }

    pub(super) fn get(&self, place: usize) -> Option<&Arc<SubClusterEngine>> {
        self.0.get(place)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all models that frontends may name.
    pub(super) fn listed(&self) -> Vec<(ModelId, ModelDescription)> {
        self.iter().flat_map(|part| part.listed()).collect()
    }

    pub(super) fn served(&self) -> ServedCluster {
        ServedCluster { engines: self.iter().map(|part| part.engine.clone()).collect(), models: self.listed() }
    }
}

impl SchedulerShared {
    /// Starts the engines of sub-clusters that have none; a sub-cluster never loses its engine.
    pub(super) fn start_engines(&self, known: &SubClusters, number: usize) -> Result<SubClusters, String> {
        let mut all: Vec<Arc<SubClusterEngine>> = known.iter().cloned().collect();
        for place in all.len()..number {
            let StartedEngine { engine, depth, delay_permille } = (self.start)()?;
            let (devices, delay, models) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
            all.push(Arc::new(SubClusterEngine { place, engine, devices, depth, delay_permille, delay, models }));
        }
        Ok(SubClusters(Arc::new(all)))
    }
}
