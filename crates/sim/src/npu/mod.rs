//! The NPU of LazyBatching as an analytic cost model: what a batch costs on each layer, from the layer's shape alone.
//!
//! Source: "LazyBatching: An SLA-aware Batching System for Cloud Machine Learning Inference", Table I: a weight-stationary
//! systolic array of 128 x 128 at 700 MHz, 8 MB of memory on the chip for activations, 360 GB/s and 100 cycles to the memory
//! outside. The authors used a simulator of their own that is not public, so this is a model of the same machine:
//!
//! - a layer is a product of a matrix of inputs (rows x depth) and weights (depth x columns), one byte a number;
//! - weights are cut into tiles of 128 x 128, and a tile costs a cycle for each row of the batch, and `fill` cycles;
//! - weights stream in at full bandwidth meanwhile, and activations too if they exceed the 8 MB: a layer takes the longer of the
//!   two, and 100 cycles;
//! - a depthwise layer has as many channels in a tile as fit on its diagonal.
//!
//! The 4 MB for weights are not modelled: tiles are loaded while others compute. `fill` and a factor for each network are
//! calibrated: fill is 256 cycles for convolutional networks, 0 for the others, whose tiles arrive more slowly than they fill; the
//! factor brings the single-input latency of the three networks of Table II to the number there, and is 1 for the others. So
//! these three latencies are no evidence of anything. How cost grows with the batch is the model's own.
//!
//! A node is a layer with its activation and normalisation. A part that runs once a word is one node for all of its layers:
//! the paper merges requests at the same layer whatever the timestep, and a request at a word's first layer is where every
//! other one is, too, once each has ended its word. Preemption within a word, 0.1 to 0.3 ms, is what that leaves out.
//!
//! The same layers can be put on a model of the GPU that the paper tries as well (`titan_xp.rs`).

mod networks;
#[cfg(test)]
mod tests;
mod titan_xp;

pub use networks::{NETWORKS, NpuNetwork, named};

use ripieno_base::Nanos;

/// Cells of the array in each direction.
const ARRAY: u64 = 128;
/// Nanoseconds of ten cycles and seven: 700 MHz.
const NANOS_PER_7_CYCLES: u64 = 10;
/// Cycles of 3,600 bytes and seven: 360 GB/s at 700 MHz.
const BYTES_PER_7_CYCLES: u64 = 3_600;
/// To the first byte from memory.
const MEMORY_CYCLES: u64 = 100;
/// What activations have on the chip.
const ACTIVATION_BYTES: u64 = 8 << 20;

/// The shape of a layer as a product of matrices, for one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Pixels of the output, or words: rows of the product.
    rows: u64,
    /// Numbers that each output sums over.
    depth: u64,
    /// Outputs of each row.
    columns: u64,
    /// Numbers of the input.
    inputs: u64,
    /// Tiles of weights.
    tiles: u64,
    /// Bytes of weights.
    weights: u64,
}

impl Layer {
    /// Every output from every input.
    fn dense(rows: u64, depth: u64, columns: u64, inputs: u64) -> Layer {
        let tiles = depth.div_ceil(ARRAY) * columns.div_ceil(ARRAY);
        Layer { rows, depth, columns, inputs, tiles, weights: depth * columns }
    }

    /// A channel of outputs from the same channel of inputs.
    fn depthwise(rows: u64, depth: u64, channels: u64, inputs: u64) -> Layer {
        let tiles = channels.div_ceil((ARRAY / depth).max(1));
        Layer { rows, depth, columns: channels, inputs, tiles, weights: depth * channels }
    }

    /// Cycles for a batch.
    fn cycles(&self, batch: u64, fill: u64) -> u64 {
        let compute = self.tiles * (self.rows * batch + fill);
        let activations = (self.inputs + self.rows * self.columns) * batch;
        let bytes = self.weights + if activations > ACTIVATION_BYTES { activations } else { 0 };
        compute.max((bytes * 7).div_ceil(BYTES_PER_7_CYCLES)) + MEMORY_CYCLES
    }
}

/// How long so many cycles take.
fn span(cycles: u64) -> Nanos {
    Nanos((cycles * NANOS_PER_7_CYCLES).div_ceil(7) as i64)
}
