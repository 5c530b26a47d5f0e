//! Response of `POST …/infer`: JSON, followed by the data of the binary outputs.

use crate::infer::byte_elements;
use crate::{InferResponse, OutputEncoding, ResponseTensor, WireError};
use ripieno_model::DataType;
use serde::Serialize;

/// An encoded response body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedResponse {
    /// JSON, then the binary outputs in order.
    pub body: Vec<u8>,
    /// Length of the JSON if binary data follows: the header Inference-Header-Content-Length.
    pub json_length: Option<usize>,
}

/// Encodes a response. Fails if an output to be sent as JSON has no JSON form; the message then
/// suggests binary.
pub fn encode_infer(response: &InferResponse) -> Result<EncodedResponse, WireError> {
    // The vector never grows, so that memory stays within the reservation.
    let mut body = Vec::with_capacity(super::encoded_size(response));
    body.extend_from_slice(b"{\"model_name\":");
    write(&mut body, &response.model);
    field(&mut body, "model_version", &response.version);
    if !response.id.is_empty() {
        field(&mut body, "id", &response.id);
    }
    if !response.parameters.is_empty() {
        field(&mut body, "parameters", &response.parameters);
    }
    body.extend_from_slice(b",\"outputs\":[");
    for (index, output) in response.outputs.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        tensor(&mut body, output)?;
    }
    body.extend_from_slice(b"]}");
    let in_binary = || response.outputs.iter().filter(|output| output.encoding == OutputEncoding::Binary);
    let json_length = in_binary().next().map(|_| body.len());
    for output in in_binary() {
        body.extend_from_slice(&output.data);
    }
    Ok(EncodedResponse { body, json_length })
}

pub(super) fn write(body: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(body, value).expect("strings and numbers into memory always serialise");
}

pub(super) fn field(body: &mut Vec<u8>, name: &str, value: &(impl Serialize + ?Sized)) {
    body.extend_from_slice(b",\"");
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(b"\":");
    write(body, value);
}

/// Writes an output. Only a binary output carries `parameters`, because the C++ client takes any
/// parameter as an announcement of binary data.
fn tensor(body: &mut Vec<u8>, output: &ResponseTensor) -> Result<(), WireError> {
    body.extend_from_slice(b"{\"name\":");
    write(body, &output.name);
    field(body, "datatype", output.datatype.name());
    field(body, "shape", &output.shape);
    match output.encoding {
        OutputEncoding::Binary => {
            body.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            write(body, &output.data.len());
            body.extend_from_slice(b"}}");
        }
        OutputEncoding::SharedMemory => body.push(b'}'),
        OutputEncoding::Json => {
            body.extend_from_slice(b",\"data\":[");
            elements(body, output)?;
            body.extend_from_slice(b"]}");
        }
    }
    Ok(())
}

/// Writes the elements, separated by commas.
pub(super) fn elements(body: &mut Vec<u8>, output: &ResponseTensor) -> Result<(), WireError> {
    let start = body.len();
    data(body, output)?;
    if body.len() > start {
        body.pop();
    }
    Ok(())
}

/// Writes the elements, each followed by a comma.
fn data(body: &mut Vec<u8>, output: &ResponseTensor) -> Result<(), WireError> {
    let bytes = &output.data;
    match output.datatype {
        DataType::Bool => numbers(body, bytes, |[byte]: [u8; 1]| byte != 0),
        DataType::Uint8 => numbers(body, bytes, u8::from_le_bytes),
        DataType::Uint16 => numbers(body, bytes, u16::from_le_bytes),
        DataType::Uint32 => numbers(body, bytes, u32::from_le_bytes),
        DataType::Uint64 => numbers(body, bytes, u64::from_le_bytes),
        DataType::Int8 => numbers(body, bytes, i8::from_le_bytes),
        DataType::Int16 => numbers(body, bytes, i16::from_le_bytes),
        DataType::Int32 => numbers(body, bytes, i32::from_le_bytes),
        DataType::Int64 => numbers(body, bytes, i64::from_le_bytes),
        DataType::Fp32 => floats(body, bytes, f32::from_le_bytes, f64::from),
        DataType::Fp64 => floats(body, bytes, f64::from_le_bytes, |value| value),
        DataType::Bytes => return strings(body, output),
        DataType::Fp16 | DataType::Bf16 => return Err(ask_for_binary(output, "its datatype has no JSON form")),
    }
    Ok(())
}

fn numbers<T: Serialize, const N: usize>(body: &mut Vec<u8>, bytes: &[u8], value: fn([u8; N]) -> T) {
    for chunk in bytes.as_chunks::<N>().0 {
        write(body, &value(*chunk));
        body.push(b',');
    }
}

/// Writes floats; those that are not finite as Triton does.
fn floats<T: Serialize + Copy, const N: usize>(
    body: &mut Vec<u8>,
    bytes: &[u8],
    value: fn([u8; N]) -> T,
    wide: fn(T) -> f64,
) {
    for chunk in bytes.as_chunks::<N>().0 {
        let value = value(*chunk);
        match wide(value) {
            number if number.is_nan() => body.extend_from_slice(b"NaN"),
            number if number.is_infinite() => {
                body.extend_from_slice(if number > 0.0 { b"Infinity".as_slice() } else { b"-Infinity" });
            }
            _ => write(body, &value),
        }
        body.push(b',');
    }
}

fn strings(body: &mut Vec<u8>, output: &ResponseTensor) -> Result<(), WireError> {
    for (index, element) in byte_elements(&output.data).enumerate() {
        let text = element.and_then(|element| std::str::from_utf8(element).ok());
        let text = text.ok_or_else(|| ask_for_binary(output, &format!("its element {index} is not UTF-8")))?;
        write(body, text);
        body.push(b',');
    }
    Ok(())
}

fn ask_for_binary(output: &ResponseTensor, why: &str) -> WireError {
    WireError(format!(
        "output '{}' of {} cannot be sent as JSON: {why}; request it with parameters {{\"binary_data\": true}}",
        output.name, output.datatype
    ))
}
