//! Request of `POST …/infer`: JSON, followed by the data of the tensors that the JSON declares as
//! binary, in its order.

use super::bounded::Bounded;
use super::data;
use super::not_finite;
use crate::infer::{check_bytes, element_count};
use crate::{
    InferRequest, MAX_DIMENSIONS, MAX_TENSORS, Parameter, Parameters, RequestedOutput, SharedMemoryRef, WireError,
    WireTensor,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Deserialize)]
struct JsonRequest<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(borrow)]
    inputs: Bounded<JsonInput<'a>, MAX_TENSORS>,
    #[serde(default)]
    outputs: Bounded<JsonOutput, MAX_TENSORS>,
}

#[derive(Deserialize)]
struct JsonInput<'a> {
    name: String,
    shape: Bounded<i64, MAX_DIMENSIONS>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct JsonOutput {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

/// Decodes a request for `model`. `json_length` is the header Inference-Header-Content-Length, if
/// present: the number of JSON bytes in the body; 0 means a raw binary request.
pub fn parse_infer(
    model: impl Into<String>,
    version: impl Into<String>,
    body: &Bytes,
    json_length: Option<usize>,
) -> Result<InferRequest, WireError> {
    let request = InferRequest { model: model.into(), version: version.into(), ..InferRequest::default() };
    if json_length == Some(0) {
        return Ok(InferRequest { raw_input: Some(body.clone()), binary_outputs: true, ..request });
    }
    let json_length = json_length.unwrap_or(body.len());
    if json_length > body.len() {
        return Err(WireError::new(format!(
            "Inference-Header-Content-Length is {json_length}, but the body has only {} bytes",
            body.len()
        )));
    }
    let json = not_finite::quoted(&body[..json_length]);
    let parsed: JsonRequest<'_> =
        serde_json::from_slice(&json).map_err(|error| WireError::new(format!("the request is not valid: {error}")))?;
    let mut binary = body.slice(json_length..);
    let inputs = parsed.inputs.0.into_iter().map(|input| tensor(input, &mut binary)).collect::<Result<_, _>>()?;
    if !binary.is_empty() {
        return Err(WireError::new(format!(
            "{} bytes are left over after the binary data of all inputs; check each binary_data_size",
            binary.len()
        )));
    }
    let request = InferRequest {
        id: parsed.id.unwrap_or_default(),
        binary_outputs: flag(&parsed.parameters, "binary_data_output", "the request")?.unwrap_or(false),
        parameters: parsed.parameters,
        inputs,
        outputs: parsed.outputs.0.into_iter().map(requested_output).collect::<Result<_, _>>()?,
        ..request
    };
    request.check_names()?;
    Ok(request)
}

fn tensor(input: JsonInput<'_>, binary: &mut Bytes) -> Result<WireTensor, WireError> {
    let JsonInput { name, shape, datatype, parameters, data } = input;
    let datatype = crate::datatype::parse(&datatype, &name)?;
    let (shape, place) = (shape.0, SharedMemoryRef::from_parameters(&parameters, &name)?);
    let mut is_slice = false;
    let data = match (data, parameters.get("binary_data_size")) {
        (Some(_), Some(_)) => {
            return Err(WireError::new(format!("input '{name}' has both data and binary_data_size; send one of them")));
        }
        (None, None) if place.is_some() => Bytes::new(),
        _ if place.is_some() => {
            return Err(WireError::new(format!(
                "input '{name}' has data beside shared_memory_region; send one of them"
            )));
        }
        (Some(json), None) => Bytes::from(data::parse(&name, datatype, element_count(&name, &shape)?, json.get())?),
        (None, Some(size)) => {
            let data = split_data(&name, size, binary)?;
            check_bytes(&name, datatype, &shape, &data)?;
            is_slice = true;
            data
        }
        (None, None) => {
            return Err(WireError::new(format!("input '{name}' has no data; send data or binary_data_size")));
        }
    };
    Ok(WireTensor { name, datatype, shape, data, parameters, is_slice, shared_memory: place })
}

/// Splits the next tensor's data off the binary part of the body, without a copy.
fn split_data(name: &str, size: &Parameter, binary: &mut Bytes) -> Result<Bytes, WireError> {
    let wanted = size.as_u64().and_then(|size| usize::try_from(size).ok()).ok_or_else(|| {
        WireError::new(format!("input '{name}': binary_data_size is {size}, which is not a number of bytes"))
    })?;
    if wanted > binary.len() {
        return Err(WireError::new(format!(
            "input '{name}': binary_data_size is {wanted}, but only {} bytes follow the JSON; is \
             Inference-Header-Content-Length set to the length of the JSON?",
            binary.len()
        )));
    }
    Ok(binary.split_to(wanted))
}

fn requested_output(output: JsonOutput) -> Result<RequestedOutput, WireError> {
    let binary = flag(&output.parameters, "binary_data", &format!("output '{}'", output.name))?;
    let place = SharedMemoryRef::from_parameters(&output.parameters, &output.name)?;
    Ok(RequestedOutput { name: output.name, binary, shared_memory: place, parameters: output.parameters })
}

fn flag(parameters: &Parameters, name: &str, of: &str) -> Result<Option<bool>, WireError> {
    let Some(value) = parameters.get(name) else { return Ok(None) };
    let Some(flag) = value.as_bool() else {
        return Err(WireError::new(format!("parameter {name} of {of} is {value}; it must be true or false")));
    };
    Ok(Some(flag))
}
