//! Requests that leave a batch before the last block: early exits, and requests that skip blocks.
//!
//! The decision is a comparison of a number that a block outputs for each row (`exit_when` and
//! `skip_when` in model.toml), or the embedder's [`Condition`]. Both are checked at load. The
//! compared tensors must exist. An early answer must have all outputs of the model, with their
//! types and shapes. On every path, each block must have its inputs, even if earlier blocks were
//! skipped. A request of several rows leaves only if all its rows do.

use crate::contract::condition::{
    AllowedExits, BlockDecision, ComparisonOperator, Condition, OutputRow, TensorRule, numbers,
};
use crate::contract::flow::{BlockPlan, FlowValue, compatible};
use crate::contract::source::{BlockSource, ModelSource};
use crate::run::rows::Rows;
use ripieno_base::BlockId;
use ripieno_model::DataType;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The conditions of a model, by block.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    blocks: Vec<BlockExits>,
    custom: Option<Arc<dyn Condition>>,
}

#[derive(Clone, Debug, Default)]
struct BlockExits {
    /// Early exit: compared value, comparison operator and constant.
    exit: Option<(usize, ComparisonOperator, f64)>,
    skip: Option<(usize, ComparisonOperator, f64, BlockId)>,
    /// Values of the early answer in the order of the model's outputs, if requests may end here.
    answer: Option<Vec<usize>>,
    /// Decisions that the embedding program's condition may make.
    may: AllowedExits,
}

/// The part of the plan that is linked already.
pub(crate) struct LinkedBlocks<'a> {
    pub(crate) source: &'a ModelSource,
    pub(crate) values: &'a [FlowValue],
    pub(crate) blocks: &'a [BlockPlan],
    pub(crate) inputs: &'a [usize],
    pub(crate) outputs: &'a [usize],
}

/// Returns the tensors hidden from clients: those that only conditions read, or only early answers
/// contain.
pub(crate) fn hidden(source: &ModelSource) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for block in &source.blocks {
        names.extend(rules(block).map(|rule| rule.tensor.as_str()));
        names
            .extend(block.exit_outputs.iter().filter(|(output, tensor)| output != tensor).map(|(_, tensor)| &**tensor));
        names.extend(block.hidden.iter().map(String::as_str));
    }
    names
}

fn rules(block: &BlockSource) -> impl Iterator<Item = &TensorRule> {
    block.exit.iter().chain(block.skip.iter().map(|(rule, _)| rule))
}

impl Conditions {
    /// Links the conditions of a model; `None` if it has none.
    pub(crate) fn link(linked: &LinkedBlocks<'_>) -> Result<Option<Conditions>, String> {
        let (source, custom) = (linked.source, linked.source.condition.clone());
        if custom.is_none() && source.blocks.iter().all(|block| rules(block).next().is_none()) {
            return match source.blocks.iter().find(|block| !block.exit_outputs.is_empty()) {
                Some(block) => Err(format!(
                    "block '{}' has exit_outputs, but nothing ends a walk there; add exit_when",
                    block.name
                )),
                None => Ok(None),
            };
        }
        if let Some(last) = source.blocks.last().filter(|last| rules(last).next().is_some()) {
            return Err(last_one(&last.name));
        }
        let blocks = (0..source.blocks.len()).map(|at| at_block(linked, at)).collect::<Result<Vec<_>, _>>()?;
        check_ways(linked, &blocks)?;
        Ok(Some(Conditions { blocks, custom }))
    }

    /// Whether a request may leave after this block.
    pub(crate) fn stand_at(&self, block: usize) -> bool {
        let at = &self.blocks[block];
        at.answer.is_some() || !at.targets().is_empty()
    }

    /// Decides how a request continues after a block with these outputs.
    pub(crate) fn judge(
        &self,
        block: usize,
        outputs: &[(&str, Rows)],
        value: impl Fn(usize) -> Option<Rows>,
    ) -> Result<BlockDecision, String> {
        let at = &self.blocks[block];
        let holds = |tensor: usize, comparison: ComparisonOperator, bound: f64| {
            let rows = value(tensor).ok_or("a tensor of its conditions is missing")?;
            let numbers = numbers(rows.datatype(), rows.bytes()).unwrap_or_default();
            match numbers.len() == rows.count() {
                true => Ok(numbers.into_iter().all(|number| comparison.holds(number, bound))),
                false => {
                    Err(format!("a tensor of its conditions has {} numbers for {} rows", numbers.len(), rows.count()))
                }
            }
        };
        if let Some((tensor, comparison, bound)) = at.exit
            && holds(tensor, comparison, bound)?
        {
            return Ok(BlockDecision::Exit);
        }
        if let Some((tensor, comparison, bound, to)) = at.skip
            && holds(tensor, comparison, bound)?
        {
            return Ok(BlockDecision::Skip(to));
        }
        match &self.custom {
            Some(custom) if at.may != AllowedExits::default() => judge_rows(&**custom, block, &at.may, outputs),
            _ => Ok(BlockDecision::Go),
        }
    }

    /// Returns the values of the early answer after this block, in the order of the outputs.
    pub(crate) fn answer(&self, block: usize) -> &[usize] {
        self.blocks[block].answer.as_deref().unwrap_or_default()
    }
}

impl BlockExits {
    /// Returns the blocks to which requests may skip.
    fn targets(&self) -> Vec<BlockId> {
        self.skip.iter().map(|&(.., to)| to).chain(self.may.skip_to.iter().copied()).collect()
    }
}

/// Applies the embedding program's condition to all rows of a request; the request leaves if all
/// rows agree.
fn judge_rows(
    custom: &dyn Condition,
    block: usize,
    may: &AllowedExits,
    outputs: &[(&str, Rows)],
) -> Result<BlockDecision, String> {
    let count = outputs.first().map_or(0, |(_, rows)| rows.count());
    let of_row = |row: usize| custom.judge(BlockId(block as u16), &OutputRow { outputs, row });
    let Some(first) = (count > 0).then(|| of_row(0)) else { return Ok(BlockDecision::Go) };
    let allowed = match first {
        BlockDecision::Go => true,
        BlockDecision::Exit => may.exit,
        BlockDecision::Skip(to) => may.skip_to.contains(&to),
    };
    if !allowed {
        return Err(format!("its condition decided {first:?}, which it did not declare as allowed"));
    }
    let agreed = (1..count).all(|row| of_row(row) == first);
    Ok(if agreed { first } else { BlockDecision::Go })
}

fn at_block(linked: &LinkedBlocks<'_>, at: usize) -> Result<BlockExits, String> {
    let block = &linked.source.blocks[at];
    let place = format!("block '{}'", block.name);
    let mut may = linked.source.condition.as_ref().map(|custom| custom.may(BlockId(at as u16))).unwrap_or_default();
    may.skip_to.sort_unstable();
    let exit = block.exit.as_ref().map(|rule| compared(linked, at, "exit_when", rule)).transpose()?;
    let skip = match &block.skip {
        Some((rule, to)) => {
            let (tensor, comparison, number) = compared(linked, at, "skip_when", rule)?;
            Some((tensor, comparison, number, *to))
        }
        None => None,
    };
    let mut this = BlockExits { exit, skip, answer: None, may };
    let exits = this.exit.is_some() || this.may.exit;
    if at + 1 == linked.blocks.len() && (exits || !this.targets().is_empty()) {
        return Err(last_one(&block.name));
    }
    if let Some(to) = this.targets().into_iter().find(|to| !(at + 2..linked.blocks.len()).contains(&to.index())) {
        return Err(format!(
            "{place} may skip to block {}; it must be later than the next one, at most {}",
            to.0,
            linked.blocks.len() - 1
        ));
    }
    if exits {
        this.answer = Some(early_answer(linked, at).map_err(|cause| format!("{place}: {cause}"))?);
    } else if !block.exit_outputs.is_empty() {
        return Err(format!("{place} has exit_outputs, but nothing ends a walk there; add exit_when"));
    }
    Ok(this)
}

fn last_one(name: &str) -> String {
    format!("block '{name}' is the last one, so every walk ends there; remove its exit_when and skip_when")
}

/// Returns the value that a rule compares. It must be an output of the block with one number per
/// row.
fn compared(
    linked: &LinkedBlocks<'_>,
    at: usize,
    key: &str,
    rule: &TensorRule,
) -> Result<(usize, ComparisonOperator, f64), String> {
    let (block, name) = (&linked.source.blocks[at].name, &rule.tensor);
    let given = &linked.blocks[at].outputs;
    let Some(&value) = given.iter().find(|&&value| *linked.values[value].name == **name) else {
        let names: Vec<&str> = given.iter().map(|&value| &*linked.values[value].name).collect();
        return Err(format!(
            "block '{block}': {key} compares '{name}', which the block does not give; it gives {}",
            names.join(", ")
        ));
    };
    let spec = &linked.values[value].spec;
    if spec.datatype == DataType::Bytes || spec.shape[1..].iter().any(|&dim| dim != 1) {
        return Err(format!(
            "block '{block}': {key} compares '{name}', which is {} {:?}; it must be one number a row, [-1] or [-1, 1]",
            spec.datatype, spec.shape
        ));
    }
    Ok((value, rule.comparison, rule.number))
}

/// Returns the value of each output of the model, for a request that ends after this block.
fn early_answer(linked: &LinkedBlocks<'_>, at: usize) -> Result<Vec<usize>, String> {
    let mapped = &linked.source.blocks[at].exit_outputs;
    let outputs = || linked.outputs.iter().map(|&output| &linked.values[output]);
    if let Some((unknown, _)) = mapped.iter().find(|(name, _)| outputs().all(|output| *output.name != **name)) {
        let names: Vec<&str> = outputs().map(|output| &*output.name).collect();
        return Err(format!(
            "exit_outputs names '{unknown}', which is no output of the model; it has {}",
            names.join(", ")
        ));
    }
    let source = |output: &FlowValue| {
        let name =
            mapped.iter().find(|(name, _)| *output.name == **name).map_or(&*output.name, |(_, tensor)| &**tensor);
        let given = linked.blocks[at].outputs.iter().find(|&&value| *linked.values[value].name == *name);
        let Some(&value) = given else {
            return Err(format!(
                "an answer that ends here needs output '{}', but the block gives no '{name}'; add it to the block, or name what \
                 stands for it, as in exit_outputs = {{ {} = \"…\" }}",
                output.name, output.name
            ));
        };
        match compatible(&output.spec, &linked.values[value].spec) {
            true => Ok(value),
            false => Err(format!(
                "output '{}' of an answer that ends here would be '{name}', which is {} {:?}, but it must be {} {:?} as after \
                 the last block",
                output.name,
                linked.values[value].spec.datatype,
                linked.values[value].spec.shape,
                output.spec.datatype,
                output.spec.shape
            )),
        }
    };
    outputs().map(source).collect()
}

/// Checks that each block and the answer have their inputs on every path to them.
fn check_ways(linked: &LinkedBlocks<'_>, blocks: &[BlockExits]) -> Result<(), String> {
    let mut have: Vec<Option<BTreeSet<usize>>> = vec![None; blocks.len() + 1];
    have[0] = Some(linked.inputs.iter().copied().collect());
    let name = |at: usize| {
        linked.source.blocks.get(at).map_or("the answer".to_owned(), |block| format!("block '{}'", block.name))
    };
    for (at, block) in blocks.iter().enumerate() {
        let brought = have[at].clone().expect("every block follows on the one before it");
        let taken = &linked.blocks[at].inputs;
        if let Some(&missing) = taken.iter().find(|value| !brought.contains(value)) {
            return Err(missing_on_a_way(linked, missing, &name(at)));
        }
        let mut left = brought;
        left.extend(&linked.blocks[at].outputs);
        for next in block.targets().into_iter().map(BlockId::index).chain([at + 1]) {
            have[next] = Some(match have[next].take() {
                Some(other) => other.intersection(&left).copied().collect(),
                None => left.clone(),
            });
        }
    }
    let end = have[blocks.len()].take().expect("the last block leads there");
    match linked.outputs.iter().find(|output| !end.contains(output)) {
        Some(&missing) => Err(missing_on_a_way(linked, missing, "the answer")),
        None => Ok(()),
    }
}

fn missing_on_a_way(linked: &LinkedBlocks<'_>, value: usize, taker: &str) -> String {
    let tensor = &linked.values[value].name;
    let giver = linked.blocks.iter().position(|block| block.outputs.contains(&value));
    let giver = giver.map_or("another block", |at| &linked.source.blocks[at].name);
    format!(
        "{taker} needs '{tensor}' of '{giver}', which a walk that skips does not have; skip to a block that does without it, or \
         give '{tensor}' in the block that skips as well"
    )
}
