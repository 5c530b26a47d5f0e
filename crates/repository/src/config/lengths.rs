//! Keys of `model.toml` for requests of varying length: the tensor dimensions that hold the length,
//! and the padding.

use super::keys::Keys;
use ripieno_executor::{InputLength, LengthDims, LengthRule, OutputLength};
use ripieno_model::Latency;

/// Maximum configurable request length.
const MAX_LENGTH: usize = 1_000_000;
/// Upper bound on a dimension's index.
const MAX_DIMENSIONS: usize = 16;

/// Lengths of requests that are padded to share a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct LengthsConfig {
    /// Maximum request length.
    pub max_length: u32,
    /// Tensor dimensions that hold the length.
    pub dims: LengthDims,
}

/// Reads the length keys of the tensors; returns `None` if there are none.
pub(super) fn read(
    keys: &Keys<'_>,
    inputs: &[Keys<'_>],
    outputs: &[Keys<'_>],
) -> Result<Option<LengthsConfig>, String> {
    let mut dims = LengthDims::default();
    for input in inputs {
        let dim = dimension(input)?;
        let pad = input.any_number("pad");
        if input.has("pad") && pad.is_none() {
            return Err(input.wrong("pad", "must be a number, without quotes"));
        }
        match (dim, pad) {
            (Some((tensor, dim)), pad) => dims.inputs.push(InputLength { tensor, dim, pad: pad.unwrap_or(0.0) }),
            (None, Some(_)) => {
                return Err(input.wrong("pad", "fills what is shorter than others; write length_dim = 1 beside it"));
            }
            (None, None) => {}
        }
    }
    for output in outputs {
        let rule = output.text("length", "ceil(n / 8)")?;
        let rule = rule.map(|text| {
            LengthRule::parse(&text).ok_or_else(|| {
                output.wrong(
                    "length",
                    "must be n / 8, ceil(n / 8) or n / 8 + 1, with other numbers; n is the request's length",
                )
            })
        });
        match (dimension(output)?, rule.transpose()?) {
            (Some((tensor, dim)), rule) => {
                dims.outputs.push(OutputLength { tensor, dim, rule: rule.unwrap_or(LengthRule::SAME) });
            }
            (None, Some(_)) => {
                return Err(output.wrong("length", "is the size of a dimension; write length_dim = 1 beside it"));
            }
            (None, None) => {}
        }
    }
    if dims == LengthDims::default() {
        return Ok(None);
    }
    let longest = keys.whole("max_length", 1, MAX_LENGTH)?;
    let max_length = longest.ok_or_else(|| {
        keys.error("length_dim needs the longest request beside it; add for example max_length = 128")
    })?;
    Ok(Some(LengthsConfig { max_length: max_length as u32, dims }))
}

/// Reads latencies by padded length; empty if none are given.
pub(super) fn read_costs(keys: &Keys<'_>, has_lengths: bool) -> Result<Vec<(u32, Latency)>, String> {
    let given = keys.tables("by_length", &["length", "latency_ms", "alpha_ms", "beta_ms"])?;
    if given.is_empty() {
        return Ok(Vec::new());
    }
    if !has_lengths {
        return Err(keys.wrong("by_length", "needs inputs with a length_dim, by which requests differ in length"));
    }
    if let Some(key) = ["latency_ms", "alpha_ms", "beta_ms"].into_iter().find(|key| keys.has(key)) {
        return Err(keys.wrong(key, "stands beside by_length; keep one of the two"));
    }
    let mut costs: Vec<(u32, Latency)> = Vec::with_capacity(given.len());
    for entry in &given {
        let length = entry.required(entry.whole("length", 1, MAX_LENGTH)?, "length", "64")? as u32;
        let latency = entry.required(super::latency::read_latency(entry)?, "alpha_ms", "1.5")?;
        if costs.last().is_some_and(|&(before, _)| before >= length) {
            return Err(entry.wrong("length", "must be larger than that of the entry before"));
        }
        costs.push((length, latency));
    }
    Ok(costs)
}

fn dimension(tensor: &Keys<'_>) -> Result<Option<(String, usize)>, String> {
    let Some(dim) = tensor.whole("length_dim", 1, MAX_DIMENSIONS)? else { return Ok(None) };
    let name = tensor.required(tensor.text("name", "ids")?, "name", "\"ids\"")?;
    Ok(Some((name, dim)))
}
