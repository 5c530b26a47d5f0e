//! `[[model.block]]` tables and latencies: what a stage or a cell costs, and in which batches it runs.

use super::Checked;
use ripieno_base::Nanos;
use ripieno_model::{Block, Profile, Steps, Walk};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockTable {
    pub(super) name: String,
    alpha_ms: Option<f64>,
    beta_ms: Option<f64>,
    latency_ms: Option<Vec<f64>>,
    latency_points: Option<Vec<(usize, f64)>>,
    max_batch: Option<usize>,
    priority: Option<u32>,
    sizes: Option<Vec<usize>>,
    once: Option<bool>,
    gather_us_per_row: Option<f64>,
}

/// The blocks of a model with this walk.
pub(super) fn blocks(walk: Walk, tables: &[BlockTable], max_batch: Option<usize>, slo: Nanos) -> Checked<Vec<Block>> {
    let count = tables.iter().filter(|table| table.once != Some(true)).count();
    let (fits, expected) = match walk {
        Walk::Whole | Walk::Chain | Walk::Graph | Walk::Stacked => (count >= 1, "one or more"),
        Walk::Repeat => (count == 1, "one, the cell"),
        Walk::Bidirectional => (count == 2, "two, forward and backward"),
        Walk::EncodeDecode => (count == 2, "two, encoder and decoder"),
        Walk::Tree => (count == 2, "two, leaf and internal"),
    };
    if !fits {
        let name = walk.name();
        return Err(format!(
            "walk = {name:?} takes [[model.block]] tables: {expected}; there are {count}. A head has once = true"
        ));
    }
    if let Some(head) = tables.iter().rev().skip(1).find(|table| table.once == Some(true)) {
        return Err(format!("block {:?}: once = true; only the last block runs once", head.name));
    }
    if !walk.is_unfolded() && tables.iter().any(|table| table.once.is_some()) {
        return Err(format!("once has no meaning for walk = {:?}: each block runs once", walk.name()));
    }
    let block = |(at, table): (usize, &BlockTable)| {
        let block = table.block(walk, at, max_batch, slo);
        block.map_err(|problem| format!("block {:?}: {problem}", table.name))
    };
    tables.iter().enumerate().map(block).collect()
}

impl BlockTable {
    fn block(&self, walk: Walk, at: usize, max_batch: Option<usize>, slo: Nanos) -> Checked<Block> {
        let costs = Costs {
            alpha_ms: self.alpha_ms,
            beta_ms: self.beta_ms,
            latency_ms: self.latency_ms.as_deref(),
            latency_points: self.latency_points.as_deref(),
            max_batch: self.max_batch.or(max_batch),
        };
        let mut profile = costs.profile(slo)?;
        if let Some(most) = self.max_batch {
            if !(1..=profile.max_batch()).contains(&most) {
                return Err(format!("max_batch = {most}; the latencies given allow 1 to {}", profile.max_batch()));
            }
            profile = profile.truncated(most);
        }
        let sizes = self.sizes.clone().unwrap_or_default();
        if !sizes.is_empty() {
            profile = rounded_up(&profile, &sizes)?;
        }
        let steps = match walk {
            _ if self.once == Some(true) => Steps::Once,
            Walk::Whole | Walk::Chain => Steps::Once,
            Walk::EncodeDecode if at == 1 => Steps::UntilEnd,
            Walk::Tree | Walk::Graph => Steps::Nodes,
            Walk::Repeat | Walk::Stacked | Walk::Bidirectional | Walk::EncodeDecode => Steps::Length,
        };
        let beside = walk == Walk::Bidirectional && at == 1;
        let priority = self.priority.unwrap_or(at as u32);
        Ok(Block { steps, beside, priority, sizes, ..Block::new(&self.name, profile) })
    }

    /// What each row of a task costs whose members differ from those of the task before it.
    pub(super) fn gather(&self, model: &str) -> Checked<Nanos> {
        let us = self.gather_us_per_row.unwrap_or(0.0);
        let gather = milliseconds("gather_us_per_row / 1000", us / 1e3);
        gather.map_err(|problem| format!("model {model:?}: block {:?}: {problem}", self.name))
    }
}

/// A batch costs what the next supported size does.
fn rounded_up(profile: &Profile, sizes: &[usize]) -> Checked<Profile> {
    let last = sizes.last().copied().unwrap_or(0);
    if !sizes.is_sorted_by(|a, b| a < b) || sizes[0] == 0 || last > profile.max_batch() {
        return Err(format!("sizes = {sizes:?}; they must rise, from at least 1 to at most {}", profile.max_batch()));
    }
    let next = |batch: usize| sizes[sizes.partition_point(|&size| size < batch)];
    let table: Vec<_> = (1..=last).map(|batch| profile.latency(next(batch))).collect();
    Profile::from_table(&table).map_err(|error| error.to_string())
}

pub(super) struct Costs<'a> {
    pub(super) alpha_ms: Option<f64>,
    pub(super) beta_ms: Option<f64>,
    pub(super) latency_ms: Option<&'a [f64]>,
    pub(super) latency_points: Option<&'a [(usize, f64)]>,
    pub(super) max_batch: Option<usize>,
}

impl Costs<'_> {
    pub(super) fn given(&self) -> bool {
        self.alpha_ms.is_some() || self.beta_ms.is_some() || self.latency_ms.is_some() || self.latency_points.is_some()
    }

    /// ℓ(b).
    pub(super) fn profile(&self, slo: Nanos) -> Checked<Profile> {
        let (keys, profile) = match (self.alpha_ms, self.beta_ms, self.latency_ms, self.latency_points) {
            (None, None, Some(table), None) => {
                let latency = |(batch, &ms): (usize, &f64)| milliseconds(&format!("latency_ms[{batch}]"), ms);
                let table = table.iter().enumerate().map(latency).collect::<Checked<Vec<_>>>()?;
                ("latency_ms", Profile::from_table(&table))
            }
            (Some(alpha), Some(beta), None, None) => {
                milliseconds("alpha_ms", alpha)?;
                milliseconds("beta_ms", beta)?;
                // Batches beyond the SLO could never be punctual.
                let useful = ((slo.as_millis_f64() - beta) / alpha).clamp(1.0, 1024.0) as usize;
                ("alpha_ms and beta_ms", Profile::linear(alpha, beta, self.max_batch.unwrap_or(useful)))
            }
            (None, None, None, Some(points)) => {
                let ascending = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
                if !ascending || points.first().is_none_or(|&(batch, _)| batch == 0) {
                    return Err(
                        "latency_points = [[batch, ms], …] must be in order of their batches, from 1 on".to_owned()
                    );
                }
                let point = |&(batch, ms): &(usize, f64)| Ok((batch, milliseconds("latency_points", ms)?));
                ("latency_points", Profile::interpolate(&points.iter().map(point).collect::<Checked<Vec<_>>>()?))
            }
            _ => return Err("give either alpha_ms and beta_ms, or latency_ms = [l(1), l(2), …]".to_owned()),
        };
        profile.map_err(|error| format!("{keys}: {error}"))
    }
}

/// Longer spans than this, eleven days, are no latencies.
const LONGEST_MS: f64 = 1e9;

pub(super) fn milliseconds(key: &str, value: f64) -> Checked<Nanos> {
    match (0.0..=LONGEST_MS).contains(&value) {
        true => Ok(Nanos::from_millis_f64(value)),
        false => Err(format!("{key} = {value}; it must be a number of milliseconds from 0 to {LONGEST_MS}")),
    }
}
