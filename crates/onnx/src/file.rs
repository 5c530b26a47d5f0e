//! An ONNX file, decoded once. All access to its content goes through [`OnnxFile`].
//!
//! A model may be hostile. So the file must not be larger than a protobuf message can be, and
//! messages nest at most 100 deep. The decoder enforces this depth, at which recursion through
//! graphs is safe. The memory used is a bounded multiple of the file's size.

use crate::error::{OnnxError, refuse};
use crate::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, SparseTensorProto, TensorProto};
use bytes::Bytes;
use prost::Message;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Largest file in bytes. A larger file cannot be one protobuf message.
const MAX_FILE_BYTES: u64 = 2 << 30;

/// A decoded ONNX file.
#[derive(Debug)]
pub struct OnnxFile {
    pub(crate) path: PathBuf,
    /// The model without its graph.
    pub(crate) model: ModelProto,
    pub(crate) graph: GraphProto,
}

impl OnnxFile {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<OnnxFile, OnnxError> {
        let unreadable = |cause: std::io::Error| {
            OnnxError(format!("cannot read {}: {cause}; put the model's ONNX file there", path.display()))
        };
        if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE_BYTES {
            return refuse(format!("{}: larger than 2 GiB: save its weights as external data", path.display()));
        }
        OnnxFile::parse(std::fs::read(path).map_err(unreadable)?, path)
    }

    /// Decodes a file from memory. `path` names the file in messages, and external weights are in
    /// its folder.
    pub fn parse(bytes: impl Into<Bytes>, path: &Path) -> Result<OnnxFile, OnnxError> {
        let bytes: Bytes = bytes.into();
        let content = bytes.clone();
        let not_onnx = || OnnxError(format!("{}: {}", path.display(), damage(&content)));
        let mut model = ModelProto::decode(bytes).map_err(|cause| {
            // The decoder reports this error only as text.
            if cause.to_string().ends_with("recursion limit reached") {
                let fix = "export the model anew";
                return OnnxError(format!(
                    "{}: it holds graphs (If, Loop) nested more than 30 deep: {fix}",
                    path.display()
                ));
            }
            not_onnx()
        })?;
        let graph = model.graph.take().ok_or_else(not_onnx)?;
        Ok(OnnxFile { path: path.to_owned(), model, graph })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the graph.
    pub fn graph(&self) -> &GraphProto {
        &self.graph
    }

    /// Returns the functions that nodes may call like operators.
    pub fn functions(&self) -> &[FunctionProto] {
        &self.model.functions
    }

    /// Returns the names of external files with weights, as written in the file. They are relative
    /// to its folder in a well-formed file.
    ///
    /// An engine opens these files itself, and a model may name any file of the system. So a server
    /// of untrusted models must check the names first. This searches subgraphs, functions, sparse
    /// weights and constants as well.
    pub fn external_files(&self) -> BTreeSet<String> {
        let mut files = BTreeSet::new();
        of_graph(&self.graph, &mut files);
        for training in &self.model.training_info {
            let graphs = training.initialization.iter().chain(&training.algorithm);
            graphs.for_each(|graph| of_graph(graph, &mut files));
        }
        for function in &self.model.functions {
            let attributes = function.node.iter().flat_map(|node| &node.attribute).chain(&function.attribute_proto);
            attributes.for_each(|attribute| of_attribute(attribute, &mut files));
        }
        files
    }
}

/// Returns what is wrong with a file that is not an ONNX model, and the fix, by how it begins.
fn damage(content: &[u8]) -> String {
    let text = content.trim_ascii_start();
    let begins = |with: &[u8]| text.len() >= with.len() && text[..with.len()].eq_ignore_ascii_case(with);
    let (what, fix) = match content {
        [] => ("it is empty", "copy or download it again"),
        _ if begins(b"version https://git-lfs") => {
            ("it is a Git LFS pointer, which stands for the model", "fetch the model itself with git lfs pull")
        }
        _ if begins(b"<!doctype") || begins(b"<html") => {
            ("it is a web page", "download the file itself, not the page that shows it")
        }
        [b'P', b'K', ..] => ("it is a zip archive, as PyTorch saves models", "export the model with torch.onnx.export"),
        [0x89, b'H', b'D', b'F', ..] => ("it is an HDF5 file, as Keras saves models", "convert it with tf2onnx"),
        // The first field of nearly every ONNX file is its version, a small number.
        [0x08, 1..=0x20, ..] => {
            ("it begins as one and ends too early or is damaged", "copy or download it again, and compare sizes")
        }
        _ => return "not an ONNX model: export the model to ONNX anew".to_owned(),
    };
    format!("not an ONNX model: {what} ({} bytes): {fix}", content.len())
}

fn of_graph(graph: &GraphProto, files: &mut BTreeSet<String>) {
    graph.initializer.iter().for_each(|tensor| of_tensor(tensor, files));
    graph.sparse_initializer.iter().for_each(|sparse| of_sparse(sparse, files));
    graph.node.iter().flat_map(|node| &node.attribute).for_each(|attribute| of_attribute(attribute, files));
}

fn of_attribute(attribute: &AttributeProto, files: &mut BTreeSet<String>) {
    attribute.t.as_deref().into_iter().chain(&attribute.tensors).for_each(|tensor| of_tensor(tensor, files));
    attribute.g.as_deref().into_iter().chain(&attribute.graphs).for_each(|graph| of_graph(graph, files));
    let sparse = attribute.sparse_tensor.as_deref().into_iter().chain(&attribute.sparse_tensors);
    sparse.for_each(|sparse| of_sparse(sparse, files));
}

fn of_sparse(sparse: &SparseTensorProto, files: &mut BTreeSet<String>) {
    sparse.values.iter().chain(&sparse.indices).for_each(|tensor| of_tensor(tensor, files));
}

fn of_tensor(tensor: &TensorProto, files: &mut BTreeSet<String>) {
    let locations = tensor.external_data.iter().filter(|entry| entry.key == "location");
    files.extend(locations.map(|entry| entry.value.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{EntryProto, NodeProto, TrainingInfoProto};

    fn tensor(file: &str) -> TensorProto {
        let entry = |key: &str, value: &str| EntryProto { key: key.into(), value: value.into() };
        TensorProto { external_data: vec![entry("offset", "0"), entry("location", file)], ..TensorProto::default() }
    }

    fn node(attribute: AttributeProto) -> NodeProto {
        NodeProto { attribute: vec![attribute], ..NodeProto::default() }
    }

    fn parse(model: &ModelProto) -> Result<OnnxFile, OnnxError> {
        OnnxFile::parse(model.encode_to_vec(), Path::new("m.onnx"))
    }

    #[test]
    fn weights_are_found_wherever_a_model_can_have_them() {
        let sparse = |file| SparseTensorProto { values: Some(tensor(file).into()), ..SparseTensorProto::default() };
        let within = |file| GraphProto { initializer: vec![tensor(file)], ..GraphProto::default() };
        let constant = AttributeProto { t: Some(tensor("constant").into()), ..AttributeProto::default() };
        let branch = AttributeProto { g: Some(within("in-a-branch").into()), ..AttributeProto::default() };
        let sparse_constant =
            AttributeProto { sparse_tensor: Some(sparse("sparse-constant").into()), ..AttributeProto::default() };
        let in_function = AttributeProto { tensors: vec![tensor("in-a-function")], ..AttributeProto::default() };
        let model = ModelProto {
            graph: Some(GraphProto {
                initializer: vec![tensor("weight"), tensor("weight")],
                sparse_initializer: vec![sparse("sparse")],
                node: vec![node(constant), node(branch), node(sparse_constant)],
                ..GraphProto::default()
            }),
            training_info: vec![TrainingInfoProto {
                algorithm: Some(within("training").into()),
                ..TrainingInfoProto::default()
            }],
            functions: vec![FunctionProto { node: vec![node(in_function)], ..FunctionProto::default() }],
            ..ModelProto::default()
        };
        let found = parse(&model).unwrap().external_files();
        let expected = ["constant", "in-a-branch", "in-a-function", "sparse", "sparse-constant", "training", "weight"];
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }

    /// Protobuf merges two occurrences of a singular field, so a second graph cannot hide the files
    /// that the first one names.
    #[test]
    fn a_second_graph_does_not_hide_the_first() {
        let graph = |file: &str| {
            let attribute = AttributeProto { t: Some(tensor(file).into()), ..AttributeProto::default() };
            GraphProto { node: vec![node(attribute)], ..GraphProto::default() }
        };
        let bytes = |file: &str| ModelProto { graph: Some(graph(file)), ..ModelProto::default() }.encode_to_vec();
        let both = OnnxFile::parse([bytes("a"), bytes("b")].concat(), Path::new("m.onnx")).unwrap();
        assert_eq!(both.external_files().into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_file_that_is_no_model_is_named_for_what_it_is() {
        let whole = ModelProto {
            ir_version: 8,
            graph: Some(GraphProto { initializer: vec![tensor("weights")], ..GraphProto::default() }),
            ..ModelProto::default()
        };
        let whole = whole.encode_to_vec();
        let cases: [(&[u8], &str, &str); 6] = [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "a Git LFS pointer", "git lfs pull"),
            (&whole[..whole.len() - 3], "ends too early", "download it again"),
            (b"\n<!DOCTYPE html><html>", "a web page", "download the file itself"),
            (b"PK\x03\x04", "as PyTorch saves models", "torch.onnx.export"),
            (b"\x89HDF\r\n", "as Keras saves models", "tf2onnx"),
            (b"", "it is empty", "download it again"),
        ];
        for (content, what, fix) in cases {
            let error = OnnxFile::parse(content.to_vec(), Path::new("m.onnx")).unwrap_err().to_string();
            assert!(error.starts_with("m.onnx: not an ONNX model: "), "{error}");
            assert!(error.contains(what) && error.contains(fix), "{error}");
        }
    }

    #[test]
    fn what_is_no_model_or_too_deep_is_refused() {
        let refused = |bytes: Vec<u8>| OnnxFile::parse(bytes, Path::new("m.onnx")).unwrap_err().to_string();
        let not_onnx = "m.onnx: not an ONNX model: export the model to ONNX anew";
        assert_eq!(refused(b"no model".to_vec()), not_onnx);
        assert!(refused(Vec::new()).starts_with("m.onnx: not an ONNX model: it is empty (0 bytes)"));
        assert!(
            OnnxFile::read(Path::new("nowhere.onnx")).unwrap_err().to_string().contains("cannot read nowhere.onnx")
        );
        let nested = |depth: usize| {
            let mut graph = GraphProto::default();
            for _ in 0..depth {
                let attribute = AttributeProto { g: Some(graph.into()), ..AttributeProto::default() };
                graph = GraphProto { node: vec![node(attribute)], ..GraphProto::default() };
            }
            ModelProto { graph: Some(graph), ..ModelProto::default() }
        };
        assert!(parse(&nested(30)).is_ok());
        // Building and dropping such a graph recurses, so it needs a large stack. Reading it must
        // not.
        let deep = std::thread::Builder::new().stack_size(512 << 20).spawn(move || {
            let refused = parse(&nested(3000)).unwrap_err().to_string();
            assert!(refused.contains("nested more than 30 deep"), "{refused}");
        });
        deep.unwrap().join().unwrap();
    }
}
