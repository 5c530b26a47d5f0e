//! The tensors that flow through the blocks of a model, by number.

use ripieno_model::TensorSpec;
use std::sync::Arc;

/// A tensor between blocks.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) name: Arc<str>,
    pub(crate) spec: TensorSpec,
    /// The last block that takes it; past the last block if the request gets it.
    pub(crate) last_use: usize,
}

/// The numbers of the values that a block takes and gives, in its own order.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockPlan {
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
}

/// Whether one may be given where the other is taken.
pub(crate) fn compatible(a: &TensorSpec, b: &TensorSpec) -> bool {
    let agree = |(&a, &b): (&i64, &i64)| a == b || a == -1 || b == -1;
    a.datatype == b.datatype && a.shape.len() == b.shape.len() && a.shape.iter().zip(&b.shape).all(agree)
}
