//! Keys of a scenario for planning: sizes of models, bounds of sub-clusters.
//!
//! `simulate` and `goodput` ignore these keys and `ripieno plan` reads them. They are in the same
//! file since the load and the models are the same, so that a planned capacity can be simulated.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The `[plan]` table, checked. All of it is optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planning {
    /// Number of sub-clusters.
    pub sub_clusters: Option<usize>,
    /// Memory of each device.
    pub memory_mb_per_device: Option<f64>,
    /// Largest rate of one sub-cluster, in requests per second.
    pub max_rate: Option<f64>,
    /// Weight of the balance of memory relative to the balance of rate.
    pub memory_weight: Option<f64>,
    /// Imbalance below which no model is moved.
    pub target_imbalance: Option<f64>,
    /// Upper bound on the cost of moves.
    pub max_disruption: Option<u64>,
    /// The current partition: the JSON output of an earlier plan.
    pub current: Option<PathBuf>,
    /// Footprints by model.
    pub models: Vec<Footprint>,
}

/// The resources for loading a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    /// Memory while it is loaded; `None` if it was not given.
    pub memory_mb: Option<f64>,
    /// Additional memory while it runs.
    pub runtime_memory_mb: f64,
    /// Cost of loading or unloading it.
    pub load_cost: u64,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PlanTable {
    sub_clusters: Option<usize>,
    memory_mb_per_device: Option<f64>,
    max_rate: Option<f64>,
    memory_weight: Option<f64>,
    target_imbalance: Option<f64>,
    max_disruption: Option<u64>,
    current: Option<PathBuf>,
}

impl PlanTable {
    /// Checks the table; `current` is relative to `folder`.
    pub(crate) fn parse(&self, folder: &Path, models: Vec<Footprint>) -> Result<Planning, String> {
        if self.sub_clusters == Some(0) {
            return Err("plan.sub_clusters = 0; it must be at least 1".to_owned());
        }
        Ok(Planning {
            sub_clusters: self.sub_clusters,
            memory_mb_per_device: number("plan.memory_mb_per_device", self.memory_mb_per_device)?,
            max_rate: number("plan.max_rate", self.max_rate)?,
            memory_weight: number("plan.memory_weight", self.memory_weight)?,
            target_imbalance: number("plan.target_imbalance", self.target_imbalance)?,
            max_disruption: self.max_disruption,
            current: self.current.as_ref().map(|file| folder.join(file)),
            models,
        })
    }
}

impl Footprint {
    /// Checks the keys of a `[[model]]` table.
    pub(crate) fn parse(
        model: &str,
        memory_mb: Option<f64>,
        runtime_memory_mb: Option<f64>,
        load_cost: Option<u64>,
    ) -> Result<Footprint, String> {
        let context = |problem: String| format!("model {model:?}: {problem}");
        Ok(Footprint {
            memory_mb: number("memory_mb", memory_mb).map_err(context)?,
            runtime_memory_mb: number("runtime_memory_mb", runtime_memory_mb).map_err(context)?.unwrap_or(0.0),
            load_cost: load_cost.unwrap_or(1),
        })
    }
}

fn number(key: &str, value: Option<f64>) -> Result<Option<f64>, String> {
    match value {
        Some(number) if !(number.is_finite() && number >= 0.0) => {
            Err(format!("{key} = {number}; it must be a number of at least 0"))
        }
        _ => Ok(value),
    }
}
