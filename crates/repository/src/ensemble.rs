//! Ensembles: models as the steps of a graph, which one request runs under one deadline.
//!
//! An ensemble is no model of the scheduler: its steps are, and a front end sends each of them off once what it needs is there. Its
//! models are looked up anew for each request: they may be loaded again meanwhile.

use ripieno_model::StepGraph;
use ripieno_runtime::ModelMetrics;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Models as the steps of a graph.
pub struct Ensemble {
    /// The steps, in the order of the file; those of inner ensembles in the place of these.
    pub steps: Vec<EnsembleStep>,
    /// Which step needs which.
    pub graph: StepGraph,
    /// The names of inner ensembles.
    pub nested: BTreeSet<String>,
    /// Counts the requests to the whole that have ended.
    pub metrics: ModelMetrics,
    /// And those that have not: whoever holds one of these.
    under_way: Arc<()>,
}

impl Ensemble {
    pub(super) fn new(steps: Vec<EnsembleStep>, nested: BTreeSet<String>, graph: StepGraph) -> Ensemble {
        Ensemble { steps, graph, nested, metrics: ModelMetrics::new(1), under_way: Arc::new(()) }
    }

    /// A request that is under way until this is dropped.
    pub fn begin(&self) -> Arc<()> {
        Arc::clone(&self.under_way)
    }

    /// How many requests are under way.
    pub fn live(&self) -> usize {
        Arc::strong_count(&self.under_way) - 1
    }
}

/// A model, and where its tensors come from and go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    /// The model.
    pub model: String,
    /// Its version; empty for the newest.
    pub version: String,
    /// Each of its inputs with the tensor that it is.
    pub inputs: BTreeMap<String, String>,
    /// Each of its outputs that is of use with the tensor that it becomes.
    pub outputs: BTreeMap<String, String>,
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ensemble").field("steps", &self.steps).finish_non_exhaustive()
    }
}
