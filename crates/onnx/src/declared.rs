//! Declarations of an ONNX file: its inputs and outputs, and the external files that it needs.
//!
//! Engines report types as they use them; for example, one turns 64-bit integers into 32-bit ones.
//! Clients must see the types that the model declares, so all engines use these declarations. The
//! graph is not checked, because a file that cannot be sliced can still be served whole.

use crate::OnnxError;
use crate::file::OnnxFile;
use crate::proto::{GraphProto, ValueInfoProto};
use ripieno_model::{DataType, TensorSpec};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Component, Path};

/// Declarations of an ONNX file, in the file's order. Initializers that old files list as inputs
/// are omitted.
#[derive(Debug)]
pub struct Declared {
    /// Inputs of a request.
    pub inputs: Vec<TensorSpec>,
    /// Names of inputs with a default, an initializer of the same name.
    pub defaults: Vec<String>,
    /// Inputs with a default that a request may replace.
    pub optional: Vec<TensorSpec>,
    /// Outputs of a request.
    pub outputs: Vec<TensorSpec>,
    /// Names of external files with weights.
    pub external: Vec<String>,
    /// Description of the first input or output without a dynamic first dimension, if any. Such a
    /// file has no batch dimension.
    pub no_batch: Option<String>,
    /// Inputs that look up an embedding, as indices of a `Gather` from weights, with its number of
    /// ids.
    pub vocabulary: Vec<(String, i64)>,
    /// Whether the graph has convolutions.
    pub convolutions: bool,
}

/// First version of the format in which a request may replace the initializer of an input.
const MIN_REPLACEABLE_IR: i64 = 4;
/// Largest number of inputs with defaults that requests may replace. A file with more lists its
/// weights as inputs, as some exporters do.
const MAX_OPTIONAL: usize = 16;

impl Declared {
    /// Returns the declarations of a file.
    pub fn of(file: &OnnxFile) -> Result<Declared, OnnxError> {
        let (path, graph) = (file.path(), file.graph());
        if graph.output.is_empty() {
            return Err(OnnxError(format!("{} has no output: export the model to ONNX anew", path.display())));
        }
        let external = external_data(path, graph)?;
        let given = |input: &&ValueInfoProto| graph.initializer.iter().any(|weight| weight.name == input.name);
        let with_default: Vec<&ValueInfoProto> = graph.input.iter().filter(given).collect();
        let defaults = with_default.iter().map(|info| info.name.clone()).collect();
        let replaceable = file.model.ir_version >= MIN_REPLACEABLE_IR && with_default.len() <= MAX_OPTIONAL;
        let optional = with_default.iter().filter(|_| replaceable).filter_map(|info| spec("input", info, path).ok());
        let optional = optional.collect();
        let inputs = graph.input.iter().filter(|input| !given(input)).map(|info| spec("input", info, path));
        let outputs = graph.output.iter().map(|info| spec("output", info, path));
        let (inputs, outputs) = (inputs.collect::<Result<Vec<_>, _>>()?, outputs.collect::<Result<Vec<_>, _>>()?);
        if inputs.is_empty() {
            return Err(OnnxError(format!("{} has no input: a model that is served needs one", path.display())));
        }
        let vocabulary = vocabulary(graph);
        let no_batch = no_batch("input", &inputs, path).or_else(|| no_batch("output", &outputs, path));
        let convolutions = graph.node.iter().any(|node| matches!(&*node.op_type, "Conv" | "ConvTranspose"));
        Ok(Declared { inputs, defaults, optional, outputs, external, no_batch, vocabulary, convolutions })
    }
}

fn spec(kind: &str, info: &ValueInfoProto, path: &Path) -> Result<TensorSpec, OnnxError> {
    let name = info.name.as_str();
    let refuse = |cause: String| OnnxError(format!("{kind} '{name}' of {} {cause}", path.display()));
    let tensor = info.r#type.as_ref().and_then(|of| of.tensor_type.as_ref()).ok_or_else(|| {
        refuse("is not a tensor: export the model with tensors only (scikit-learn: zipmap=False)".to_owned())
    })?;
    let datatype = DataType::from_onnx(tensor.elem_type).ok_or_else(|| {
        let code = tensor.elem_type;
        refuse(format!("has the ONNX element type {code}, which no client can send: add a Cast to the model"))
    })?;
    let shape = tensor.shape.as_ref().ok_or_else(|| {
        refuse("has no shape: run onnx.shape_inference.infer_shapes on the file, or declare it at export".to_owned())
    })?;
    let dims = shape.dim.iter().map(|dim| dim.fixed().unwrap_or(-1));
    Ok(TensorSpec { name: name.to_owned(), datatype, shape: dims.collect() })
}

/// Describes the first of these tensors without a dynamic first dimension.
fn no_batch(kind: &str, specs: &[TensorSpec], path: &Path) -> Option<String> {
    specs.iter().find_map(|TensorSpec { name, shape, .. }| {
        let has = match shape.first() {
            Some(-1) => return None,
            Some(fixed) => format!("has a fixed first dimension {fixed}"),
            None => "is a scalar".to_owned(),
        };
        Some(format!("{kind} '{name}' of {} {has}", path.display()))
    })
}

/// Returns the size of the smallest table that each input indexes, directly or after a change of
/// type or shape.
fn vocabulary(graph: &GraphProto) -> Vec<(String, i64)> {
    // Maps each name to the graph's input that holds the same numbers. Nodes are in order, so one
    // pass is enough.
    let mut same: HashMap<&str, &str> = graph.input.iter().map(|info| (&*info.name, &*info.name)).collect();
    let mut sizes = BTreeMap::new();
    for node in &graph.node {
        let names: Vec<&str> = node.input.iter().map(String::as_str).collect();
        match (&*node.op_type, &names[..], &node.output[..]) {
            ("Cast" | "Identity" | "Squeeze" | "Unsqueeze" | "Reshape" | "Flatten", [from, ..], [to]) => {
                if let Some(&input) = same.get(from) {
                    same.insert(to, input);
                }
            }
            ("Gather", [table, ids], _)
                if node.attribute.iter().all(|of| of.name != "axis" || of.i.unwrap_or(0) == 0) =>
            {
                let weights = graph.initializer.iter().find(|weights| weights.name == *table);
                let (size, input) = (weights.and_then(|weights| weights.dims.first()), same.get(ids));
                if let (Some(&size), Some(&input)) = (size, input) {
                    let known = sizes.entry(input.to_owned()).or_insert(size);
                    *known = size.min(*known);
                }
            }
            _ => {}
        }
    }
    sizes.into_iter().collect()
}

fn external_data(path: &Path, graph: &GraphProto) -> Result<Vec<String>, OnnxError> {
    let entries = graph.initializer.iter().flat_map(|weight| &weight.external_data);
    let locations: BTreeSet<&String> =
        entries.filter(|entry| entry.key == "location").map(|entry| &entry.value).collect();
    for location in &locations {
        let (file, beside) = (path.display(), Path::new(location).components());
        if !beside.into_iter().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(OnnxError(format!("{file} keeps weights in '{location}': save them beside the model instead")));
        }
        if !path.with_file_name(location).is_file() {
            return Err(OnnxError(format!(
                "the weights file '{location}' of {file} is missing: copy it beside the model"
            )));
        }
    }
    Ok(locations.into_iter().cloned().collect())
}
