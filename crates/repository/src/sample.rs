//! A minimal sample request for a model.

use ripieno_executor::{LoadedModel, Tensor};
use ripieno_model::{DataType, TensorSpec};
use ripieno_text::{TextModel, TextTask};
use ripieno_wire::json::encode_infer;
use ripieno_wire::{InferResponse, OutputEncoding, ResponseTensor};
use serde::Serialize;
use serde_json::{Value, json};

/// A sample request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sample {
    /// A JSON body.
    Json(String),
    /// A raw binary request of this number of zero bytes.
    Zeros(usize),
    /// A request whose tensors are described by `head`, followed by this number of zero bytes.
    Binary {
        /// JSON head of the request.
        head: String,
        /// Number of zero bytes of all tensors.
        bytes: usize,
    },
    /// A call with a text.
    Text {
        /// Path of the call.
        path: &'static str,
        /// JSON body.
        body: String,
    },
}

/// Maximum length of a body on a command line.
const MAX_BODY_BYTES: usize = 600;
const MAX_ELEMENTS: usize = 128;

/// Returns a call with a text for the model `name`.
pub(super) fn text_sample(name: &str, text: &TextModel) -> Sample {
    let (path, body) = match text.task {
        TextTask::Embed { .. } => ("/v1/embeddings", json!({ "model": name, "input": "a text" })),
        TextTask::Classify { .. } => ("/v1/classify", json!({ "model": name, "input": "a text" })),
        TextTask::Rerank => {
            ("/v1/rerank", json!({ "model": name, "query": "a question", "documents": ["a text", "another"] }))
        }
    };
    // A quote would end the shell argument.
    Sample::Text { path, body: body.to_string().replace('\'', "\\u0027") }
}

/// Returns a minimal request for the model; `None` if it does not fit on a command line. Open
/// dimensions have the sizes that `declared` gives them, else 1.
pub(super) fn sample(model: &dyn LoadedModel, declared: &[TensorSpec]) -> Option<Sample> {
    if let Some(tensors) = model.example(1) {
        return in_json(&tensors, model.batched());
    }
    let least = |spec: &TensorSpec| model.range(&spec.name).map_or(0, |(least, most)| 0.clamp(least, most.max(least)));
    let shape = |spec: &TensorSpec| {
        let declared = declared.iter().find(|declared| declared.name == spec.name);
        let given = |at: usize| declared.and_then(|declared| declared.shape.get(at)).copied().unwrap_or(1);
        spec.shape
            .iter()
            .enumerate()
            .map(|(at, &size)| if size < 0 { given(at).max(1) } else { size.max(1) })
            .collect::<Vec<i64>>()
    };
    let elements = |spec: &TensorSpec| shape(spec).iter().fold(1_i64, |product, &size| product.saturating_mul(size));
    if model.inputs().iter().all(|spec| elements(spec) <= MAX_ELEMENTS as i64) {
        let tensor = |spec: &TensorSpec| {
            let data = element(spec.datatype, least(spec)).repeat(elements(spec) as usize);
            Tensor { name: spec.name.as_str().into(), datatype: spec.datatype, shape: shape(spec), data: data.into() }
        };
        return in_json(&model.inputs().iter().map(tensor).collect::<Vec<_>>(), model.batched());
    }
    // A raw request is one tensor with at most one open dimension besides the batch.
    let bytes = |spec: &TensorSpec| usize::try_from(elements(spec)).ok()?.checked_mul(spec.datatype.size()?);
    if !model.inputs().iter().all(|spec| least(spec) == 0) {
        return None;
    }
    if let [spec] = model.inputs()
        && spec.shape.iter().skip(1).filter(|&&size| size < 0).count() <= 1
    {
        return Some(Sample::Zeros(bytes(spec)?));
    }
    let input = |spec: &TensorSpec| {
        let shape = if model.batched() { shape(spec) } else { shape(spec).split_off(1) };
        let parameters = json!({ "binary_data_size": bytes(spec)? });
        Some(json!({ "name": spec.name, "datatype": spec.datatype.name(), "shape": shape, "parameters": parameters }))
    };
    let inputs = model.inputs().iter().map(input).collect::<Option<Vec<_>>>()?;
    let head = json!({ "inputs": inputs, "parameters": { "binary_data_output": true } }).to_string();
    let bytes = model.inputs().iter().map(bytes).sum::<Option<usize>>()?;
    // A quote would end the shell argument.
    (head.len() <= MAX_BODY_BYTES && !head.contains('\'')).then_some(Sample::Binary { head, bytes })
}

/// Returns the bytes of one number, or of a string.
fn element(datatype: DataType, number: i64) -> Vec<u8> {
    match (datatype.name(), datatype.size()) {
        ("FP32", _) => (number as f32).to_le_bytes().to_vec(),
        ("FP64", _) => (number as f64).to_le_bytes().to_vec(),
        (name, Some(size)) if name.contains("INT") => number.to_le_bytes()[..size].to_vec(),
        (_, Some(size)) => vec![0; size],
        (_, None) => [&4_u32.to_le_bytes()[..], b"text"].concat(),
    }
}

fn in_json(tensors: &[Tensor], batched: bool) -> Option<Sample> {
    let tensor = |tensor: &Tensor| {
        let shape = if batched { &tensor.shape[..] } else { tensor.shape.get(1..).unwrap_or_default() };
        Some(ResponseTensor {
            name: tensor.name.to_string(),
            datatype: tensor.datatype,
            shape: shape.to_vec(),
            data: tensor.data.clone(),
            encoding: OutputEncoding::Json,
        })
    };
    // Output tensors are encoded like input tensors.
    let outputs = tensors.iter().map(tensor).collect::<Option<Vec<_>>>()?;
    let encoded = encode_infer(&InferResponse { outputs, ..InferResponse::default() }).ok()?;
    let answer: Value = serde_json::from_slice(&encoded.body).ok()?;
    let body = json!({ "inputs": answer.get("outputs")? }).to_string();
    // A quote would end the shell argument.
    (body.len() <= MAX_BODY_BYTES && !body.contains('\'')).then_some(Sample::Json(body))
}
