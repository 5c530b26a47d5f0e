//! Tensors as bytes: for each its name, datatype, shape and elements, with the elements as they lie
//! in memory.

use super::DecodeError;
use bytes::{Buf, Bytes};
use ripieno_executor::Tensor;
use ripieno_model::DataType;
use std::sync::Arc;

/// The largest number of tensors in a request or a response, and of dimensions of each.
const MAX_TENSORS: usize = 1 << 12;
const MAX_DIMS: usize = 1 << 8;

/// Appends tensors to a buffer.
pub fn write_tensors(tensors: &[Tensor], into: &mut Vec<u8>) {
    into.extend_from_slice(&(tensors.len() as u32).to_le_bytes());
    for tensor in tensors {
        let datatype = DataType::ALL.iter().position(|&datatype| datatype == tensor.datatype).unwrap_or(0);
        into.extend_from_slice(&(tensor.name.len() as u32).to_le_bytes());
        into.extend_from_slice(&(datatype as u16).to_le_bytes());
        into.extend_from_slice(&(tensor.shape.len() as u16).to_le_bytes());
        into.extend_from_slice(&(tensor.data.len() as u64).to_le_bytes());
        into.extend_from_slice(tensor.name.as_bytes());
        tensor.shape.iter().for_each(|size| into.extend_from_slice(&size.to_le_bytes()));
        into.extend_from_slice(&tensor.data);
    }
}

/// Decodes tensors; their elements are slices of `bytes`.
pub fn read_tensors(mut bytes: Bytes) -> Result<Vec<Tensor>, DecodeError> {
    let count = bytes.try_get_u32_le().map_err(|_| short())? as usize;
    if count > MAX_TENSORS {
        return Err(DecodeError(format!("{count} tensors; {MAX_TENSORS} are taken")));
    }
    let tensors: Vec<Tensor> = (0..count).map(|_| read_tensor(&mut bytes)).collect::<Result<_, _>>()?;
    if bytes.is_empty() {
        Ok(tensors)
    } else {
        Err(DecodeError(format!("{} bytes behind the last tensor", bytes.len())))
    }
}

fn short() -> DecodeError {
    DecodeError("tensors that are longer than they are".to_owned())
}

fn read_tensor(bytes: &mut Bytes) -> Result<Tensor, DecodeError> {
    let name = bytes.try_get_u32_le().map_err(|_| short())? as usize;
    let datatype = bytes.try_get_u16_le().map_err(|_| short())?;
    let dims = usize::from(bytes.try_get_u16_le().map_err(|_| short())?);
    let data = usize::try_from(bytes.try_get_u64_le().map_err(|_| short())?).map_err(|_| short())?;
    if dims > MAX_DIMS {
        return Err(DecodeError(format!("a tensor of {dims} dimensions; {MAX_DIMS} are taken")));
    }
    let datatype = DataType::ALL.get(usize::from(datatype)).copied();
    let datatype = datatype.ok_or_else(|| DecodeError("a tensor of no datatype".to_owned()))?;
    let name = split_bytes(bytes, name)?;
    let name = std::str::from_utf8(&name).map_err(|_| DecodeError("a tensor whose name is no text".to_owned()))?;
    let shape: Result<Vec<i64>, _> = (0..dims).map(|_| bytes.try_get_i64_le().map_err(|_| short())).collect();
    let (name, shape) = (Arc::from(name), shape?);
    Ok(Tensor { name, datatype, shape, data: split_bytes(bytes, data)? })
}

fn split_bytes(bytes: &mut Bytes, count: usize) -> Result<Bytes, DecodeError> {
    if bytes.len() < count { Err(short()) } else { Ok(bytes.split_to(count)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_survive_and_what_is_cut_short_is_refused() {
        let tensor = |name: &str, datatype, shape: &[i64], data: &'static [u8]| Tensor {
            name: name.into(),
            datatype,
            shape: shape.to_vec(),
            data: Bytes::from_static(data),
        };
        let tensors = [
            tensor("x", DataType::Fp32, &[1, 1], &[1, 2, 3, 4]),
            tensor("é", DataType::Bytes, &[0], &[]),
            tensor("", DataType::Bool, &[], &[1]),
        ];
        let mut bytes = Vec::new();
        write_tensors(&tensors, &mut bytes);
        assert_eq!(read_tensors(Bytes::from(bytes.clone())).unwrap(), tensors);
        for cut in 0..bytes.len() {
            assert!(read_tensors(Bytes::copy_from_slice(&bytes[..cut])).is_err(), "cut at {cut}");
        }
        bytes.push(0);
        assert!(read_tensors(Bytes::from(bytes)).is_err());
    }
}
