//! Which files beside a model hold its weights, wherever in the model it says so.
//!
//! An engine opens these files by itself, and a model may name any. Whoever serves models that he did not write must know
//! them first. So this looks at everything that can name one (subgraphs, functions, sparse weights and constants, too), in
//! a few fields of the format; what it computes is of no interest here.

use crate::OnnxError;
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;
use std::path::Path;

#[derive(Clone, PartialEq, Message)]
struct ModelFiles {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphFiles>,
    #[prost(message, repeated, tag = "20")]
    training: Vec<TrainingFiles>,
    #[prost(message, repeated, tag = "25")]
    functions: Vec<FunctionFiles>,
}

#[derive(Clone, PartialEq, Message)]
struct TrainingFiles {
    #[prost(message, repeated, tag = "1")]
    initialization: Vec<GraphFiles>,
    #[prost(message, repeated, tag = "2")]
    algorithm: Vec<GraphFiles>,
}

#[derive(Clone, PartialEq, Message)]
struct FunctionFiles {
    #[prost(message, repeated, tag = "7")]
    node: Vec<NodeFiles>,
    #[prost(message, repeated, tag = "11")]
    attribute: Vec<AttributeFiles>,
}

#[derive(Clone, PartialEq, Message)]
struct GraphFiles {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeFiles>,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorFiles>,
    #[prost(message, repeated, tag = "15")]
    sparse_initializer: Vec<SparseFiles>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeFiles {
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<AttributeFiles>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeFiles {
    #[prost(message, repeated, tag = "5")]
    t: Vec<TensorFiles>,
    #[prost(message, repeated, tag = "6")]
    g: Vec<GraphFiles>,
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<TensorFiles>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<GraphFiles>,
    #[prost(message, repeated, tag = "22")]
    sparse_tensor: Vec<SparseFiles>,
    #[prost(message, repeated, tag = "23")]
    sparse_tensors: Vec<SparseFiles>,
}

#[derive(Clone, PartialEq, Message)]
struct SparseFiles {
    #[prost(message, repeated, tag = "1")]
    values: Vec<TensorFiles>,
    #[prost(message, repeated, tag = "2")]
    indices: Vec<TensorFiles>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorFiles {
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<EntryFiles>,
}

#[derive(Clone, PartialEq, Message)]
struct EntryFiles {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The files that the ONNX file at `path` names for its weights, as it writes them: beside itself, if it is well made.
pub fn external_files(path: &Path) -> Result<BTreeSet<String>, OnnxError> {
    let bytes = std::fs::read(path).map_err(|cause| OnnxError(format!("cannot read {}: {cause}", path.display())))?;
    let model = ModelFiles::decode(Bytes::from(bytes))
        .map_err(|_| OnnxError(format!("{}: not an ONNX model: export the model to ONNX anew", path.display())))?;
    let mut files = BTreeSet::new();
    model.graph.iter().for_each(|graph| of_graph(graph, &mut files));
    for training in &model.training {
        training.initialization.iter().chain(&training.algorithm).for_each(|graph| of_graph(graph, &mut files));
    }
    for function in &model.functions {
        let attributes = function.node.iter().flat_map(|node| &node.attribute).chain(&function.attribute);
        attributes.for_each(|attribute| of_attribute(attribute, &mut files));
    }
    Ok(files)
}

/// Nesting is bounded: the decoder gives up at a depth of 100 messages.
fn of_graph(graph: &GraphFiles, files: &mut BTreeSet<String>) {
    graph.initializer.iter().for_each(|tensor| of_tensor(tensor, files));
    graph.sparse_initializer.iter().for_each(|sparse| of_sparse(sparse, files));
    graph.node.iter().flat_map(|node| &node.attribute).for_each(|attribute| of_attribute(attribute, files));
}

fn of_attribute(attribute: &AttributeFiles, files: &mut BTreeSet<String>) {
    attribute.t.iter().chain(&attribute.tensors).for_each(|tensor| of_tensor(tensor, files));
    attribute.g.iter().chain(&attribute.graphs).for_each(|graph| of_graph(graph, files));
    attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors).for_each(|sparse| of_sparse(sparse, files));
}

fn of_sparse(sparse: &SparseFiles, files: &mut BTreeSet<String>) {
    sparse.values.iter().chain(&sparse.indices).for_each(|tensor| of_tensor(tensor, files));
}

fn of_tensor(tensor: &TensorFiles, files: &mut BTreeSet<String>) {
    let locations = tensor.external_data.iter().filter(|entry| entry.key == b"location");
    files.extend(locations.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(file: &str) -> TensorFiles {
        let entry = |key: &str, value: &str| EntryFiles { key: key.into(), value: value.into() };
        TensorFiles { external_data: vec![entry("offset", "0"), entry("location", file)] }
    }

    fn node(attribute: AttributeFiles) -> NodeFiles {
        NodeFiles { attribute: vec![attribute] }
    }

    #[test]
    fn weights_are_found_wherever_a_model_can_have_them() {
        let sparse = |file| SparseFiles { values: vec![tensor(file)], indices: vec![] };
        let inner = GraphFiles { initializer: vec![tensor("in-a-branch")], ..GraphFiles::default() };
        let model = ModelFiles {
            graph: Some(GraphFiles {
                initializer: vec![tensor("weight"), tensor("weight")],
                sparse_initializer: vec![sparse("sparse")],
                node: vec![
                    node(AttributeFiles { t: vec![tensor("constant")], ..AttributeFiles::default() }),
                    node(AttributeFiles { g: vec![inner.clone()], ..AttributeFiles::default() }),
                    node(AttributeFiles {
                        sparse_tensor: vec![sparse("sparse-constant")],
                        ..AttributeFiles::default()
                    }),
                ],
            }),
            training: vec![TrainingFiles {
                initialization: vec![],
                algorithm: vec![GraphFiles { initializer: vec![tensor("training")], ..GraphFiles::default() }],
            }],
            functions: vec![FunctionFiles {
                node: vec![node(AttributeFiles {
                    tensors: vec![tensor("in-a-function")],
                    ..AttributeFiles::default()
                })],
                attribute: vec![],
            }],
        };
        let path = std::env::temp_dir().join(format!("ripieno-external-{}.onnx", std::process::id()));
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        let found = external_files(&path).unwrap();
        let expected = ["constant", "in-a-branch", "in-a-function", "sparse", "sparse-constant", "training", "weight"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        std::fs::write(&path, b"no model").unwrap();
        assert!(external_files(&path).unwrap_err().to_string().contains("not an ONNX model"));
        std::fs::remove_file(&path).unwrap();
        assert!(external_files(&path).unwrap_err().to_string().contains("cannot read"));
    }
}
