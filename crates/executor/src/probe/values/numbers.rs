//! The elements of a constant as numbers.

use ripieno_onnx::proto::{TensorProto, elem};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Largest size in bytes of a constant that is read from external data. Weights of this type are
/// positions and indices; a larger one is bounded by its type alone.
const MAX_EXTERNAL_BYTES: u64 = 64 << 20;

/// Returns an INT64 constant whose elements are in external data, with the elements in itself.
/// Returns `None` for others, and if the data cannot be read. `model` is the path of the ONNX file.
pub(super) fn with_external(tensor: &TensorProto, model: &Path) -> Option<TensorProto> {
    if tensor.data_type != elem::INT64 {
        return None;
    }
    let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &*entry.value);
    let location = entry("location")?;
    let count = tensor.dims.iter().try_fold(1_u64, |count, &dim| count.checked_mul(u64::try_from(dim).ok()?))?;
    let bytes = count.checked_mul(8).filter(|&bytes| bytes <= MAX_EXTERNAL_BYTES)?;
    let mut file = File::open(model.with_file_name(location)).ok()?;
    file.seek(SeekFrom::Start(entry("offset").map_or(Some(0), |offset| offset.parse().ok())?)).ok()?;
    let mut raw = vec![0; bytes as usize];
    file.read_exact(&mut raw).ok()?;
    Some(TensorProto { raw_data: Some(raw.into()), external_data: Vec::new(), ..tensor.clone() })
}

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
