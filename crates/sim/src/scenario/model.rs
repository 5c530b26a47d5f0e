//! A `[[model]]` table: its costs, the walk of its requests, and their arrivals.

use super::blocks::{Around, BlockTable, blocks};
use super::costs::{BatchCost, ByLength, Costs, milliseconds};
use super::routes::Routes;
use super::walks::{LengthsTable, TreesTable, WalkKeys, counted};
use super::{ModelLoad, ParseResult, unique};
use crate::changing::{DriftTable, GivenModel};
use crate::npu;
use crate::planning::Footprint;
use crate::world::QueueBound;
use ripieno_base::Nanos;
use ripieno_model::{Block, DropRule, Model, Walk};
use ripieno_workload::ArrivalProcess as Process;
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelTable {
    name: String,
    slo_ms: f64,
    alpha_ms: Option<f64>,
    beta_ms: Option<f64>,
    latency_ms: Option<Vec<f64>>,
    alone_ms: Option<f64>,
    preferred_batch: Option<usize>,
    preferred_tokens: Option<u32>,
    #[serde(default)]
    by_length: Vec<ByLength>,
    max_length: Option<u32>,
    npu: Option<String>,
    gpu: Option<String>,
    max_batch: Option<usize>,
    max_queue: Option<usize>,
    instances: Option<usize>,
    weight: Option<u32>,
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
    lengths: Option<LengthsTable>,
    output_lengths: Option<LengthsTable>,
    trees: Option<TreesTable>,
    extra_steps: Option<u32>,
    max_steps: Option<u32>,
    length_profile: Option<PathBuf>,
    coverage: Option<f64>,
    #[serde(default)]
    block: Vec<BlockTable>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArrivalTable {
    kind: Option<String>,
    shape: Option<f64>,
}

pub(super) fn one_share() -> f64 {
    1.0
}

/// Returns each model's fraction of the rate and its arrival process, given the total share of
/// ensembles; and the sum of all shares.
pub(super) fn loads(models: &[ModelTable], of_ensembles: f64) -> ParseResult<(Vec<ModelLoad>, f64)> {
    let bad = |model: &&ModelTable| !(model.share.is_finite() && model.share >= 0.0);
    if let Some(model) = models.iter().find(bad) {
        return Err(format!("model {:?}: share = {}; it must be at least 0", model.name, model.share));
    }
    let total: f64 = models.iter().map(|model| model.share).sum::<f64>() + of_ensembles;
    if total <= 0.0 {
        return Err("the shares of all models are 0; give at least one model a share above 0".to_owned());
    }
    let load = |model: &ModelTable| {
        let arrival = model.arrival.parse(&model.name)?;
        Ok(ModelLoad { share: model.share / total, arrival, curve: None })
    };
    Ok((models.iter().map(load).collect::<ParseResult<_>>()?, total))
}

impl ModelTable {
    /// Returns the model's changing load.
    pub(super) fn given(&self, load: &ModelLoad) -> GivenModel<'_> {
        let ModelTable { name, share, rates, drift, .. } = self;
        GivenModel { name, share: *share, rates: rates.as_deref(), drift: drift.as_ref(), arrival: load.arrival }
    }

    pub(super) fn load_changes(&self) -> bool {
        self.rates.is_some() || self.drift.is_some()
    }

    pub(super) fn max_queue(&self) -> ParseResult<QueueBound> {
        match self.max_queue {
            Some(0) => Err(format!("model {:?}: max_queue = 0; it must be at least 1", self.name)),
            bound => Ok(bound.map_or(QueueBound::Unbounded, QueueBound::Requests)),
        }
    }

    pub(super) fn footprint(&self) -> ParseResult<Footprint> {
        Footprint::parse(&self.name, self.memory_mb, self.runtime_memory_mb, self.load_cost)
    }

    /// Returns the model, and the routes of its requests.
    pub(super) fn model(&self, folder: &Path) -> ParseResult<(Model, Option<Routes>)> {
        let context = |problem: String| format!("model {:?}: {problem}", self.name);
        let slo = milliseconds("slo_ms", self.slo_ms).map_err(context)?;
        if slo <= Nanos::ZERO {
            return Err(context(format!("slo_ms = {}; it must be above 0", self.slo_ms)));
        }
        if self.max_batch == Some(0) {
            return Err(context("max_batch = 0; it must be at least 1".to_owned()));
        }
        let longest = self.walk_keys().longest(self.max_length, folder).map_err(context)?;
        let (walk, mut blocks) = self.walk(slo, longest).map_err(context)?;
        let routes = Routes::parse(walk, &self.block, &mut blocks).map_err(context)?;
        // Cells have largest batches of their own; a whole model is limited by its narrowest block.
        let sizes = blocks.iter().map(|block| block.profile.max_batch());
        let longest = if walk.is_unfolded() { sizes.max() } else { sizes.min() }.unwrap_or(1);
        let max_batch = self.max_batch.unwrap_or(longest);
        if !(1..=longest).contains(&max_batch) {
            return Err(context(format!("max_batch = {max_batch}; the latencies given allow 1 to {longest}")));
        }
        let instances = self.instances.unwrap_or(usize::MAX);
        if instances == 0 {
            return Err(context("instances = 0; it must be at least 1".to_owned()));
        }
        let drop = self.drop.as_deref().map(drop_rule).transpose().map_err(context)?;
        let name = self.name.clone();
        let weight = self.weight.unwrap_or(1);
        if weight == 0 {
            return Err(context("weight = 0; it must be at least 1".to_owned()));
        }
        let model = Model {
            name,
            blocks,
            walk,
            slo,
            max_batch,
            instances,
            drop,
            weight,
            dec_timesteps: None,
            in_arrival_order: false,
            pinned: false,
        };
        Ok((model, routes))
    }

    /// Returns the predicted number of decoder steps: the length that covers a share of the counted
    /// outputs.
    pub(super) fn dec_timesteps(&self, walk: Walk, folder: &Path) -> ParseResult<Option<u32>> {
        let context = |problem: String| format!("model {:?}: {problem}", self.name);
        let (file, coverage) = match (&self.length_profile, self.coverage) {
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                return Err(context("coverage needs length_profile = \"lengths.csv\" beside it".to_owned()));
            }
            (Some(file), coverage) => (file, coverage.unwrap_or(0.9)),
        };
        if walk != Walk::EncodeDecode {
            return Err(context(format!("length_profile has no meaning for walk = {:?}; remove it", walk.name())));
        }
        if !(coverage > 0.0 && coverage <= 1.0) {
            return Err(context(format!("coverage = {coverage}; it must be above 0 and at most 1")));
        }
        let lengths = counted(&folder.join(file)).map_err(|problem| context(format!("length_profile: {problem}")))?;
        Ok(Some(lengths.covering(coverage)))
    }

    /// Returns the keys of the walk.
    pub(super) fn walk_keys(&self) -> WalkKeys<'_> {
        WalkKeys {
            lengths: self.lengths.as_ref(),
            output_lengths: self.output_lengths.as_ref(),
            trees: self.trees.as_ref(),
            extra_steps: self.extra_steps,
            max_steps: self.max_steps,
        }
    }

    /// Returns the length of the longest requests, if it is given.
    pub(super) fn max_length(&self) -> Option<u32> {
        self.max_length
    }

    /// Returns the cost of gathering a row, per block.
    pub(super) fn gather(&self) -> ParseResult<Vec<Nanos>> {
        let gather = |block: &BlockTable| block.gather(&self.name);
        match (self.network()?, self.block.is_empty()) {
            (Some((_, blocks)), _) => Ok(vec![Nanos::ZERO; blocks.len()]),
            (None, true) => Ok(vec![Nanos::ZERO]),
            (None, false) => self.block.iter().map(gather).collect(),
        }
    }

    /// Returns the walk and blocks of a network of LazyBatching, on the named device.
    fn network(&self) -> ParseResult<Option<(Walk, Vec<Block>)>> {
        match (&self.npu, &self.gpu) {
            (None, None) => Ok(None),
            (Some(name), None) => network("npu", name).map(|network| Some((network.walk, network.blocks()))),
            (None, Some(name)) => {
                network("gpu", name).map(|network| Some((network.walk, network.blocks_on_titan_xp())))
            }
            (Some(_), Some(_)) => Err("both npu and gpu are given; remove one".to_owned()),
        }
    }

    fn walk(&self, slo: Nanos, longest: Option<u32>) -> ParseResult<(Walk, Vec<Block>)> {
        let costs = Costs {
            alpha_ms: self.alpha_ms,
            beta_ms: self.beta_ms,
            latency_ms: self.latency_ms.as_deref(),
            latency_points: None,
            alone_ms: self.alone_ms,
            preferred_batch: self.preferred_batch,
            preferred_tokens: self.preferred_tokens,
            by_length: &self.by_length,
            launch_ms: 0.0,
            max_batch: self.max_batch,
        };
        if let Some(network) = self.network()? {
            if costs.given() || self.walk.is_some() || !self.block.is_empty() {
                let fix = "npu and gpu say what it costs and how it walks; remove latencies, walk and blocks";
                return Err(fix.to_owned());
            }
            return Ok(network);
        }
        let name = self.walk.as_deref().unwrap_or("whole");
        let walk = Walk::named(name).filter(|&walk| walk != Walk::Graph).ok_or_else(|| {
            let names: Vec<_> = Walk::ALL.iter().filter(|walk| **walk != Walk::Graph).map(|walk| walk.name()).collect();
            format!("walk = {name:?}; it must be one of {}", names.join(", "))
        })?;
        match walk {
            Walk::Whole if self.block.is_empty() => {
                let BatchCost { profile, lengths } = costs.parse(slo, longest)?;
                Ok((walk, vec![Block { lengths, ..Block::new(&self.name, profile) }]))
            }
            Walk::Whole => Err("[[model.block]] tables need a walk, \"chain\" for stages".to_owned()),
            _ if self.block.is_empty() => Err(format!("walk = {name:?} needs [[model.block]] tables")),
            _ if costs.given() => Err("with blocks, give latencies in each block, not here".to_owned()),
            _ => {
                unique(self.block.iter().map(|block| block.name.as_str()))?;
                let around = Around { max_batch: self.max_batch, slo, longest };
                Ok((walk, blocks(walk, &self.block, around)?))
            }
        }
    }
}

/// Returns a network of LazyBatching.
fn network(key: &str, name: &str) -> ParseResult<&'static npu::NpuNetwork> {
    npu::named(name).ok_or_else(|| {
        let names: Vec<_> = npu::NETWORKS.iter().map(|network| network.name).collect();
        format!("{key} = {name:?}; it must be one of {}", names.join(", "))
    })
}

impl ArrivalTable {
    pub(super) fn parse(&self, model: &str) -> ParseResult<Process> {
        let text = match (self.kind.as_deref().unwrap_or("poisson"), self.shape) {
            ("gamma", Some(shape)) => format!("gamma:{shape}"),
            ("gamma", None) => return Err(format!("model {model:?}: arrival kind \"gamma\" needs a shape")),
            (_, Some(_)) => return Err(format!("model {model:?}: only arrival kind \"gamma\" has a shape")),
            (kind, None) => kind.to_owned(),
        };
        text.parse().map_err(|error| format!("model {model:?}: {error}"))
    }
}

fn drop_rule(text: &str) -> ParseResult<DropRule> {
    match text {
        "hopeless" => Ok(DropRule::Hopeless),
        "expired" => Ok(DropRule::Expired),
        "never" => Ok(DropRule::Never),
        other => Err(format!("drop = {other:?}; it must be \"hopeless\", \"expired\" or \"never\"")),
    }
}
