//! What batches and requests take by the profiles.

use crate::Request;
use ripieno_base::{BlockId, Nanos};
use ripieno_model::{Block, Model, Steps};

/// A batch of a chain from `block` on, of so many rows that are padded to `length`.
pub(crate) fn of_blocks(model: &Model, block: BlockId, rows: usize, length: u32) -> Nanos {
    model.blocks[block.index()..].iter().map(|block| block.cost(rows, length)).sum()
}

/// One step of a block for one request.
pub(crate) fn of_step(block: &Block, request: &Request) -> Nanos {
    block.cost(request.rows as usize, request.extent.length)
}

/// A request alone: all steps of all blocks, as [`steps`] counts them.
pub(crate) fn alone(model: &Model, request: &Request, until_end: u32) -> Nanos {
    let of = |block: &Block| of_step(block, request) * i64::from(steps(block, request, until_end));
    model.blocks.iter().map(of).sum()
}

/// How often a request runs a block, where one that runs until its end is predicted to be run so often. Nodes of a graph are
/// not counted: nobody knows how many of them run at once.
pub(crate) fn steps(block: &Block, request: &Request, until_end: u32) -> u32 {
    let most = request.extent.steps(block.steps);
    match block.steps {
        Steps::UntilEnd => until_end.clamp(1, most.max(1)),
        Steps::Nodes => 0,
        Steps::Once | Steps::Length => most,
    }
}
