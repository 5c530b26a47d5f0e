//! Weights: their location, and reading their elements.

use crate::error::{OnnxError, refuse};
use crate::file::OnnxFile;
use crate::proto::{EXTERNAL, GraphProto, TensorProto, elem};
use bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

/// Largest number of elements of a tracked tensor. Larger tensors are not needed to infer shapes.
const MAX_INTS: usize = 1024;

/// Upper bound on sizes and costs of single tensors and operators, so that their sums cannot
/// overflow.
pub(crate) const MAX_COST: u64 = 1 << 40;

/// Largest size of all weights together that are stored in a rewritten file.
const MAX_INLINE_BYTES: u64 = 1 << 30;

/// Moves all weights of a file's graph into the graph.
pub(crate) fn inline_all(graph: &mut GraphProto, file: &OnnxFile) -> Result<(), OnnxError> {
    let total = graph.initializer.iter().fold(0u64, |total, weight| total.saturating_add(size(weight)));
    if total > MAX_INLINE_BYTES {
        return refuse("its weights are larger than 1 GiB".to_owned());
    }
    let folder = file.path().parent().unwrap_or(Path::new(""));
    for weight in &mut graph.initializer {
        *weight = inline(weight, folder)?;
    }
    Ok(())
}

/// Returns the size of one element in bytes; `None` for strings, packed and unknown types.
pub(crate) fn element_bytes(elem_type: i32) -> Option<usize> {
    match elem_type {
        2 | 3 | 9 | 17..=20 => Some(1),
        4 | 5 | 10 | 16 => Some(2),
        1 | 6 | 12 => Some(4),
        7 | 11 | 13 | 14 => Some(8),
        _ => None,
    }
}

/// Returns the number of elements.
pub(crate) fn elements(tensor: &TensorProto) -> Option<usize> {
    tensor.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))
}

/// Returns the size in memory in bytes. An element of a type without a known size counts as 1 byte.
pub(crate) fn size(tensor: &TensorProto) -> u64 {
    let bytes = elements(tensor).and_then(|count| count.checked_mul(element_bytes(tensor.data_type).unwrap_or(1)));
    (bytes.unwrap_or(0) as u64).min(MAX_COST)
}

/// Returns the elements of a small integer tensor of at most one dimension, if they are in the file
/// itself.
pub(crate) fn small_ints(tensor: &TensorProto) -> Option<Vec<i64>> {
    let count = elements(tensor).filter(|&count| count <= MAX_INTS && tensor.dims.len() <= 1)?;
    let raw = tensor.raw_data.as_deref().filter(|_| tensor.data_location != EXTERNAL);
    let ints: Vec<i64> = match (tensor.data_type, raw) {
        (elem::INT64, Some(raw)) => raw.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        (elem::INT32, Some(raw)) => raw.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect(),
        (elem::BOOL, Some(raw)) => raw.iter().map(|&byte| i64::from(byte != 0)).collect(),
        (elem::INT64, None) => tensor.int64_data.clone(),
        (elem::INT32 | elem::BOOL, None) => tensor.int32_data.iter().map(|&int| int.into()).collect(),
        _ => return None,
    };
    (ints.len() == count).then_some(ints)
}

/// Returns the largest element of a small integer tensor in the file itself, if none is below 0.
pub(crate) fn largest_index(tensor: &TensorProto) -> Option<i64> {
    let count = elements(tensor).filter(|&count| count <= MAX_INTS)?;
    let ints = small_ints(&TensorProto { dims: vec![count as i64], ..tensor.clone() })?;
    ints.iter().all(|&int| int >= 0).then(|| ints.into_iter().max())?
}

/// Returns the elements of an FP32 tensor. External data is read from `folder`.
pub(crate) fn floats(tensor: &TensorProto, folder: &Path) -> Result<Vec<f32>, OnnxError> {
    let broken = || OnnxError(format!("weight '{}' does not have the elements that its shape says", tensor.name));
    if tensor.data_type != elem::FLOAT {
        return refuse(format!("weight '{}' is not of 32-bit floats", tensor.name));
    }
    let tensor = inline(tensor, folder)?;
    let floats: Vec<f32> = match &tensor.raw_data {
        Some(raw) => raw.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        None => tensor.float_data,
    };
    let expected = tensor.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
    if Some(floats.len()) == expected { Ok(floats) } else { Err(broken()) }
}

/// Returns the elements of an FP32, INT64, INT32 or BOOL tensor in words of 4 bytes, and whether
/// they are integers. External data is read from `folder`. An integer of 64 bits must fit into 32.
pub fn words(tensor: &TensorProto, folder: &Path) -> Result<(bool, Vec<u32>), OnnxError> {
    if tensor.data_type == elem::FLOAT {
        return Ok((false, floats(tensor, folder)?.into_iter().map(f32::to_bits).collect()));
    }
    let inside = inline(tensor, folder)?;
    let ints: Vec<i64> = match (tensor.data_type, &inside.raw_data) {
        (elem::INT64, Some(raw)) => raw.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        (elem::INT32, Some(raw)) => raw.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect(),
        (elem::BOOL, Some(raw)) => raw.iter().map(|&byte| i64::from(byte != 0)).collect(),
        (elem::INT64, None) => inside.int64_data.clone(),
        (elem::INT32 | elem::BOOL, None) => inside.int32_data.iter().map(|&int| int.into()).collect(),
        (other, _) => return refuse(format!("constant '{}' has ONNX's type {other}", tensor.name)),
    };
    if elements(tensor) != Some(ints.len()) {
        return refuse(format!("constant '{}' does not have the elements that its shape says", tensor.name));
    }
    let word = |int: i64| i32::try_from(int).map(|int| int as u32);
    let words = ints.into_iter().map(word).collect::<Result<_, _>>();
    Ok((true, words.map_err(|_| OnnxError(format!("constant '{}' exceeds 32 bits", tensor.name)))?))
}

/// Returns the elements of an FP32 tensor that is inside the file.
pub(crate) fn float_elements(tensor: &TensorProto) -> Option<Vec<f32>> {
    let inside = tensor.data_location != EXTERNAL;
    inside.then(|| floats(tensor, Path::new("")).ok()).flatten()
}

/// Returns the tensor with its elements, which are read from `folder` if they are external.
pub(crate) fn inline(tensor: &TensorProto, folder: &Path) -> Result<TensorProto, OnnxError> {
    if tensor.data_location != EXTERNAL {
        return Ok(tensor.clone());
    }
    let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &*entry.value);
    let name = &tensor.name;
    let Some(location) = entry("location") else {
        return refuse(format!("weight '{name}' lies in a file that has no name: export the model anew"));
    };
    let path = Path::new(location);
    if !path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return refuse(format!("weight '{name}' lies in '{location}': save it beside the model instead"));
    }
    let number = |key: &str| entry(key).map_or(Ok(None), |text| text.parse::<u64>().map(Some));
    let (Ok(offset), Ok(length)) = (number("offset"), number("length")) else {
        return refuse(format!("weight '{name}' has an offset or length that is no number: export the model anew"));
    };
    let size = size(tensor);
    if length.is_some_and(|length| length != size) {
        return refuse(format!("weight '{name}' takes {size} bytes, but its entry says otherwise"));
    }
    let data = read_range(&folder.join(path), offset.unwrap_or(0), size)
        .map_err(|cause| OnnxError(format!("weight '{name}' cannot be read from '{location}': {cause}")))?;
    let (external_data, raw_data) = (Vec::new(), Some(Bytes::from(data)));
    Ok(TensorProto { data_location: 0, external_data, raw_data, ..tensor.clone() })
}

fn read_range(path: &Path, offset: u64, size: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut data = Vec::new();
    file.take(size).read_to_end(&mut data)?;
    if (data.len() as u64) < size {
        return Err(std::io::Error::other("the file ends before"));
    }
    Ok(data)
}

/// Returns the shape and the elements of an input's default in bytes, as requests bring them.
/// External data is read from the file's folder.
pub fn default_value(file: &OnnxFile, input: &str) -> Result<(Vec<i64>, Vec<u8>), OnnxError> {
    let broken = || OnnxError(format!("the default of input '{input}' does not have the elements that its shape says"));
    let weight = file.graph().initializer.iter().find(|weight| weight.name == input).ok_or_else(broken)?;
    let TensorProto { data_type, raw_data, int32_data, int64_data, float_data, dims, .. } =
        inline(weight, file.path().parent().unwrap_or(Path::new("")))?;
    let data: Vec<u8> = match (data_type, raw_data) {
        (_, Some(raw)) => raw.to_vec(),
        (elem::FLOAT, None) => float_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
        (elem::INT64, None) => int64_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
        (elem::INT32, None) => int32_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
        // One byte an element, in the low bits.
        (elem::BOOL | elem::INT8 | elem::UINT8, None) => int32_data.iter().map(|&number| number as u8).collect(),
        (other, None) => return refuse(format!("the default of input '{input}' has ONNX's type {other}")),
    };
    let size = element_bytes(data_type).zip(elements(weight)).and_then(|(size, count)| size.checked_mul(count));
    if size == Some(data.len()) { Ok((dims, data)) } else { Err(broken()) }
}

/// Creates an FP32 tensor.
pub(crate) fn float_tensor(name: &str, dims: &[i64], elements: &[f32]) -> TensorProto {
    let raw: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    let (name, dims, raw_data) = (name.to_owned(), dims.to_vec(), Some(Bytes::from(raw)));
    TensorProto { name, dims, data_type: elem::FLOAT, raw_data, ..TensorProto::default() }
}

/// Creates an INT64 list.
pub(crate) fn int_tensor(name: &str, elements: &[i64]) -> TensorProto {
    let raw: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    let (dims, raw_data) = (vec![elements.len() as i64], Some(Bytes::from(raw)));
    TensorProto { name: name.to_owned(), dims, data_type: elem::INT64, raw_data, ..TensorProto::default() }
}
