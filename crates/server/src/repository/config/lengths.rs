//! The part of `model.toml` that says where the length of a request stands in its tensors, and how they are padded.

use super::keys::Keys;
use ripieno_executor::{InputLength, LengthDims, OutputLength};

/// The longest request that can be asked for.
const LONGEST: usize = 1_000_000;
/// More dimensions than any tensor has.
const MOST_DIMENSIONS: usize = 16;

/// Requests differ in length and are padded to share a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct LengthsConfig {
    /// The longest request.
    pub max_length: u32,
    /// Where the length stands.
    pub dims: LengthDims,
}

/// Reads what the tensors say of their lengths; none if they say nothing.
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
        dims.outputs.extend(dimension(output)?.map(|(tensor, dim)| OutputLength { tensor, dim }));
    }
    if dims == LengthDims::default() {
        return Ok(None);
    }
    let longest = keys.whole("max_length", 1, LONGEST)?;
    let max_length = longest.ok_or_else(|| {
        keys.error("length_dim needs the longest request beside it; add for example max_length = 128")
    })?;
    Ok(Some(LengthsConfig { max_length: max_length as u32, dims }))
}

fn dimension(tensor: &Keys<'_>) -> Result<Option<(String, usize)>, String> {
    let Some(dim) = tensor.whole("length_dim", 1, MOST_DIMENSIONS)? else { return Ok(None) };
    let name = tensor.required(tensor.text("name", "ids")?, "name", "\"ids\"")?;
    Ok(Some((name, dim)))
}
