//! Consistency checks between the keys of a `model.toml`.

use super::keys::Keys;
use super::{Granularity, MAX_BLOCKS, ModelConfig};
use ripieno_model::{Latency, Walk};
use std::collections::BTreeSet;

/// Checks a parsed configuration.
pub(super) fn check(keys: &Keys<'_>, config: &ModelConfig) -> Result<(), String> {
    if config.blocks.len() > MAX_BLOCKS {
        return Err(keys.error(&format!("{} blocks are more than the {MAX_BLOCKS} allowed", config.blocks.len())));
    }
    check_unique("block", config.blocks.iter().map(|block| block.name.as_str()), keys)?;
    check_unique("input", config.inputs.iter().map(|spec| spec.name.as_str()), keys)?;
    check_unique(
        "output",
        config.cells.iter().flat_map(|cells| cells.answers.iter().map(|answer| answer.name.as_str())),
        keys,
    )?;
    check_unique("output", config.labels.iter().map(|(output, _)| output.as_str()), keys)?;
    check_unique("output", config.outputs.iter().map(|spec| spec.name.as_str()), keys)?;
    check_walk(keys, config)?;
    check_table_lengths(keys, config)
}

fn check_unique<'n>(kind: &str, names: impl Iterator<Item = &'n str>, keys: &Keys<'_>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match names.into_iter().find(|name| !seen.insert(*name)) {
        Some(name) => Err(keys.error(&format!("two [[{kind}]] are named \"{name}\"; give each a name of its own"))),
        None => Ok(()),
    }
}

fn check_walk(keys: &Keys<'_>, config: &ModelConfig) -> Result<(), String> {
    let walk = keys.one_of("walk", &Walk::ALL.map(|walk| (walk.name(), walk)))?;
    match (walk, config.blocks.len()) {
        (Some(walk), _) if walk.is_unfolded() && config.granularity != Granularity::Whole => {
            Err(keys.wrong("granularity", "cuts a model in one file; a walk of cells is cut already; remove it"))
        }
        (walk, _) if config.lengths.is_some() && walk.is_some_and(Walk::is_unfolded) => {
            Err(keys.wrong("walk", "steps along the elements and pads nothing; remove every length_dim"))
        }
        (_, _) if config.lengths.is_some() && config.granularity == Granularity::Cells => Err(keys.wrong(
            "granularity",
            "makes cells, which step along the elements and pad nothing; remove every length_dim",
        )),
        (Some(Walk::Chain), 0) => Err(keys.wrong("walk", "needs the chain's parts; add a [[block]] section for each")),
        (Some(Walk::Whole), 2..) => {
            Err(keys.wrong("walk", "a model of several [[block]] is a chain; write walk = \"chain\""))
        }
        (_, 1..) if config.latency.is_some() || !config.by_length.is_empty() => {
            let key = ["latency_ms", "alpha_ms"].into_iter().find(|key| keys.has(key)).unwrap_or("by_length");
            Err(keys.wrong(key, "belongs into each [[block]], since every block has its own latency"))
        }
        _ => Ok(()),
    }
}

fn check_table_lengths(keys: &Keys<'_>, config: &ModelConfig) -> Result<(), String> {
    let shortest = config.latencies().filter_map(Latency::max_batch).min();
    match (config.max_batch, shortest) {
        (Some(max_batch), Some(given)) if given < max_batch => {
            let (key, fix) = match keys.has("max_batch") {
                true => ("max_batch", format!("write max_batch = {given}")),
                false => ("batch_sizes", format!("end the sizes at {given}")),
            };
            let why = "one for each batch size; add the rest or";
            Err(keys.wrong(key, &format!("latency_ms has {given} numbers, {why} {fix}")))
        }
        _ => Ok(()),
    }
}
