//! The messages of onnx.proto, with their published names and field numbers. They are written by
//! hand, so that no protobuf compiler is needed. All code that reads models uses them.
//!
//! All fields that affect a graph's computation or content are included, also the fields of
//! subgraphs and functions. Other fields (documentation, metadata) are lost in written files. Lists
//! of integers are written unpacked, as ONNX's own library does and rten requires. Weights are
//! views of the file's bytes, not copies. Rarely used attribute fields are boxed, so that a file of
//! empty messages does not take hundreds of times its size in memory.
#![expect(missing_docs, reason = "onnx.proto says what its fields are")]

use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(string, tag = "2")]
    pub producer_name: String,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetProto>,
    #[prost(message, repeated, tag = "20")]
    pub training_info: Vec<TrainingInfoProto>,
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrainingInfoProto {
    #[prost(message, optional, boxed, tag = "1")]
    pub initialization: Option<Box<GraphProto>>,
    #[prost(message, optional, boxed, tag = "2")]
    pub algorithm: Option<Box<GraphProto>>,
}

/// A graph that nodes call by its name, like an operator.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetProto>,
    #[prost(string, tag = "10")]
    pub domain: String,
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    #[prost(message, repeated, tag = "12")]
    pub value_info: Vec<ValueInfoProto>,
    #[prost(string, tag = "13")]
    pub overload: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetProto {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub domain: String,
    #[prost(string, tag = "8")]
    pub overload: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    #[prost(message, optional, boxed, tag = "5")]
    pub t: Option<Box<TensorProto>>,
    #[prost(message, optional, boxed, tag = "6")]
    pub g: Option<Box<GraphProto>>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    #[prost(int32, tag = "20")]
    pub r#type: i32,
    #[prost(string, tag = "21")]
    pub ref_attr_name: String,
    #[prost(message, optional, boxed, tag = "22")]
    pub sparse_tensor: Option<Box<SparseTensorProto>>,
    #[prost(message, repeated, tag = "23")]
    pub sparse_tensors: Vec<SparseTensorProto>,
}

/// Field number of [`ModelProto::graph`].
pub(crate) const MODEL_GRAPH: u32 = 7;
/// Field number of [`GraphProto::node`].
pub(crate) const GRAPH_NODE: u32 = 1;
/// Field number of [`GraphProto::initializer`].
pub(crate) const GRAPH_INITIALIZER: u32 = 5;
/// Field number of [`TensorProto::external_data`].
pub(crate) const TENSOR_EXTERNAL_DATA: u32 = 13;

/// ONNX's numbers of the attribute types that this crate writes.
pub(crate) mod attribute_type {
    pub(crate) const INT: i32 = 2;
    pub(crate) const INTS: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub name: String,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<EntryProto>,
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    #[prost(message, optional, boxed, tag = "1")]
    pub values: Option<Box<TensorProto>>,
    #[prost(message, optional, boxed, tag = "2")]
    pub indices: Option<Box<TensorProto>>,
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub dims: Vec<i64>,
}

/// Value of [`TensorProto::data_location`] for weights in an external file.
pub(crate) const EXTERNAL: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub struct EntryProto {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

/// ONNX's numbers of element types.
pub mod elem {
    pub const FLOAT: i32 = 1;
    pub const UINT8: i32 = 2;
    pub const INT8: i32 = 3;
    pub const INT32: i32 = 6;
    pub const INT64: i32 = 7;
    pub const BOOL: i32 = 9;
    pub const DOUBLE: i32 = 11;
}

impl DimensionProto {
    /// Returns the size, if it is fixed. Exporters also write 0 or -1 for an open size.
    pub(crate) fn fixed(&self) -> Option<i64> {
        self.dim_value.filter(|&size| size > 0)
    }
}

impl NodeProto {
    /// Returns the attribute of this name.
    pub fn attr(&self, name: &str) -> Option<&AttributeProto> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// Returns an integer attribute, or its default.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.attr(name).map_or(default, |attribute| attribute.i.unwrap_or(0))
    }

    /// Returns a list of integers; `None` if the attribute is absent.
    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attr(name).map(|attribute| &attribute.ints[..])
    }

    /// Returns a text attribute; empty if it is absent.
    pub(crate) fn text(&self, name: &str) -> String {
        let text = self.attr(name).and_then(|attribute| attribute.s.as_ref());
        text.map_or(String::new(), |text| String::from_utf8_lossy(text).into_owned())
    }

    /// Returns the node's name for messages.
    pub fn label(&self) -> String {
        let name = if self.name.is_empty() { self.output.first() } else { Some(&self.name) };
        format!("{} '{}'", self.op_type, name.map_or("", String::as_str))
    }

    /// Whether the operator is ONNX's own.
    pub(crate) fn is_standard(&self) -> bool {
        matches!(&*self.domain, "" | "ai.onnx")
    }

    pub(crate) fn new(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let name = outputs.first().copied().unwrap_or_default().to_owned();
        NodeProto {
            op_type: op_type.to_owned(),
            input: owned(inputs),
            output: owned(outputs),
            name,
            ..NodeProto::default()
        }
    }

    pub(crate) fn with_int(mut self, name: &str, value: i64) -> NodeProto {
        let kind = attribute_type::INT;
        self.attribute.push(AttributeProto {
            name: name.to_owned(),
            i: Some(value),
            r#type: kind,
            ..Default::default()
        });
        self
    }

    pub(crate) fn with_ints(mut self, name: &str, values: &[i64]) -> NodeProto {
        let (name, ints, kind) = (name.to_owned(), values.to_vec(), attribute_type::INTS);
        self.attribute.push(AttributeProto { name, ints, r#type: kind, ..Default::default() });
        self
    }
}
