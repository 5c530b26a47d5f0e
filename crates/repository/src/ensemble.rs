//! Ensembles: graphs of models that one request executes under one deadline.
//!
//! The scheduler sees the steps, not the ensemble; the server submits each step once its inputs are
//! available. Member models are looked up for each request, because they may be reloaded in the
//! meantime.

use ripieno_model::StepGraph;
use ripieno_runtime::ModelMetrics;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A graph of models.
pub struct Ensemble {
    /// Steps in the order of the file, with inner ensembles replaced by their steps.
    pub steps: Vec<EnsembleStep>,
    /// Dependencies between the steps.
    pub graph: StepGraph,
    /// Names of inner ensembles.
    pub nested: BTreeSet<String>,
    /// Counters of finished requests to the ensemble.
    pub metrics: ModelMetrics,
    /// Token whose clones count the requests in flight.
    under_way: Arc<()>,
}

impl Ensemble {
    pub(super) fn new(steps: Vec<EnsembleStep>, nested: BTreeSet<String>, graph: StepGraph) -> Ensemble {
        Ensemble { steps, graph, nested, metrics: ModelMetrics::new(1), under_way: Arc::new(()) }
    }

    /// Counts a request as in flight until the token is dropped.
    pub fn begin(&self) -> Arc<()> {
        Arc::clone(&self.under_way)
    }

    /// Returns the number of requests in flight.
    pub fn live(&self) -> usize {
        Arc::strong_count(&self.under_way) - 1
    }
}

/// A model, and the mapping of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsembleStep {
    /// Model name.
    pub model: String,
    /// Model version; empty for the newest.
    pub version: String,
    /// Ensemble tensor for each of the model's inputs.
    pub inputs: BTreeMap<String, String>,
    /// Ensemble tensor for each of the model's outputs that is used.
    pub outputs: BTreeMap<String, String>,
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ensemble").field("steps", &self.steps).finish_non_exhaustive()
    }
}
