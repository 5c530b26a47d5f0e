//! What may decide that members leave a batch on the way: a comparison with a number, or code of the embedder's own.

use crate::rows::Rows;
use half::{bf16, f16};
use ripieno_base::BlockId;
use ripieno_model::DataType;
use std::fmt::Debug;

/// Decides after each block which members leave, where a comparison with a number is not enough.
pub trait Condition: Debug + Send + Sync {
    /// What it may do after this block; asked once, at load, and checked against the model.
    fn may(&self, block: BlockId) -> May;

    /// What becomes of the walk that this row belongs to; asked after the block for each row, on a device's thread.
    fn judge(&self, block: BlockId, row: &Row<'_>) -> Verdict;
}

/// What a [`Condition`] may do after a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct May {
    /// End walks. The block then has all outputs of the model, under their names or as
    /// [`BlockSource::exit_outputs`](crate::BlockSource::exit_outputs) says.
    pub exit: bool,
    /// Send walks on to these blocks.
    pub skip_to: Vec<BlockId>,
}

/// How a walk goes on after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// With the next block.
    Go,
    /// Not at all: the answer is there.
    Exit,
    /// With this later block.
    Skip(BlockId),
}

/// A comparison of a tensor that has one number a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// An output of the block.
    pub tensor: String,
    /// How it is compared.
    pub comparison: Comparison,
    /// With what.
    pub number: f64,
}

/// How numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `<=`
    AtMost,
}

impl Comparison {
    pub(crate) fn holds(self, number: f64, bound: f64) -> bool {
        match self {
            Comparison::Above => number > bound,
            Comparison::AtLeast => number >= bound,
            Comparison::Below => number < bound,
            Comparison::AtMost => number <= bound,
        }
    }
}

/// One row of what a block gave.
#[derive(Debug)]
pub struct Row<'a> {
    pub(crate) outputs: &'a [(&'a str, Rows)],
    pub(crate) row: usize,
}

impl Row<'_> {
    /// The numbers of an output of the block; none if it has no such output, or one of strings.
    pub fn numbers(&self, tensor: &str) -> Option<Vec<f64>> {
        let (_, rows) = self.outputs.iter().find(|(name, _)| *name == tensor)?;
        numbers(rows.datatype(), rows.at(self.row).bytes())
    }
}

/// The elements as numbers; none of strings.
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
