//! Conditions on which a request leaves a batch: a comparison with a number, or the embedder's
//! code.

use crate::run::rows::Rows;
use half::{bf16, f16};
use ripieno_base::BlockId;
use ripieno_model::DataType;
use std::fmt::Debug;

/// User code that decides after each block which requests leave the batch. It is needed if a
/// comparison with a number is not sufficient.
pub trait Condition: Debug + Send + Sync {
    /// Returns the decisions that [`judge`](Condition::judge) may make after this block. It is
    /// called once, at load, and checked against the model.
    fn may(&self, block: BlockId) -> AllowedExits;

    /// Decides how the request of this row continues. It is called after the block for each row, on
    /// a device's thread.
    fn judge(&self, block: BlockId, row: &OutputRow<'_>) -> BlockDecision;
}

/// The decisions that a [`Condition`] may make after a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedExits {
    /// Whether a request may end. The block must then have all outputs of the model, under their
    /// names or mapped by [`BlockSource::exit_outputs`](crate::BlockSource::exit_outputs).
    pub exit: bool,
    /// Blocks to which a request may skip.
    pub skip_to: Vec<BlockId>,
}

/// Decision how a request continues after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockDecision {
    /// Continue with the next block.
    Go,
    /// End the request; the answer is complete.
    Exit,
    /// Skip to this later block.
    Skip(BlockId),
}

/// A comparison of a tensor, which must have one number per row, with a constant.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorRule {
    /// Name of the tensor, which is an output of the block.
    pub tensor: String,
    /// The comparison operator.
    pub comparison: ComparisonOperator,
    /// The constant.
    pub number: f64,
}

/// Comparison operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonOperator {
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `<=`
    AtMost,
}

impl ComparisonOperator {
    pub(crate) fn holds(self, number: f64, bound: f64) -> bool {
        match self {
            ComparisonOperator::Above => number > bound,
            ComparisonOperator::AtLeast => number >= bound,
            ComparisonOperator::Below => number < bound,
            ComparisonOperator::AtMost => number <= bound,
        }
    }
}

/// One row of a block's outputs.
#[derive(Debug)]
pub struct OutputRow<'a> {
    pub(crate) outputs: &'a [(&'a str, Rows)],
    pub(crate) row: usize,
}

impl OutputRow<'_> {
    /// Returns the numbers of an output of the block. `None` if the output does not exist or holds
    /// strings.
    pub fn numbers(&self, tensor: &str) -> Option<Vec<f64>> {
        let (_, rows) = self.outputs.iter().find(|(name, _)| *name == tensor)?;
        numbers(rows.datatype(), rows.at(self.row).bytes())
    }
}

/// Converts elements to numbers; `None` for strings.
pub(crate) fn numbers(datatype: DataType, bytes: &[u8]) -> Option<Vec<f64>> {
    macro_rules! of {
        ($number:ty) => {
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&bytes| <$number>::from_le_bytes(bytes))
                .map(|number| number as f64)
                .collect()
        };
    }
    Some(match datatype {
        DataType::Bool => bytes.iter().map(|&byte| f64::from(u8::from(byte != 0))).collect(),
        DataType::Uint8 => of!(u8),
        DataType::Uint16 => of!(u16),
        DataType::Uint32 => of!(u32),
        DataType::Uint64 => of!(u64),
        DataType::Int8 => of!(i8),
        DataType::Int16 => of!(i16),
        DataType::Int32 => of!(i32),
        DataType::Int64 => of!(i64),
        DataType::Fp16 => bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f64()).collect(),
        DataType::Bf16 => bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f64()).collect(),
        DataType::Fp32 => of!(f32),
        DataType::Fp64 => of!(f64),
        DataType::Bytes => return None,
    })
}
