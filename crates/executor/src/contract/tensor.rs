//! Tensors in their wire format: little-endian, row-major bytes.

use bytes::Bytes;
use ripieno_model::DataType;
use std::sync::Arc;

/// A tensor of one request. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name.
    pub name: Arc<str>,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions. The first is the request's rows.
    pub shape: Vec<i64>,
    /// The elements, little-endian and row-major. Each BYTES element has a 4-byte length prefix.
    pub data: Bytes,
}
