//! `POST …/generate` and `…/generate_stream`: inputs and outputs as top-level keys, without
//! datatypes or shapes.
//!
//! The datatype is the model's. The nested arrays give the shape, with a batch of one in front if a
//! dimension is missing. An output with one element is sent as a number or string, any other as a
//! flat array; a client that needs the shape uses `infer`.

use super::data;
use super::not_finite;
use super::response;
use crate::infer::element_count;
use crate::{InferRequest, InferResponse, MAX_DIMENSIONS, MAX_TENSORS, Parameters, WireError, WireTensor};
use bytes::Bytes;
use ripieno_model::DataType;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// Name, datatype and rank of a model input.
#[derive(Clone, Debug)]
pub struct InputShape<'a> {
    /// Name of the input, a key of the request.
    pub name: &'a str,
    /// Element type.
    pub datatype: DataType,
    /// Number of dimensions, including the batch.
    pub rank: usize,
}

/// Top-level keys of the request, in its order.
struct RequestFields<'a>(Vec<(String, &'a RawValue)>);

/// Upper bound on the keys of a request: inputs and a few others.
const MAX_FIELDS: usize = MAX_TENSORS + 2;

impl<'de> Deserialize<'de> for RequestFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RequestFieldsVisitor)
    }
}

struct RequestFieldsVisitor;

impl<'de> Visitor<'de> for RequestFieldsVisitor {
    type Value = RequestFields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the inputs of the model by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            if fields.len() == MAX_FIELDS {
                return Err(A::Error::custom(format!("more than {MAX_FIELDS} keys")));
            }
            fields.push(field);
        }
        Ok(RequestFields(fields))
    }
}

/// Decodes a request for `model`, which takes `inputs`.
pub fn parse_generate(
    model: &str,
    version: &str,
    body: &[u8],
    inputs: &[InputShape<'_>],
) -> Result<InferRequest, WireError> {
    let broken = |error| WireError::new(format!("the request is not valid: {error}"));
    let body = not_finite::quoted(body);
    let RequestFields(fields) = serde_json::from_slice(&body).map_err(broken)?;
    let mut request = InferRequest { model: model.to_owned(), version: version.to_owned(), ..InferRequest::default() };
    for (key, value) in fields {
        // Input names take precedence, because a model may have an input named "id".
        match (inputs.iter().find(|input| input.name == key), key.as_str()) {
            (Some(input), _) => request.inputs.push(tensor(input, value.get())?),
            (None, "id") => request.id = serde_json::from_str(value.get()).map_err(broken)?,
            (None, "parameters") => request.parameters = serde_json::from_str(value.get()).map_err(broken)?,
            (None, _) => {
                let known: Vec<String> = inputs.iter().map(|input| format!("'{}'", input.name)).collect();
                return Err(WireError::new(format!(
                    "key '{}' is no input of model '{model}'; its inputs are {}",
                    key.escape_debug(),
                    known.join(", ")
                )));
            }
        }
    }
    request.check_names()?;
    Ok(request)
}

fn tensor(input: &InputShape<'_>, text: &str) -> Result<WireTensor, WireError> {
    let InputShape { name, datatype, rank } = *input;
    let mut shape = shape_of(name, text)?;
    // A single value is a tensor of one element, whatever its rank; an array may omit the batch.
    let missing = rank.saturating_sub(shape.len());
    if shape.is_empty() || missing == 1 {
        shape.splice(0..0, std::iter::repeat_n(1, missing));
    }
    if shape.len() != rank {
        return Err(WireError::new(format!(
            "input '{name}' is nested {} deep; nest it {} deep, or {rank} with the batch",
            shape.len() - if missing == 1 { 1 } else { 0 },
            rank.saturating_sub(1)
        )));
    }
    let wrapped = format!("[{text}]");
    let array = if text.starts_with('[') { text } else { &wrapped };
    let data = Bytes::from(data::parse(name, datatype, element_count(name, &shape)?, array)?);
    Ok(WireTensor {
        name: name.to_owned(),
        datatype,
        shape,
        data,
        parameters: Parameters::default(),
        is_slice: false,
        shared_memory: None,
    })
}

/// Returns the length of the first array at each depth; reading the elements checks the others.
/// Elements are counted and not stored: a list of them would take eight times the bytes of the
/// text.
fn shape_of(name: &str, text: &str) -> Result<Vec<i64>, WireError> {
    let mut shape = Vec::new();
    let mut text = text;
    while text.starts_with('[') {
        if shape.len() == MAX_DIMENSIONS {
            return Err(WireError::new(format!("input '{name}' is nested deeper than {MAX_DIMENSIONS} arrays")));
        }
        let ArrayHead { length, first } =
            serde_json::from_str(text).map_err(|error| WireError::new(format!("input '{name}': {error}")))?;
        shape.push(length);
        let Some(first) = first else { break };
        text = first.get();
    }
    Ok(shape)
}

/// Length of an array, and its first element.
struct ArrayHead<'a> {
    length: i64,
    first: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for ArrayHead<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ArrayHeadVisitor)
    }
}

struct ArrayHeadVisitor;

impl<'de> Visitor<'de> for ArrayHeadVisitor {
    type Value = ArrayHead<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let first = seq.next_element()?;
        let mut length = i64::from(first.is_some());
        while seq.next_element::<IgnoredAny>()?.is_some() {
            length += 1;
        }
        Ok(ArrayHead { length, first })
    }
}

/// Encodes a response or a part of one, without newlines, so that it fits in a server-sent event.
pub fn encode_generate(response: &InferResponse) -> Result<Vec<u8>, WireError> {
    let mut body = Vec::with_capacity(super::encoded_size(response));
    body.extend_from_slice(b"{\"model_name\":");
    response::write(&mut body, &response.model);
    response::field(&mut body, "model_version", &response.version);
    if !response.id.is_empty() {
        response::field(&mut body, "id", &response.id);
    }
    for (name, value) in &response.parameters.0 {
        body.push(b',');
        response::write(&mut body, name);
        body.push(b':');
        response::write(&mut body, value);
    }
    for output in &response.outputs {
        let single = output.shape.iter().all(|&dimension| dimension == 1);
        body.push(b',');
        response::write(&mut body, &output.name);
        body.extend_from_slice(if single { b":" } else { b":[" });
        response::elements(&mut body, output)?;
        if !single {
            body.push(b']');
        }
    }
    body.push(b'}');
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Parameter, ResponseTensor};

    const INPUTS: [InputShape<'static>; 2] = [
        InputShape { name: "tokens", datatype: DataType::Int64, rank: 2 },
        InputShape { name: "children", datatype: DataType::Int32, rank: 3 },
    ];

    fn parse(body: &str) -> Result<InferRequest, WireError> {
        parse_generate("m", "", body.as_bytes(), &INPUTS)
    }

    #[test]
    fn shapes_are_read_off_the_arrays() {
        let cases = [
            (r#"{"tokens":[5, 6, 7]}"#, vec![1, 3]),
            (r#"{"tokens":[[5, 6, 7]]}"#, vec![1, 3]),
            (r#"{"tokens":5}"#, vec![1, 1]),
            (r#"{"tokens":[]}"#, vec![1, 0]),
            (r#"{"children":[[-1,-1],[0,-1]]}"#, vec![1, 2, 2]),
            (r#"{"children":[[[-1]]]}"#, vec![1, 1, 1]),
        ];
        for (body, shape) in cases {
            let request = parse(body).unwrap();
            assert_eq!(request.inputs[0].shape, shape, "{body}");
            let size = request.inputs[0].datatype.size().unwrap();
            assert_eq!(request.inputs[0].data.len() as i64, shape.iter().product::<i64>() * size as i64);
        }
        let request = parse(r#"{"id":"7","parameters":{"timeout":5},"tokens":[1]}"#).unwrap();
        assert_eq!((request.id.as_str(), request.parameters.get("timeout")), ("7", Some(&Parameter::Int(5))));
    }

    #[test]
    fn what_fits_no_input_is_refused_by_name() {
        let cases = [
            (r#"{"token":[1]}"#, "key 'token' is no input of model 'm'; its inputs are 'tokens', 'children'"),
            (r#"{"tokens":[[[1]]]}"#, "input 'tokens' is nested 3 deep; nest it 1 deep, or 2 with the batch"),
            (r#"{"children":[1]}"#, "input 'children' is nested 1 deep; nest it 2 deep, or 3 with the batch"),
            (r#"{"tokens":[1,[2]]}"#, "mixes elements and arrays"),
            (r#"{"children":[[1,2],[3]]}"#, "children"),
            (r#"{"tokens":["a"]}"#, "which is not an integer"),
            (r#"{"tokens":[1],"tokens":[1]}"#, "input 'tokens' is given twice"),
            (r"[1]", "an object with the inputs"),
            (r#"{"tokens":"#, "the request is not valid"),
        ];
        for (body, wanted) in cases {
            let error = parse(body).unwrap_err().0;
            assert!(error.contains(wanted), "{body}: {error}");
        }
    }

    #[test]
    fn outputs_are_values_or_flat_arrays() {
        let output = |name: &str, datatype, shape: &[i64], data: &[u8]| ResponseTensor {
            name: name.into(),
            datatype,
            shape: shape.to_vec(),
            data: Bytes::copy_from_slice(data),
            encoding: crate::OutputEncoding::Json,
        };
        let response = InferResponse {
            model: "m".into(),
            version: "1".into(),
            id: "a\nb".into(),
            outputs: vec![
                output("x", DataType::Uint8, &[1, 1], &[7]),
                output("y", DataType::Uint8, &[1, 2], &[1, 2]),
                output("z", DataType::Uint8, &[1, 0], &[]),
                output("w", DataType::Bytes, &[1], &[2, 0, 0, 0, b'h', b'i']),
            ],
            ..InferResponse::default()
        };
        let body = String::from_utf8(encode_generate(&response).unwrap()).unwrap();
        assert_eq!(body, r#"{"model_name":"m","model_version":"1","id":"a\nb","x":7,"y":[1,2],"z":[],"w":"hi"}"#);
        assert!(!body.contains('\n'));
    }
}
