//! The elements of a constant as numbers.

use ripieno_onnx::proto::{TensorProto, elem};

/// Returns the elements as numbers. Returns `None` for other types and for elements in external
/// data.
pub(super) fn numbers(tensor: &TensorProto) -> Option<Box<dyn ExactSizeIterator<Item = f64> + '_>> {
    let raw = tensor.raw_data.as_deref().unwrap_or_default();
    macro_rules! read {
        ($number:ty) => {
            Box::new(raw.as_chunks().0.iter().map(|&bytes| <$number>::from_le_bytes(bytes) as f64))
        };
    }
    let typed = !raw.is_empty();
    let numbers: Box<dyn ExactSizeIterator<Item = f64> + '_> = match tensor.data_type {
        elem::INT64 if typed => read!(i64),
        elem::INT64 => Box::new(tensor.int64_data.iter().map(|&number| number as f64)),
        elem::INT32 if typed => read!(i32),
        elem::FLOAT if typed => read!(f32),
        elem::FLOAT => Box::new(tensor.float_data.iter().map(|&number| f64::from(number))),
        elem::DOUBLE if typed => read!(f64),
        elem::INT8 if typed => read!(i8),
        elem::UINT8 | elem::BOOL if typed => Box::new(raw.iter().map(|&number| f64::from(number))),
        elem::INT32 | elem::INT8 | elem::UINT8 | elem::BOOL => {
            Box::new(tensor.int32_data.iter().map(|&number| f64::from(number)))
        }
        _ => return None,
    };
    let count = tensor.dims.iter().try_fold(1_i64, |count, &dim| count.checked_mul(dim));
    (count.and_then(|count| usize::try_from(count).ok()) == Some(numbers.len())).then_some(numbers)
}
