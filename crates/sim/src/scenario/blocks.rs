//! `[[model.block]]` tables: the costs and batch sizes of a stage or cell, and the requests that
//! continue after it.

use super::ParseResult;
use super::costs::{BatchCost, ByLength, Costs, milliseconds};
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
    alone_ms: Option<f64>,
    preferred_batch: Option<usize>,
    preferred_tokens: Option<u32>,
    #[serde(default)]
    by_length: Vec<ByLength>,
    #[serde(default)]
    launch_ms: f64,
    pub(super) exit_share: Option<f64>,
    pub(super) skip_share: Option<f64>,
    pub(super) skip_to: Option<String>,
    max_batch: Option<usize>,
    priority: Option<u32>,
    sizes: Option<Vec<usize>>,
    once: Option<bool>,
    gather_us_per_row: Option<f64>,
}

/// Settings that blocks take from their model.
#[derive(Clone, Copy)]
pub(super) struct Around {
    pub(super) max_batch: Option<usize>,
    pub(super) slo: Nanos,
    /// The length of the longest requests, if it is known.
    pub(super) longest: Option<u32>,
}

/// Parses the blocks of a model with this walk.
pub(super) fn blocks(walk: Walk, tables: &[BlockTable], around: Around) -> ParseResult<Vec<Block>> {
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
        let block = table.block(walk, at, around);
        block.map_err(|problem| format!("block {:?}: {problem}", table.name))
    };
    tables.iter().enumerate().map(block).collect()
}

impl BlockTable {
    fn block(&self, walk: Walk, at: usize, around: Around) -> ParseResult<Block> {
        let costs = Costs {
            alpha_ms: self.alpha_ms,
            beta_ms: self.beta_ms,
            latency_ms: self.latency_ms.as_deref(),
            latency_points: self.latency_points.as_deref(),
            alone_ms: self.alone_ms,
            preferred_batch: self.preferred_batch,
            preferred_tokens: self.preferred_tokens,
            by_length: &self.by_length,
            launch_ms: self.launch_ms,
            max_batch: self.max_batch.or(around.max_batch),
        };
        let BatchCost { mut profile, lengths } = costs.parse(around.slo, around.longest)?;
        if let Some(most) = self.max_batch {
            if !(1..=profile.max_batch()).contains(&most) {
                return Err(format!("max_batch = {most}; the latencies given allow 1 to {}", profile.max_batch()));
            }
            profile = profile.truncated(most);
        }
        let sizes = self.sizes.clone().unwrap_or_default();
        match (&lengths, walk.is_unfolded()) {
            (Some(_), true) => return Err(format!("a cell of walk = {:?} has no latencies by length", walk.name())),
            (Some(_), false) if !sizes.is_empty() => {
                return Err("sizes have no effect beside latencies by length".to_owned());
            }
            _ if !sizes.is_empty() => profile = rounded_up(&profile, &sizes)?,
            _ => {}
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
        Ok(Block { steps, beside, priority, sizes, lengths, ..Block::new(&self.name, profile) })
    }

    /// Returns the cost per row of a task whose members differ from the previous task's.
    pub(super) fn gather(&self, model: &str) -> ParseResult<Nanos> {
        let us = self.gather_us_per_row.unwrap_or(0.0);
        let gather = milliseconds("gather_us_per_row / 1000", us / 1e3);
        gather.map_err(|problem| format!("model {model:?}: block {:?}: {problem}", self.name))
    }
}

/// Returns the profile in which a batch costs as much as the next supported size.
fn rounded_up(profile: &Profile, sizes: &[usize]) -> ParseResult<Profile> {
    let last = sizes.last().copied().unwrap_or(0);
    if !sizes.is_sorted_by(|a, b| a < b) || sizes[0] == 0 || last > profile.max_batch() {
        return Err(format!("sizes = {sizes:?}; they must rise, from at least 1 to at most {}", profile.max_batch()));
    }
    let next = |batch: usize| sizes[sizes.partition_point(|&size| size < batch)];
    let table: Vec<_> = (1..=last).map(|batch| profile.latency(next(batch))).collect();
    Profile::from_table(&table).map_err(|error| error.to_string())
}
