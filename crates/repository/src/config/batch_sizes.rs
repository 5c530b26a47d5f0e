//! `batch_sizes`: the sizes that batches of a whole model or a chain are padded to, or that batches
//! of a cell are formed in.

use super::keys::Keys;
use super::{Batching, Granularity, MAX_BATCH, ModelConfig};
use ripieno_model::ascends;

/// Reads the sizes; `None` if the key is absent.
pub(super) fn read(keys: &Keys<'_>) -> Result<Option<Vec<usize>>, String> {
    let Some(sizes) = keys.integers("batch_sizes", "[1, 8, 64]")? else { return Ok(None) };
    // Negative numbers count as 0, which is refused.
    let sizes: Vec<usize> = sizes.into_iter().map(|size| usize::try_from(size).unwrap_or(0)).collect();
    match ascends(&sizes) && sizes.last().is_none_or(|&last| last <= MAX_BATCH) {
        true => Ok(Some(sizes)),
        false => Err(keys.wrong("batch_sizes", "must be ascending whole numbers from 1, for example [1, 8, 64]")),
    }
}

/// Checks the sizes of a whole model or a chain, and makes the largest the maximum batch size.
pub(super) fn apply(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), String> {
    let Some(sizes) = &config.batch_sizes else { return Ok(()) };
    let refuse = |fix: &str| Err(keys.wrong("batch_sizes", fix));
    if config.cells.is_some() {
        return refuse("belongs into each [[block]] of a walk of cells; move it there");
    }
    if config.granularity == Granularity::Cells {
        return refuse("is for whole models and chains, not for cells; remove it or granularity");
    }
    let Some(&largest) = sizes.last() else { return Ok(()) };
    if config.batching == Batching::Off {
        return refuse("contradicts batching = \"off\"; remove one of the two");
    }
    match config.max_batch {
        Some(max_batch) if max_batch != largest => {
            refuse(&format!("must end with max_batch = {max_batch}; add that size, or remove max_batch"))
        }
        _ => {
            config.max_batch = Some(largest);
            Ok(())
        }
    }
}
