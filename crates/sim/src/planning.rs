//! What a scenario says for planning, beside the load: sizes of models, bounds of sub-clusters.
//!
//! `simulate` and `goodput` pass over these keys and `ripieno plan` reads them; they stand in the same file because the
//! load and the models are the same, and a capacity that was planned for is then simulated.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The `[plan]` table, checked. All of it is optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planning {
    /// Into how many sub-clusters.
    pub sub_clusters: Option<usize>,
    /// Memory of each device.
    pub memory_mb_per_device: Option<f64>,
    /// The most requests per second that one sub-cluster may get.
    pub max_rate: Option<f64>,
    /// What balance of memory counts beside balance of rate.
    pub memory_weight: Option<f64>,
    /// The imbalance that is not worth a move.
    pub target_imbalance: Option<f64>,
    /// The most that moves may cost.
    pub max_disruption: Option<u64>,
    /// The partition that runs now: the JSON output of an earlier plan.
    pub current: Option<PathBuf>,
    /// By model.
    pub models: Vec<Footprint>,
}

/// What loading a model takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    /// Memory as long as it is loaded; none if it was not given.
    pub memory_mb: Option<f64>,
    /// Memory beyond that while it runs.
    pub runtime_memory_mb: f64,
    /// What loading or unloading it costs.
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
    /// Checks the table; `current` is looked up in `folder`.
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
    /// Checks what a `[[model]]` table says.
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
