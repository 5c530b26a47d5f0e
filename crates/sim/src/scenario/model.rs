//! A `[[model]]` table: what it costs, how a request walks through it, how its requests arrive.

use super::{Checked, Load, unique};
use crate::changing::{DriftTable, GivenModel};
use crate::planning::Footprint;
use ripieno_base::Nanos;
use ripieno_model::{Block, DropRule, Model, Profile, Walk};
use ripieno_workload::Arrival as Process;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelTable {
    name: String,
    slo_ms: f64,
    alpha_ms: Option<f64>,
    beta_ms: Option<f64>,
    latency_ms: Option<Vec<f64>>,
    max_batch: Option<usize>,
    instances: Option<usize>,
    #[serde(default = "one_share")]
    share: f64,
    #[serde(default)]
    arrival: ArrivalTable,
    rates: Option<Vec<(f64, f64)>>,
    drift: Option<DriftTable>,
    drop: Option<String>,
    memory_mb: Option<f64>,
    runtime_memory_mb: Option<f64>,
    load_cost: Option<u64>,
    walk: Option<String>,
    #[serde(default)]
    block: Vec<BlockTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockTable {
    name: String,
    alpha_ms: Option<f64>,
    beta_ms: Option<f64>,
    latency_ms: Option<Vec<f64>>,
    max_batch: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArrivalTable {
    kind: Option<String>,
    shape: Option<f64>,
}

fn one_share() -> f64 {
    1.0
}

/// Each model's share of the rate, as a fraction, and its arrival process.
pub(super) fn loads(models: &[ModelTable]) -> Checked<Vec<Load>> {
    let bad = |model: &&ModelTable| !(model.share.is_finite() && model.share >= 0.0);
    if let Some(model) = models.iter().find(bad) {
        return Err(format!("model {:?}: share = {}; it must be at least 0", model.name, model.share));
    }
    let total: f64 = models.iter().map(|model| model.share).sum();
    if total <= 0.0 {
        return Err("the shares of all models are 0; give at least one model a share above 0".to_owned());
    }
    let load = |model: &ModelTable| {
        let arrival = model.arrival.parse(&model.name)?;
        Ok(Load { share: model.share / total, arrival, curve: None })
    };
    models.iter().map(load).collect()
}

impl ModelTable {
    /// How its rate changes over time, where `load_changes`.
    pub(super) fn given(&self, load: &Load) -> GivenModel<'_> {
        let ModelTable { name, share, rates, drift, .. } = self;
        GivenModel { name, share: *share, rates: rates.as_deref(), drift: drift.as_ref(), arrival: load.arrival }
    }

    pub(super) fn load_changes(&self) -> bool {
        self.rates.is_some() || self.drift.is_some()
    }

    pub(super) fn footprint(&self) -> Checked<Footprint> {
        Footprint::parse(&self.name, self.memory_mb, self.runtime_memory_mb, self.load_cost)
    }

    pub(super) fn model(&self) -> Checked<Model> {
        let context = |problem: String| format!("model {:?}: {problem}", self.name);
        let slo = milliseconds("slo_ms", self.slo_ms).map_err(context)?;
        if slo <= Nanos::ZERO {
            return Err(context(format!("slo_ms = {}; it must be above 0", self.slo_ms)));
        }
        if self.max_batch == Some(0) {
            return Err(context("max_batch = 0; it must be at least 1".to_owned()));
        }
        let (walk, blocks) = self.walk(slo).map_err(context)?;
        let longest = blocks.iter().map(|block| block.profile.max_batch()).min().unwrap_or(1);
        let max_batch = self.max_batch.unwrap_or(longest);
        if !(1..=longest).contains(&max_batch) {
            return Err(context(format!("max_batch = {max_batch}; the latencies given allow 1 to {longest}")));
        }
        let instances = self.instances.unwrap_or(usize::MAX);
        if instances == 0 {
            return Err(context("instances = 0; it must be at least 1".to_owned()));
        }
        let drop = self.drop.as_deref().map(drop_rule).transpose().map_err(context)?;
        Ok(Model { name: self.name.clone(), blocks, walk, slo, max_batch, instances, drop })
    }

    fn walk(&self, slo: Nanos) -> Checked<(Walk, Vec<Block>)> {
        let costs = |max_batch| Costs {
            alpha_ms: self.alpha_ms,
            beta_ms: self.beta_ms,
            latency_ms: self.latency_ms.as_deref(),
            max_batch,
        };
        match self.walk.as_deref().unwrap_or("whole") {
            "whole" if self.block.is_empty() => {
                let profile = costs(self.max_batch).profile(slo)?;
                Ok((Walk::Whole, vec![Block::new(&self.name, profile)]))
            }
            "whole" => Err("[[model.block]] tables need walk = \"chain\"".to_owned()),
            "chain" if self.block.is_empty() => Err("walk = \"chain\" needs [[model.block]] tables".to_owned()),
            "chain" if costs(None).given() => Err("with blocks, give latencies in each block, not here".to_owned()),
            "chain" => {
                unique(self.block.iter().map(|block| block.name.as_str()))?;
                let blocks = self.block.iter().map(|block| block.block(self.max_batch, slo));
                Ok((Walk::Chain, blocks.collect::<Checked<_>>()?))
            }
            other => Err(format!("walk = {other:?}; it must be \"whole\" or \"chain\"")),
        }
    }
}

impl BlockTable {
    fn block(&self, max_batch: Option<usize>, slo: Nanos) -> Checked<Block> {
        let costs = Costs {
            alpha_ms: self.alpha_ms,
            beta_ms: self.beta_ms,
            latency_ms: self.latency_ms.as_deref(),
            max_batch: self.max_batch.or(max_batch),
        };
        let profile = costs.profile(slo).map_err(|problem| format!("block {:?}: {problem}", self.name))?;
        Ok(Block::new(&self.name, profile))
    }
}

struct Costs<'a> {
    alpha_ms: Option<f64>,
    beta_ms: Option<f64>,
    latency_ms: Option<&'a [f64]>,
    max_batch: Option<usize>,
}

impl Costs<'_> {
    fn given(&self) -> bool {
        self.alpha_ms.is_some() || self.beta_ms.is_some() || self.latency_ms.is_some()
    }

    fn profile(&self, slo: Nanos) -> Checked<Profile> {
        let (keys, profile) = match (self.alpha_ms, self.beta_ms, self.latency_ms) {
            (None, None, Some(table)) => {
                let latency = |(batch, &ms): (usize, &f64)| milliseconds(&format!("latency_ms[{batch}]"), ms);
                let table = table.iter().enumerate().map(latency).collect::<Checked<Vec<_>>>()?;
                ("latency_ms", Profile::from_table(&table))
            }
            (Some(alpha), Some(beta), None) => {
                milliseconds("alpha_ms", alpha)?;
                milliseconds("beta_ms", beta)?;
                // Batches beyond the SLO could never be punctual.
                let useful = ((slo.as_millis_f64() - beta) / alpha).clamp(1.0, 1024.0) as usize;
                ("alpha_ms and beta_ms", Profile::linear(alpha, beta, self.max_batch.unwrap_or(useful)))
            }
            _ => return Err("give either alpha_ms and beta_ms, or latency_ms = [l(1), l(2), …]".to_owned()),
        };
        profile.map_err(|error| format!("{keys}: {error}"))
    }
}

/// Longer spans than this, eleven days, are no latencies.
const LONGEST_MS: f64 = 1e9;

fn milliseconds(key: &str, value: f64) -> Checked<Nanos> {
    match (0.0..=LONGEST_MS).contains(&value) {
        true => Ok(Nanos::from_millis_f64(value)),
        false => Err(format!("{key} = {value}; it must be a number of milliseconds from 0 to {LONGEST_MS}")),
    }
}

impl ArrivalTable {
    fn parse(&self, model: &str) -> Checked<Process> {
        let text = match (self.kind.as_deref().unwrap_or("poisson"), self.shape) {
            ("gamma", Some(shape)) => format!("gamma:{shape}"),
            ("gamma", None) => return Err(format!("model {model:?}: arrival kind \"gamma\" needs a shape")),
            (_, Some(_)) => return Err(format!("model {model:?}: only arrival kind \"gamma\" has a shape")),
            (kind, None) => kind.to_owned(),
        };
        text.parse().map_err(|error| format!("model {model:?}: {error}"))
    }
}

fn drop_rule(text: &str) -> Checked<DropRule> {
    match text {
        "hopeless" => Ok(DropRule::Hopeless),
        "expired" => Ok(DropRule::Expired),
        "never" => Ok(DropRule::Never),
        other => Err(format!("drop = {other:?}; it must be \"hopeless\", \"expired\" or \"never\"")),
    }
}
