//! ConstantTensor of tensors as words of a device, and back.
//!
//! A device knows 32-bit floats and integers. Ids of 64 bits that do not fit become -1, which no
//! table has.

use crate::run::rows::BatchTensor;
use half::f16;
use ripieno_cuda::{Precision, UNIT};
use ripieno_model::DataType;
use ripieno_onnx::proto::TensorProto;
use std::path::Path;

/// A constant of a graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConstantTensor {
    pub(super) dims: Vec<usize>,
    pub(super) is_int: bool,
    pub(super) words: Vec<u32>,
}

impl ConstantTensor {
    pub(super) fn count(&self) -> usize {
        self.words.len()
    }

    /// Returns the numbers if they are integers.
    pub(super) fn ints(&self) -> Option<Vec<i64>> {
        self.is_int.then(|| self.words.iter().map(|&word| i64::from(word as i32)).collect())
    }
}

/// Whether a device can hold values of this type.
pub(super) fn is_known(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp32 | DataType::Int64 | DataType::Int32 | DataType::Bool)
}

pub(super) fn is_int(datatype: DataType) -> bool {
    datatype != DataType::Fp32
}

/// Writes the elements of a row as words.
pub(super) fn to_words(datatype: DataType, bytes: &[u8], words: &mut [u32]) {
    let id = |bytes| i32::try_from(i64::from_le_bytes(bytes)).unwrap_or(-1) as u32;
    match datatype {
        DataType::Int64 => words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, &bytes)| *word = id(bytes)),
        DataType::Bool => words.iter_mut().zip(bytes).for_each(|(word, &byte)| *word = u32::from(byte != 0)),
        _ => words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, &bytes)| *word = u32::from_le_bytes(bytes)),
    }
}

/// Appends words as elements of a type.
pub(super) fn from_words(datatype: DataType, words: &[u32], bytes: &mut Vec<u8>) {
    match datatype {
        DataType::Int64 => bytes.extend(words.iter().flat_map(|&word| i64::from(word as i32).to_le_bytes())),
        DataType::Bool => bytes.extend(words.iter().map(|&word| u8::from(word != 0))),
        _ => bytes.extend_from_slice(bytemuck::cast_slice(words)),
    }
}

/// Creates a batch of rows.
pub(super) fn batch(datatype: DataType, row_shape: &[i64], rows: usize, bytes: Vec<u8>) -> Result<BatchTensor, String> {
    let shape = [&[rows as i64], row_shape].concat();
    BatchTensor::new(datatype, shape, bytes.into())
}

/// Reads the numbers of a tensor. External data is read from `folder`.
pub(super) fn read_numbers(tensor: &TensorProto, folder: &Path) -> Result<ConstantTensor, String> {
    let dims = tensor.dims.iter().map(|&dim| usize::try_from(dim)).collect::<Result<Vec<_>, _>>();
    let dims = dims.map_err(|_| format!("constant '{}' has the shape {:?}", tensor.name, tensor.dims))?;
    let (is_int, words) = ripieno_onnx::words(tensor, folder).map_err(|cause| cause.to_string())?;
    Ok(ConstantTensor { dims, is_int, words })
}

/// The constants of a model's programs.
#[derive(Debug)]
pub(super) struct Constants {
    pub(super) words: Vec<u32>,
    precision: Precision,
}

impl Constants {
    pub(super) fn new(precision: Precision) -> Constants {
        Constants { words: Vec::new(), precision }
    }

    /// Adds words at a multiple of 16 bytes. Returns the first word's place.
    fn add(&mut self, words: impl IntoIterator<Item = u32>) -> usize {
        let base = self.words.len();
        self.words.extend(words);
        self.words.resize(self.words.len().next_multiple_of(UNIT), 0);
        base
    }

    pub(super) fn words(&mut self, numbers: &ConstantTensor) -> usize {
        self.add(numbers.words.iter().copied())
    }

    /// Adds a table, whose rows begin at multiples of 16 bytes. Returns its place and words a row.
    pub(super) fn table(&mut self, table: &ConstantTensor) -> (usize, usize) {
        let columns = table.dims[1];
        let stride = columns.next_multiple_of(UNIT);
        let padded =
            |row: &[u32]| row.iter().copied().chain(std::iter::repeat_n(0, stride - columns)).collect::<Vec<_>>();
        let words: Vec<u32> = table.words.chunks_exact(columns.max(1)).flat_map(padded).collect();
        (self.add(words), stride)
    }

    /// Adds the constant factor of a product, in the model's precision.
    pub(super) fn factor(&mut self, factor: &ConstantTensor) -> usize {
        if self.precision != Precision::Fp16 {
            return self.words(factor);
        }
        let half = |word: &u32| u32::from(f16::from_f32(f32::from_bits(*word)).to_bits());
        let pair = |pair: &[u32]| half(&pair[0]) | pair.get(1).map_or(0, |second| half(second) << 16);
        self.add(factor.words.chunks(2).map(pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_become_words_and_return() {
        for (datatype, bytes, expected) in [
            (DataType::Int64, [3i64, -2].map(i64::to_le_bytes).concat(), vec![3, u32::MAX - 1]),
            (DataType::Int32, [3i32, -2].map(i32::to_le_bytes).concat(), vec![3, u32::MAX - 1]),
            (DataType::Bool, vec![1, 0], vec![1, 0]),
            (DataType::Fp32, [1.5f32, -2.0].map(f32::to_le_bytes).concat(), vec![1.5f32.to_bits(), (-2f32).to_bits()]),
        ] {
            let mut words = vec![7; 2];
            to_words(datatype, &bytes, &mut words);
            assert_eq!(words, expected, "{datatype}");
            let mut returned = Vec::new();
            from_words(datatype, &words, &mut returned);
            assert_eq!(returned, bytes, "{datatype}");
        }
        let mut words = [0];
        to_words(DataType::Int64, &(1i64 << 40).to_le_bytes(), &mut words);
        assert_eq!(words, [u32::MAX], "an id that is too large is none");
    }
}
