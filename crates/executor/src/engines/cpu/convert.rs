//! Conversion between the datatypes that models declare and those that rten computes with.
//!
//! rten stores 64-bit integers and booleans as 32-bit integers. An id that does not fit is refused,
//! because truncation would select a wrong row of the embedding without an error.

use crate::ExecError;
use crate::contract::buffer::into_bytes;
use crate::contract::kept::KeptBytes;
use crate::run::rows::{BatchTensor, EngineInput};
use bytemuck::AnyBitPattern;
use bytes::Bytes;
use ripieno_model::DataType;
use rten::{Value, ValueView};
use rten_tensor::{AsView, Layout};

/// Whether rten supports tensors of this declared datatype.
pub(crate) fn carries(datatype: DataType) -> bool {
    use DataType::{Bool, Fp32, Int8, Int32, Int64, Uint8};
    matches!(datatype, Fp32 | Int32 | Int64 | Bool | Int8 | Uint8)
}

/// Buffer for the converted elements of one input, reused between batches.
#[derive(Debug, Default)]
pub(crate) struct ConversionBuffer {
    elements: Vec<i32>,
    kept: KeptBytes,
}

impl ConversionBuffer {
    /// Makes room for `count` elements.
    fn begin(&mut self, count: usize) {
        self.elements.clear();
        self.elements.reserve(count);
        self.kept.raise_to(self.elements.capacity() * size_of::<i32>());
    }
}

/// Returns a view of an input for rten. The data stays in place if the datatypes agree.
pub(crate) fn to_rten<'a>(
    input: &EngineInput<'a>,
    scratch: &'a mut ConversionBuffer,
    unbatched: bool,
) -> Result<ValueView<'a>, ExecError> {
    let shape: Vec<usize> = input.shape(unbatched).map(|dim| dim as usize).collect();
    let refuse = |cause: String| ExecError(format!("input '{}': {cause}", input.name));
    let view = match input.datatype {
        DataType::Fp32 => ValueView::from_shape(shape, elements::<f32>(input)?).map_err(|cause| cause.to_string()),
        DataType::Int32 => ValueView::from_shape(shape, elements::<i32>(input)?).map_err(|cause| cause.to_string()),
        DataType::Int8 => ValueView::from_shape(shape, elements::<i8>(input)?).map_err(|cause| cause.to_string()),
        DataType::Uint8 => ValueView::from_shape(shape, input.data).map_err(|cause| cause.to_string()),
        DataType::Int64 => {
            narrow(elements::<i64>(input)?, scratch).map_err(refuse)?;
            ValueView::from_shape(shape, &scratch.elements[..]).map_err(|cause| cause.to_string())
        }
        DataType::Bool => {
            scratch.begin(input.data.len());
            scratch.elements.extend(input.data.iter().map(|&byte| i32::from(byte != 0)));
            ValueView::from_shape(shape, &scratch.elements[..]).map_err(|cause| cause.to_string())
        }
        other => Err(format!("engine 'cpu' cannot carry {other}: use --engine onnxruntime")),
    };
    view.map_err(refuse)
}

fn elements<'a, T: AnyBitPattern>(input: &EngineInput<'a>) -> Result<&'a [T], ExecError> {
    let wrong = |cause| ExecError(format!("input '{}' is no {} data: {cause}", input.name, input.datatype));
    bytemuck::try_cast_slice(input.data).map_err(wrong)
}

fn narrow(wide: &[i64], scratch: &mut ConversionBuffer) -> Result<(), String> {
    scratch.begin(wide.len());
    for &element in wide {
        let narrow = i32::try_from(element).map_err(|_| {
            format!(
                "{element} does not fit the 32-bit integers that engine 'cpu' computes in: use --engine onnxruntime"
            )
        })?;
        scratch.elements.push(narrow);
    }
    Ok(())
}

/// Returns a constant of a file as rten holds it. Integers beyond 32 bits become the nearest ones
/// within, as in other constants.
pub(crate) fn constant(datatype: DataType, shape: &[i64], data: &[u8]) -> Result<Value, String> {
    let shape: Vec<usize> = shape.iter().map(|&dim| dim as usize).collect();
    let words = || data.as_chunks().0.iter();
    let longs = || data.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes));
    let narrow = |number: i64| number.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    let text = |cause: &dyn std::fmt::Display| cause.to_string();
    match datatype {
        DataType::Fp32 => {
            let numbers: Vec<f32> = words().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            Value::from_shape(shape, numbers).map_err(|cause| text(&cause))
        }
        DataType::Int32 | DataType::Int64 | DataType::Bool => {
            let numbers: Vec<i32> = match datatype {
                DataType::Int32 => words().map(|&bytes| i32::from_le_bytes(bytes)).collect(),
                DataType::Int64 => longs().map(narrow).collect(),
                _ => data.iter().map(|&byte| i32::from(byte != 0)).collect(),
            };
            Value::from_shape(shape, numbers).map_err(|cause| text(&cause))
        }
        DataType::Int8 => {
            let numbers: Vec<i8> = data.iter().map(|&byte| byte as i8).collect();
            Value::from_shape(shape, numbers).map_err(|cause| text(&cause))
        }
        DataType::Uint8 => Value::from_shape(shape, data.to_vec()).map_err(|cause| text(&cause)),
        other => Err(format!("engine 'cpu' cannot carry {other}")),
    }
}

/// Converts an output of rten to the datatype that the model declares.
pub(crate) fn from_rten(value: Value, declared: DataType, unbatched: bool) -> Result<BatchTensor, String> {
    let dims = |shape: &[usize]| BatchTensor::shape_of(shape.iter().map(|&dim| dim as i64), unbatched);
    let (shape, data) = match (declared, value) {
        (DataType::Fp32, Value::FloatTensor(tensor)) => (dims(tensor.shape()), into_bytes(tensor.into_data())),
        (DataType::Int32, Value::Int32Tensor(tensor)) => (dims(tensor.shape()), into_bytes(tensor.into_data())),
        (DataType::Int8, Value::Int8Tensor(tensor)) => (dims(tensor.shape()), into_bytes(tensor.into_data())),
        (DataType::Uint8, Value::UInt8Tensor(tensor)) => (dims(tensor.shape()), Bytes::from(tensor.into_data())),
        (DataType::Int64, Value::Int32Tensor(tensor)) => {
            let wide = tensor.iter().map(|&element| i64::from(element)).collect::<Vec<_>>();
            (dims(tensor.shape()), into_bytes(wide))
        }
        (DataType::Bool, Value::Int32Tensor(tensor)) => {
            let bytes = tensor.iter().map(|&element| u8::from(element != 0)).collect::<Vec<_>>();
            (dims(tensor.shape()), Bytes::from(bytes))
        }
        (_, value) => return Err(format!("it is declared {declared}, but rten gives {:?}", value.dtype())),
    };
    BatchTensor::new(declared, shape, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_do_not_fit_are_refused() {
        let mut scratch = ConversionBuffer::default();
        narrow(&[7, -1, i64::from(i32::MAX)], &mut scratch).unwrap();
        assert_eq!(scratch.elements, [7, -1, i32::MAX]);
        assert!(narrow(&[1, 1 << 31], &mut scratch).unwrap_err().starts_with("2147483648 does not fit"));
    }

    #[test]
    fn outputs_return_to_the_declared_datatype() {
        let value = Value::from_shape([2, 1], vec![5i32, 0]).unwrap();
        let whole =
            |batch: BatchTensor| crate::run::rows::Rows::of_batch(&batch.into(), 0..2).to_tensor(&"y".into()).data;
        assert_eq!(whole(from_rten(value.clone(), DataType::Bool, false).unwrap()), [1u8, 0][..]);
        assert_eq!(whole(from_rten(value.clone(), DataType::Int64, false).unwrap())[..8], 5i64.to_le_bytes());
        assert!(from_rten(value.clone(), DataType::Fp32, false).unwrap_err().contains("declared FP32"));
        assert_eq!(from_rten(value, DataType::Bool, true).unwrap().shape, [1, 2, 1]);
    }
}
