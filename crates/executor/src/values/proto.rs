//! The messages of onnx.proto that the analysis of values reads, under their published field numbers.

use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelProto {
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "25")]
    pub(super) functions: Vec<FunctionProto>,
}

/// A graph that nodes call by its name, as they do an operator.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FunctionProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "7")]
    pub(super) node: Vec<NodeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<NamedProto>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<NamedProto>,
}

/// A ValueInfoProto, of which only the name matters here.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NamedProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<AttributeProto>,
}

impl NodeProto {
    pub(super) fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(float, tag = "2")]
    pub(super) f: f32,
    #[prost(int64, tag = "3")]
    pub(super) i: i64,
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<TensorProto>,
    #[prost(message, optional, tag = "6")]
    pub(super) g: Option<GraphProto>,
    #[prost(float, repeated, tag = "7")]
    pub(super) floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub(super) ints: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(super) data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub(super) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(super) int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub(super) int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(super) name: String,
    #[prost(bytes = "bytes", tag = "9")]
    pub(super) raw_data: Bytes,
}

/// ONNX's numbers of the element types.
pub(super) mod elem {
    pub(crate) const FLOAT: i32 = 1;
    pub(crate) const UINT8: i32 = 2;
    pub(crate) const INT8: i32 = 3;
    pub(crate) const INT32: i32 = 6;
    pub(crate) const INT64: i32 = 7;
    pub(crate) const BOOL: i32 = 9;
    pub(crate) const DOUBLE: i32 = 11;
}

impl TensorProto {
    /// The elements, where they are numbers of a common type and all lie in the file itself, not beside it.
    pub(super) fn numbers(&self) -> Option<Box<dyn ExactSizeIterator<Item = f64> + '_>> {
        let raw = &self.raw_data[..];
        macro_rules! read {
            ($number:ty) => {
                Box::new(raw.as_chunks().0.iter().map(|&bytes| <$number>::from_le_bytes(bytes) as f64))
            };
        }
        let typed = !raw.is_empty();
        let numbers: Box<dyn ExactSizeIterator<Item = f64> + '_> = match self.data_type {
            elem::INT64 if typed => read!(i64),
            elem::INT64 => Box::new(self.int64_data.iter().map(|&number| number as f64)),
            elem::INT32 if typed => read!(i32),
            elem::FLOAT if typed => read!(f32),
            elem::FLOAT => Box::new(self.float_data.iter().map(|&number| f64::from(number))),
            elem::DOUBLE if typed => read!(f64),
            elem::INT8 if typed => read!(i8),
            elem::UINT8 | elem::BOOL if typed => Box::new(raw.iter().map(|&number| f64::from(number))),
            elem::INT32 | elem::INT8 | elem::UINT8 | elem::BOOL => {
                Box::new(self.int32_data.iter().map(|&number| f64::from(number)))
            }
            _ => return None,
        };
        let count = self.dims.iter().try_fold(1_i64, |count, &dim| count.checked_mul(dim));
        (count.and_then(|count| usize::try_from(count).ok()) == Some(numbers.len())).then_some(numbers)
    }
}
