//! Conversion between batches and ONNX Runtime's values, in place wherever possible.

use crate::run::rows::{BatchTensor, EngineInput};
use bytemuck::AnyBitPattern;
use bytes::Bytes;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use ort::memory::Allocator;
use ort::session::SessionInputValue;
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor, TensorRef, TensorValueTypeMarker, Value, ValueType};
use ripieno_model::DataType;
use std::fmt::Debug;
use std::ops::Range;

/// Returns a value that reads the batch in place. Strings are copied, because the library requires
/// it.
pub(crate) fn to_ort<'a>(input: &EngineInput<'a>, unbatched: bool) -> Result<SessionInputValue<'a>, String> {
    let shape: Vec<i64> = input.shape(unbatched).collect();
    match input.datatype {
        DataType::Bool => {
            let bits = bytemuck::checked::try_cast_slice::<u8, bool>(input.data);
            view(shape, bits.map_err(|_| "a BOOL element is neither 0 nor 1".to_owned())?)
        }
        DataType::Uint8 => view(shape, input.data),
        DataType::Uint16 => view(shape, elements::<u16>(input)?),
        DataType::Uint32 => view(shape, elements::<u32>(input)?),
        DataType::Uint64 => view(shape, elements::<u64>(input)?),
        DataType::Int8 => view(shape, elements::<i8>(input)?),
        DataType::Int16 => view(shape, elements::<i16>(input)?),
        DataType::Int32 => view(shape, elements::<i32>(input)?),
        DataType::Int64 => view(shape, elements::<i64>(input)?),
        DataType::Fp16 => view(shape, elements::<u16>(input)?.reinterpret_cast::<f16>()),
        DataType::Bf16 => view(shape, elements::<u16>(input)?.reinterpret_cast::<bf16>()),
        DataType::Fp32 => view(shape, elements::<f32>(input)?),
        DataType::Fp64 => view(shape, elements::<f64>(input)?),
        DataType::Bytes => {
            let strings = strings(input.data)?;
            let tensor = Tensor::from_string_array((shape, &strings[..])).map_err(|cause| cause.to_string())?;
            Ok(tensor.into())
        }
    }
}

fn view<'a, T>(shape: Vec<i64>, elements: &'a [T]) -> Result<SessionInputValue<'a>, String>
where
    T: PrimitiveTensorElementType + Clone + Debug + 'static,
{
    if elements.is_empty() {
        // The library's views need elements; an empty past has none.
        let empty = Tensor::<T>::new(&Allocator::default(), shape).map_err(|cause| cause.to_string())?;
        return Ok(empty.into());
    }
    let view = TensorRef::from_array_view((shape, elements)).map_err(|cause| cause.to_string())?;
    Ok(view.into())
}

fn elements<'a, T: AnyBitPattern>(input: &EngineInput<'a>) -> Result<&'a [T], String> {
    bytemuck::try_cast_slice(input.data).map_err(|cause| format!("its data is not {}: {cause}", input.datatype))
}

/// Converts BYTES elements to text, because ONNX strings can hold only text.
fn strings(mut data: &[u8]) -> Result<Vec<String>, String> {
    let mut strings = Vec::<String>::new();
    while let Some((prefix, rest)) = data.split_first_chunk() {
        let length = u32::from_le_bytes(*prefix) as usize;
        let (element, rest) = rest.split_at_checked(length).ok_or("its last BYTES element is cut short")?;
        let text = std::str::from_utf8(element).ok().filter(|text| !text.contains('\0')).ok_or_else(|| {
            let at = strings.len();
            format!("BYTES element {at} of the batch is not UTF-8 text without zero bytes, as ONNX strings must be")
        })?;
        strings.push(text.to_owned());
        data = rest;
    }
    Ok(strings)
}

/// Largest output in bytes that is copied, which takes a few microseconds. An output that is not
/// copied keeps its whole region of the session's arena, which may be hundreds of MiB.
const MAX_COPIED: usize = 64 << 10;

/// Converts a session's output to a batch. Large outputs are not copied, except strings and those
/// that alias inputs, because the next batch overwrites the input buffers.
pub(crate) fn from_ort(
    value: DynValue,
    declared: DataType,
    unbatched: bool,
    inputs: &InputAddresses,
) -> Result<BatchTensor, String> {
    let ValueType::Tensor { shape, .. } = value.dtype() else {
        return Err(format!("it is declared {declared}, but the session gives {}", value.dtype()));
    };
    let shape = BatchTensor::shape_of(shape.iter().copied(), unbatched);
    let data = match declared {
        DataType::Bytes => {
            let (_, strings) = value.try_extract_strings().map_err(|cause| cause.to_string())?;
            string_bytes(&strings)?
        }
        _ => {
            let bytes = value_bytes(&value, declared).map_err(|cause| cause.to_string())?;
            if bytes.len() <= MAX_COPIED || inputs.contains(bytes) {
                Bytes::copy_from_slice(bytes)
            } else {
                Bytes::from_owner(OutputOwner { value, declared })
            }
        }
    };
    BatchTensor::new(declared, shape, data)
}

/// Addresses of a batch's inputs.
#[derive(Default)]
pub(crate) struct InputAddresses(Vec<Range<*const u8>>);

impl InputAddresses {
    pub(crate) fn of(inputs: &[EngineInput<'_>]) -> InputAddresses {
        InputAddresses(inputs.iter().map(|input| input.data.as_ptr_range()).collect())
    }

    pub(crate) fn extend(&mut self, addresses: Option<Range<*const u8>>) {
        self.0.extend(addresses);
    }

    fn contains(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|input| input.contains(&bytes.as_ptr()))
    }
}

/// Keeps an output alive while its bytes are in use.
struct OutputOwner {
    value: DynValue,
    declared: DataType,
}

impl AsRef<[u8]> for OutputOwner {
    fn as_ref(&self) -> &[u8] {
        // The same call has just succeeded. If it failed here, the batch's length check would
        // report it.
        value_bytes(&self.value, self.declared).unwrap_or_default()
    }
}

/// Returns the content of a tensor of this type.
pub(super) fn value_bytes<T: TensorValueTypeMarker + ?Sized>(
    value: &Value<T>,
    declared: DataType,
) -> Result<&[u8], ort::Error> {
    Ok(match declared {
        DataType::Bool => bytemuck::cast_slice(value.try_extract_tensor::<bool>()?.1),
        DataType::Uint8 => value.try_extract_tensor::<u8>()?.1,
        DataType::Uint16 => bytemuck::cast_slice(value.try_extract_tensor::<u16>()?.1),
        DataType::Uint32 => bytemuck::cast_slice(value.try_extract_tensor::<u32>()?.1),
        DataType::Uint64 => bytemuck::cast_slice(value.try_extract_tensor::<u64>()?.1),
        DataType::Int8 => bytemuck::cast_slice(value.try_extract_tensor::<i8>()?.1),
        DataType::Int16 => bytemuck::cast_slice(value.try_extract_tensor::<i16>()?.1),
        DataType::Int32 => bytemuck::cast_slice(value.try_extract_tensor::<i32>()?.1),
        DataType::Int64 => bytemuck::cast_slice(value.try_extract_tensor::<i64>()?.1),
        DataType::Fp16 => bytemuck::cast_slice(value.try_extract_tensor::<f16>()?.1.reinterpret_cast()),
        DataType::Bf16 => bytemuck::cast_slice(value.try_extract_tensor::<bf16>()?.1.reinterpret_cast()),
        DataType::Fp32 => bytemuck::cast_slice(value.try_extract_tensor::<f32>()?.1),
        DataType::Fp64 => bytemuck::cast_slice(value.try_extract_tensor::<f64>()?.1),
        DataType::Bytes => return Err(ort::Error::new("strings are not read in place")),
    })
}

fn string_bytes(strings: &[String]) -> Result<Bytes, String> {
    let mut data = Vec::with_capacity(strings.iter().map(|string| 4 + string.len()).sum());
    for string in strings {
        let length = u32::try_from(string.len()).map_err(|_| "a string is longer than 4 GiB".to_owned())?;
        data.extend(length.to_le_bytes());
        data.extend(string.as_bytes());
    }
    Ok(data.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_must_be_text() {
        assert_eq!(strings(b"\x02\0\0\0ab\0\0\0\0").unwrap(), ["ab", ""]);
        assert!(
            strings(b"\0\0\0\0\x01\0\0\0\xff").unwrap_err().starts_with("BYTES element 1 of the batch is not UTF-8")
        );
        assert!(strings(b"\x01\0\0\0\0").is_err());
        assert_eq!(string_bytes(&["ab".to_owned(), String::new()]).unwrap(), b"\x02\0\0\0ab\0\0\0\0"[..]);
    }
}
