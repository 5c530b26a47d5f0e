//! The tensors that flow between the blocks of a model, by number.

use ripieno_model::TensorSpec;
use std::sync::Arc;

/// A tensor that blocks take or output.
#[derive(Clone, Debug)]
pub(crate) struct FlowValue {
    pub(crate) name: Arc<str>,
    pub(crate) spec: TensorSpec,
    /// Index of the last block that takes it. The number of blocks if it is an output of the model.
    pub(crate) last_use: usize,
}

/// Numbers of a block's tensors, in the block's order.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockPlan {
    /// Values that the block takes.
    pub(crate) inputs: Vec<usize>,
    /// Indices of the inputs of the model that replace defaults of the block.
    pub(crate) optional: Vec<usize>,
    /// Values that the block outputs.
    pub(crate) outputs: Vec<usize>,
}

/// Whether a tensor with specification `a` can be passed as `b`.
pub(crate) fn compatible(a: &TensorSpec, b: &TensorSpec) -> bool {
    let agree = |(&a, &b): (&i64, &i64)| a == b || a == -1 || b == -1;
    a.datatype == b.datatype && a.shape.len() == b.shape.len() && a.shape.iter().zip(&b.shape).all(agree)
}
