//! Profiled costs of batches and requests, and the largest batch that a bound allows.

use crate::Request;
use ripieno_base::{BlockId, Nanos};
use ripieno_model::{Block, Model, Steps};

/// Returns the cost of a batch of a chain from `block` on, with `rows` rows padded to `length`.
pub fn of_blocks(model: &Model, block: BlockId, rows: usize, length: u32) -> Nanos {
    model.blocks[block.index()..].iter().map(|block| block.cost(rows, length)).sum()
}

/// Returns the cost of one step of a block for one request.
pub fn of_step(block: &Block, request: &Request) -> Nanos {
    block.cost(request.rows as usize, request.extent.length)
}

/// Returns the cost of a request alone: all steps of all blocks, as [`steps`] counts them.
pub fn alone(model: &Model, request: &Request, until_end: u32) -> Nanos {
    let of = |block: &Block| of_step(block, request) * i64::from(steps(block, request, until_end));
    model.blocks.iter().map(of).sum()
}

/// Returns the number of times that a request runs a block; `until_end` is the prediction for a
/// block that runs until its end. Nodes of a graph count zero, since the number of them that run
/// together is unknown.
pub fn steps(block: &Block, request: &Request, until_end: u32) -> u32 {
    let most = request.extent.steps(block.steps);
    match block.steps {
        Steps::UntilEnd => until_end.clamp(1, most.max(1)),
        Steps::Nodes => 0,
        Steps::Once | Steps::Length => most,
    }
}

/// Returns the largest of `1..=max` that fits; 0 if none does. `fits` must be monotonic: all values
/// below one that fits also fit.
pub fn largest(max: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
