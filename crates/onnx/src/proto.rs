//! The messages of onnx.proto under their published field numbers, written by hand so that no compiler of protobuf is needed.
//!
//! Everything that decides what a graph computes is here; what is left out (documentation, training, metadata) is lost in the
//! files that we write. Subgraphs are kept as bytes: control flow is refused, so nobody reads them. Lists of integers are
//! written unpacked, as ONNX's own library does and as rten insists on; weights are views of the file's bytes, not copies.

use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelProto {
    #[prost(int64, tag = "1")]
    pub(crate) ir_version: i64,
    #[prost(string, tag = "2")]
    pub(crate) producer_name: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) opset_import: Vec<OperatorSetProto>,
    #[prost(bytes = "bytes", repeated, tag = "25")]
    pub(crate) functions: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorSetProto {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(int64, tag = "2")]
    pub(crate) version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) value_info: Vec<ValueInfoProto>,
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub(crate) sparse_initializer: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub(crate) domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, optional, tag = "2")]
    pub(crate) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) s: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub(crate) t: Option<TensorProto>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub(crate) g: Option<Bytes>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub(crate) strings: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub(crate) graphs: Vec<Bytes>,
    #[prost(int32, tag = "20")]
    pub(crate) r#type: i32,
    #[prost(string, tag = "21")]
    pub(crate) ref_attr_name: String,
}

/// The field number of [`ModelProto::graph`].
pub(crate) const MODEL_GRAPH: u32 = 7;
/// The field number of [`GraphProto::node`].
pub(crate) const GRAPH_NODE: u32 = 1;

/// The attribute types that are written here.
pub(crate) mod attribute_type {
    pub(crate) const INT: i32 = 2;
    pub(crate) const INTS: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub(crate) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(crate) int32_data: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(crate) string_data: Vec<Bytes>,
    #[prost(int64, repeated, tag = "7")]
    pub(crate) int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(crate) name: String,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub(crate) raw_data: Option<Bytes>,
    #[prost(double, repeated, tag = "10")]
    pub(crate) double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub(crate) uint64_data: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) external_data: Vec<EntryProto>,
    #[prost(int32, tag = "14")]
    pub(crate) data_location: i32,
}

/// [`TensorProto::data_location`] of weights in a file of their own.
pub(crate) const EXTERNAL: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EntryProto {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor_type: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub(crate) elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dim: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub(crate) dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) dim_param: Option<String>,
}

/// ONNX's numbers of element types.
pub(crate) mod elem {
    pub(crate) const FLOAT: i32 = 1;
    pub(crate) const UINT8: i32 = 2;
    pub(crate) const INT32: i32 = 6;
    pub(crate) const INT64: i32 = 7;
    pub(crate) const BOOL: i32 = 9;
}

impl DimensionProto {
    /// The size, if it is one; exporters also write sizes of 0 or -1 where they mean any.
    pub(crate) fn fixed(&self) -> Option<i64> {
        self.dim_value.filter(|&size| size > 0)
    }
}

impl NodeProto {
    pub(crate) fn attr(&self, name: &str) -> Option<&AttributeProto> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// An integer attribute, or its default.
    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        self.attr(name).map_or(default, |attribute| attribute.i.unwrap_or(0))
    }

    /// A list of integers; none if the attribute is absent.
    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attr(name).map(|attribute| &attribute.ints[..])
    }

    /// A text attribute; empty if it is absent.
    pub(crate) fn text(&self, name: &str) -> String {
        let text = self.attr(name).and_then(|attribute| attribute.s.as_ref());
        text.map_or(String::new(), |text| String::from_utf8_lossy(text).into_owned())
    }

    /// The node's name for messages.
    pub(crate) fn label(&self) -> String {
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
