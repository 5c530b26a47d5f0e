//! The NPU of LazyBatching as an analytic cost model: the cost of a batch on each layer, from the
//! layer's shape alone.
//!
//! Source: "LazyBatching: An SLA-aware Batching System for Cloud Machine Learning Inference", Table
//! I: a weight-stationary systolic array of 128 x 128 at 700 MHz, 8 MB of memory on the chip for
//! activations, 360 GB/s and 100 cycles to external memory. The authors used a simulator of their
//! own that is not public, so this is a model of the same machine:
//!
//! - a layer is a product of a matrix of inputs (rows x depth) and weights (depth x columns), one
//!   byte per number;
//! - weights are cut into tiles of 128 x 128, and a tile costs a cycle for each row of the batch,
//!   plus `fill` cycles;
//! - weights stream in at full bandwidth meanwhile, and activations, too, if they exceed the 8 MB:
//!   a layer takes the longer of the two, plus 100 cycles;
//! - a depthwise layer has as many channels in a tile as fit on its diagonal.
//!
//! The 4 MB for weights are not modelled: tiles are loaded while others compute. `fill` and a
//! factor for each network are calibrated. `fill` is 256 cycles for convolutional networks, and 0
//! for the others, whose tiles arrive more slowly than they fill. The factor scales the
//! single-input latency of the three networks of Table II to the published number, and is 1 for the
//! others. These three latencies are therefore no evidence for the model. The growth of cost with
//! the batch is the model's own.
//!
//! A node is a layer with its activation and normalisation. A part that runs once per word is one
//! node for all of its layers: the paper merges requests at the same layer whatever the timestep. A
//! request at a word's first layer is where every other one is, too, once each has ended its word.
//! This omits preemption within a word, of 0.1 to 0.3 ms.
//!
//! The same layers can be evaluated on a model of the GPU that the paper also tries
//! (`titan_xp.rs`).

mod networks;
#[cfg(test)]
mod tests;
mod titan_xp;

pub use networks::{NETWORKS, NpuNetwork, named};

use ripieno_base::Nanos;

/// Cells of the array in each direction.
const ARRAY: u64 = 128;
/// Duration of seven cycles in nanoseconds: 700 MHz.
const NANOS_PER_7_CYCLES: u64 = 10;
/// Bytes transferred in seven cycles: 360 GB/s at 700 MHz.
const BYTES_PER_7_CYCLES: u64 = 3_600;
/// Cycles until the first byte from memory arrives.
const MEMORY_CYCLES: u64 = 100;
/// Capacity of the chip for activations.
const ACTIVATION_BYTES: u64 = 8 << 20;

/// The shape of a layer as a product of matrices, for one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Rows of the product: pixels of the output, or words.
    rows: u64,
    /// Numbers that each output sums over.
    depth: u64,
    /// Outputs per row.
    columns: u64,
    /// Numbers of the input.
    inputs: u64,
    /// Tiles of weights.
    tiles: u64,
    /// Bytes of weights.
    weights: u64,
}

impl Layer {
    /// Creates a layer with every output computed from every input.
    fn dense(rows: u64, depth: u64, columns: u64, inputs: u64) -> Layer {
        let tiles = depth.div_ceil(ARRAY) * columns.div_ceil(ARRAY);
        Layer { rows, depth, columns, inputs, tiles, weights: depth * columns }
    }

    /// Creates a layer with each output channel computed from the same input channel.
    fn depthwise(rows: u64, depth: u64, channels: u64, inputs: u64) -> Layer {
        let tiles = channels.div_ceil((ARRAY / depth).max(1));
        Layer { rows, depth, columns: channels, inputs, tiles, weights: depth * channels }
    }

    /// Returns the cycles for a batch.
    fn cycles(&self, batch: u64, fill: u64) -> u64 {
        let compute = self.tiles * (self.rows * batch + fill);
        let activations = (self.inputs + self.rows * self.columns) * batch;
        let bytes = self.weights + if activations > ACTIVATION_BYTES { activations } else { 0 };
        compute.max((bytes * 7).div_ceil(BYTES_PER_7_CYCLES)) + MEMORY_CYCLES
    }
}

/// Returns the duration of this number of cycles.
fn span(cycles: u64) -> Nanos {
    Nanos((cycles * NANOS_PER_7_CYCLES).div_ceil(7) as i64)
}
