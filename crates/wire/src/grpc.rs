//! Conversion of inference requests and responses from and to the generated gRPC messages.
//!
//! Inputs are all raw or all typed. Outputs are always raw, as Triton sends them, because typed
//! contents of narrow types quadruple the message size.

use crate::infer::{check_bytes, element_count, push_byte_element};
use crate::proto::inference::infer_parameter::ParameterChoice;
use crate::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::inference::model_infer_response::InferOutputTensor;
use crate::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use crate::{
    InferRequest, InferResponse, MAX_PARAMETERS, MAX_TENSORS, Parameter, Parameters, RequestedOutput, SharedMemoryRef,
    WireError, WireTensor,
};
use bytes::Bytes;
use prost::Message;
use ripieno_model::DataType;
use std::collections::HashMap;

mod size;

pub use size::{decoded_load_size, decoded_size};

/// Parses the message of a request; raw contents are slices of it.
pub fn decode_infer(message: Bytes) -> Result<ModelInferRequest, WireError> {
    ModelInferRequest::decode(message).map_err(|error| WireError::new(format!("the message is not valid: {error}")))
}

/// Encodes a message, with `head` zero bytes before it.
pub fn encode_message(message: &impl Message, head: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(head + message.encoded_len());
    bytes.resize(head, 0);
    message.encode(&mut bytes).expect("a vector grows as needed");
    bytes
}

/// Converts a request message into an [`InferRequest`].
pub fn parse_infer(message: ModelInferRequest) -> Result<InferRequest, WireError> {
    // Raw contents exclude the inputs that are in shared memory.
    let sent = message.inputs.iter().filter(|input| !input.parameters.contains_key("shared_memory_region")).count();
    let (count, raw_count) = (message.inputs.len(), message.raw_input_contents.len());
    if count > MAX_TENSORS || message.outputs.len() > MAX_TENSORS {
        return Err(WireError::new(format!("more than {MAX_TENSORS} inputs or requested outputs")));
    }
    if raw_count != 0 && raw_count != sent {
        return Err(WireError::new(format!(
            "{raw_count} raw_input_contents for {sent} inputs; send one for each input, or none at all"
        )));
    }
    let mut raw = message.raw_input_contents.into_iter();
    let inputs = message.inputs.into_iter().map(|input| tensor(input, &mut raw)).collect::<Result<_, _>>()?;
    let request = InferRequest {
        model: message.model_name,
        version: message.model_version,
        id: message.id,
        parameters: parameters(message.parameters)?,
        inputs,
        outputs: message.outputs.into_iter().map(requested_output).collect::<Result<_, _>>()?,
        binary_outputs: true,
        raw_input: None,
    };
    request.check_names()?;
    Ok(request)
}

fn tensor(input: InferInputTensor, raw: &mut impl Iterator<Item = Bytes>) -> Result<WireTensor, WireError> {
    let InferInputTensor { name, datatype, shape, parameters: options, contents } = input;
    let datatype = crate::datatype::parse(&datatype, &name)?;
    let parameters = parameters(options)?;
    let place = SharedMemoryRef::from_parameters(&parameters, &name)?;
    let raw = if place.is_some() { None } else { raw.next() };
    let is_slice = raw.is_some();
    let data = match (raw, contents) {
        (Some(_), Some(_)) => {
            return Err(WireError::new(format!(
                "input '{name}' has contents beside raw_input_contents; send one of them"
            )));
        }
        (Some(raw), None) => {
            check_bytes(&name, datatype, &shape, &raw)?;
            raw
        }
        (None, None) if place.is_some() => Bytes::new(),
        (None, Some(_)) if place.is_some() => {
            return Err(WireError::new(format!(
                "input '{name}' has contents beside shared_memory_region; send one of them"
            )));
        }
        (None, contents) => Bytes::from(typed_bytes(&name, datatype, &shape, contents.unwrap_or_default())?),
    };
    Ok(WireTensor { name, datatype, shape, data, parameters, is_slice, shared_memory: place })
}

/// Converts typed contents into bytes. The populated field must match the datatype, and its number
/// of elements the shape.
fn typed_bytes(
    name: &str,
    datatype: DataType,
    shape: &[i64],
    contents: InferTensorContents,
) -> Result<Vec<u8>, WireError> {
    let count = element_count(name, shape)?;
    let (field, found) = field_of(name, datatype, &contents)?;
    if found != count {
        return Err(WireError::new(format!(
            "input '{name}': expected {count} elements in {field} for shape {shape:?} of {datatype}, got {found}"
        )));
    }
    let c = contents;
    match datatype {
        DataType::Bool => Ok(c.bool_contents.into_iter().map(u8::from).collect()),
        DataType::Uint8 => narrow(name, datatype, c.uint_contents, |v| u8::try_from(v).ok().map(u8::to_le_bytes)),
        DataType::Uint16 => narrow(name, datatype, c.uint_contents, |v| u16::try_from(v).ok().map(u16::to_le_bytes)),
        DataType::Int8 => narrow(name, datatype, c.int_contents, |v| i8::try_from(v).ok().map(i8::to_le_bytes)),
        DataType::Int16 => narrow(name, datatype, c.int_contents, |v| i16::try_from(v).ok().map(i16::to_le_bytes)),
        DataType::Uint32 => Ok(c.uint_contents.into_iter().flat_map(u32::to_le_bytes).collect()),
        DataType::Uint64 => Ok(c.uint64_contents.into_iter().flat_map(u64::to_le_bytes).collect()),
        DataType::Int32 => Ok(c.int_contents.into_iter().flat_map(i32::to_le_bytes).collect()),
        DataType::Int64 => Ok(c.int64_contents.into_iter().flat_map(i64::to_le_bytes).collect()),
        DataType::Fp32 => Ok(c.fp32_contents.into_iter().flat_map(f32::to_le_bytes).collect()),
        DataType::Fp64 => Ok(c.fp64_contents.into_iter().flat_map(f64::to_le_bytes).collect()),
        DataType::Bytes | DataType::Fp16 | DataType::Bf16 => byte_contents(name, &c.bytes_contents),
    }
}

/// Returns the name of the field that carries this datatype, and its number of elements.
fn field_of(
    name: &str,
    datatype: DataType,
    contents: &InferTensorContents,
) -> Result<(&'static str, usize), WireError> {
    Ok(match datatype {
        DataType::Bool => ("bool_contents", contents.bool_contents.len()),
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 => ("uint_contents", contents.uint_contents.len()),
        DataType::Int8 | DataType::Int16 | DataType::Int32 => ("int_contents", contents.int_contents.len()),
        DataType::Uint64 => ("uint64_contents", contents.uint64_contents.len()),
        DataType::Int64 => ("int64_contents", contents.int64_contents.len()),
        DataType::Fp32 => ("fp32_contents", contents.fp32_contents.len()),
        DataType::Fp64 => ("fp64_contents", contents.fp64_contents.len()),
        DataType::Bytes => ("bytes_contents", contents.bytes_contents.len()),
        DataType::Fp16 | DataType::Bf16 => {
            return Err(WireError::new(format!(
                "input '{name}': {datatype} has no typed contents; use raw_input_contents"
            )));
        }
    })
}

fn narrow<T: Copy + std::fmt::Display, const N: usize>(
    name: &str,
    datatype: DataType,
    values: Vec<T>,
    bytes: fn(T) -> Option<[u8; N]>,
) -> Result<Vec<u8>, WireError> {
    let mut data = Vec::with_capacity(values.len() * N);
    for (index, &value) in values.iter().enumerate() {
        let element = bytes(value).ok_or_else(|| {
            WireError::new(format!(
                "input '{name}': element {index} is {value}, which is out of the range of {datatype}"
            ))
        })?;
        data.extend_from_slice(&element);
    }
    Ok(data)
}

fn byte_contents(name: &str, elements: &[Bytes]) -> Result<Vec<u8>, WireError> {
    let mut data = Vec::with_capacity(elements.iter().map(|element| element.len() + 4).sum());
    elements.iter().try_for_each(|element| push_byte_element(name, element, &mut data))?;
    Ok(data)
}

fn requested_output(output: InferRequestedOutputTensor) -> Result<RequestedOutput, WireError> {
    let parameters = parameters(output.parameters)?;
    let place = SharedMemoryRef::from_parameters(&parameters, &output.name)?;
    Ok(RequestedOutput { name: output.name, binary: None, shared_memory: place, parameters })
}

fn parameters(options: HashMap<String, InferParameter>) -> Result<Parameters, WireError> {
    if options.len() > MAX_PARAMETERS {
        return Err(WireError::new(format!("more than {MAX_PARAMETERS} parameters")));
    }
    let known = options.into_iter().filter_map(|(name, value)| {
        let value = match value.parameter_choice? {
            ParameterChoice::BoolParam(value) => Parameter::Bool(value),
            ParameterChoice::Int64Param(value) => Parameter::Int(value),
            ParameterChoice::Uint64Param(value) => Parameter::Uint(value),
            ParameterChoice::DoubleParam(value) => Parameter::Double(value),
            ParameterChoice::StringParam(value) => Parameter::Text(value),
        };
        Some((name, value))
    });
    Ok(Parameters(known.collect()))
}

/// Encodes a response with all outputs raw.
pub fn encode_infer(response: InferResponse) -> ModelInferResponse {
    let (outputs, raw) = response
        .outputs
        .into_iter()
        .map(|output| {
            let InferOutputTensor { parameters, contents, .. } = InferOutputTensor::default();
            let datatype = output.datatype.name().to_owned();
            (InferOutputTensor { name: output.name, datatype, shape: output.shape, parameters, contents }, output.data)
        })
        .unzip();
    ModelInferResponse {
        model_name: response.model,
        model_version: response.version,
        id: response.id,
        parameters: response.parameters.0.into_iter().map(|(name, value)| (name, parameter(value))).collect(),
        outputs,
        raw_output_contents: raw,
    }
}

/// Converts a parameter into a message.
pub fn parameter(value: Parameter) -> InferParameter {
    let choice = match value {
        Parameter::Bool(value) => ParameterChoice::BoolParam(value),
        Parameter::Int(value) => ParameterChoice::Int64Param(value),
        Parameter::Uint(value) => ParameterChoice::Uint64Param(value),
        Parameter::Double(value) => ParameterChoice::DoubleParam(value),
        Parameter::Text(value) => ParameterChoice::StringParam(value),
    };
    InferParameter { parameter_choice: Some(choice) }
}

#[cfg(test)]
mod tests;
