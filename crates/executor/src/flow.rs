//! The tensors that flow through the blocks of a model, by number.

use ripieno_model::TensorSpec;
use std::sync::Arc;

/// A tensor between blocks.
#[derive(Clone, Debug)]
pub(crate) struct FlowValue {
    pub(crate) name: Arc<str>,
    pub(crate) spec: TensorSpec,
    /// The last block that takes it; past the last block if it is an output.
    pub(crate) last_use: usize,
}

/// The numbers of a block's input and output values, in its own order.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockPlan {
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
}

/// Whether a tensor of one specification can be passed as the other.
pub(crate) fn compatible(a: &TensorSpec, b: &TensorSpec) -> bool {
    let agree = |(&a, &b): (&i64, &i64)| a == b || a == -1 || b == -1;
    a.datatype == b.datatype && a.shape.len() == b.shape.len() && a.shape.iter().zip(&b.shape).all(agree)
}
