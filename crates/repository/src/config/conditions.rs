//! Keys of a `[[block]]` for early exits and skips: the conditions under which requests leave the
//! batch after it.
//!
//! Whether the block has the compared tensors, and an early exit all of the model's outputs, is
//! checked at load.

use super::keys::{Keys, nearest};
use ripieno_base::BlockId;
use ripieno_executor::{ComparisonOperator, TensorRule};

/// Conditions under which requests leave the batch after a block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockConditions {
    /// Condition that ends the request.
    pub exit: Option<TensorRule>,
    /// Condition under which the request continues at a later block.
    pub skip: Option<(TensorRule, BlockId)>,
    /// Pairs of a model output and the block output that replaces it in an early exit.
    pub exit_outputs: Vec<(String, String)>,
}

/// Keys of a [[block]] that apply only to chains.
pub(super) const CHAIN_KEYS: [&str; 4] = ["exit_when", "exit_outputs", "skip_when", "skip_to"];

/// Reads the conditions of the block at position `at`; `names` are the names of all blocks.
pub(super) fn read(block: &Keys<'_>, at: usize, names: &[String]) -> Result<BlockConditions, String> {
    let (exit, skip) = (rule(block, "exit_when")?, rule(block, "skip_when")?);
    let outputs = block.table("exit_outputs")?;
    if outputs.is_some() && exit.is_none() {
        return Err(
            block.wrong("exit_outputs", "is what an answer that ends here is made of; write exit_when beside it")
        );
    }
    let mut exit_outputs = Vec::new();
    for output in outputs.iter().flat_map(Keys::names) {
        let outputs = outputs.as_ref().expect("it has names");
        let tensor = outputs.required(outputs.text(output, "exit1_logits")?, output, "\"exit1_logits\"")?;
        exit_outputs.push((output.to_owned(), tensor));
    }
    let skip = match (skip, block.text("skip_to", "stage4")?) {
        (Some(rule), Some(to)) => Some((rule, later_block(block, &to, at, names)?)),
        (Some(_), None) => return Err(block.wrong("skip_when", "needs skip_to beside it, the name of a later block")),
        (None, Some(_)) => {
            return Err(block.wrong("skip_to", "needs skip_when beside it, as in skip_when = \"gate < 0.1\""));
        }
        (None, None) => None,
    };
    Ok(BlockConditions { exit, skip, exit_outputs })
}

/// Refuses these keys in a walk of cells.
pub(super) fn refuse(blocks: &[Keys<'_>]) -> Result<(), String> {
    let found = blocks.iter().flat_map(|block| CHAIN_KEYS.map(|key| (block, key))).find(|(block, key)| block.has(key));
    match found {
        Some((block, key)) => {
            Err(block.wrong(key, "belongs to walk = \"chain\"; a walk of cells ends by its decoder's end; remove it"))
        }
        None => Ok(()),
    }
}

fn rule(block: &Keys<'_>, key: &str) -> Result<Option<TensorRule>, String> {
    const OPERATORS: [(&str, ComparisonOperator); 4] = [
        (">=", ComparisonOperator::AtLeast),
        ("<=", ComparisonOperator::AtMost),
        (">", ComparisonOperator::Above),
        ("<", ComparisonOperator::Below),
    ];
    let Some(text) = block.text(key, "confidence > 0.9")? else { return Ok(None) };
    let split = |&(operator, comparison): &(&str, ComparisonOperator)| {
        text.split_once(operator)
            .map(|(tensor, number)| (tensor.trim().to_owned(), comparison, number.trim().to_owned()))
    };
    let form = "must compare an output of the block with a number by >, >=, < or <=, for example \"confidence > 0.9\"";
    let parts = OPERATORS.iter().find_map(split).filter(|(tensor, ..)| !tensor.is_empty());
    let Some((tensor, comparison, number)) = parts else { return Err(block.wrong(key, form)) };
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Some(TensorRule { tensor, comparison, number })),
        _ => Err(block.wrong(key, form)),
    }
}

fn later_block(block: &Keys<'_>, to: &str, at: usize, names: &[String]) -> Result<BlockId, String> {
    let later: Vec<&str> = names.iter().skip(at + 2).map(String::as_str).collect();
    if let Some(found) = later.iter().position(|name| *name == to) {
        return Ok(BlockId((at + 2 + found) as u16));
    }
    let fix = match (later.is_empty(), nearest(to, &later)) {
        (true, _) => "there is no block behind the next one to skip to; remove it".to_owned(),
        (false, Some(near)) => format!("must name a block behind the next one; did you mean {near}?"),
        (false, None) => format!("must name a block behind the next one: {}", later.join(", ")),
    };
    Err(block.wrong("skip_to", &fix))
}
