//! An inference request and its response, independent of the protocol that carried them.

use crate::{MAX_DIMENSIONS, MAX_ID_BYTES, Parameter, Parameters, WireError};
use bytes::Bytes;
use ripieno_model::DataType;

/// A decoded request, validated as far as possible without knowing the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferRequest {
    /// Model name.
    pub model: String,
    /// Model version; empty leaves the choice to the server.
    pub version: String,
    /// Request id, echoed in the response; empty if the client sent none.
    pub id: String,
    /// Parameters of the request.
    pub parameters: Parameters,
    /// Inputs with distinct names; each tensor's bytes agree with its shape and datatype.
    pub inputs: Vec<WireTensor>,
    /// Requested outputs with distinct names; empty requests all.
    pub outputs: Vec<RequestedOutput>,
    /// Whether outputs without an explicit encoding are sent in binary.
    pub binary_outputs: bool,
    /// Body of a raw binary request: the model's only input, without name, datatype or shape.
    pub raw_input: Option<Bytes>,
}

/// An input tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct WireTensor {
    /// Tensor name.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions, none negative.
    pub shape: Vec<i64>,
    /// Elements, little-endian and row-major; BYTES elements carry a 4-byte length each.
    pub data: Bytes,
    /// Parameters of the tensor.
    pub parameters: Parameters,
    /// Whether the elements are a slice of the message, and so take no memory of their own.
    pub is_slice: bool,
    /// Shared memory that contains the elements, if they are not in the message; `data` is then
    /// empty until [`fill`](WireTensor::fill).
    pub shared_memory: Option<SharedMemoryRef>,
}

/// A range within a shared memory region that the client has registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedMemoryRef {
    /// Name of the region.
    pub region: String,
    /// Offset of the range within the region, in bytes.
    pub offset: u64,
    /// Size in bytes: the exact size of an input, the maximum size of an output.
    pub byte_size: u64,
}

impl SharedMemoryRef {
    /// Reads the shared memory parameters of `tensor`; returns `None` if it has none.
    pub(crate) fn from_parameters(parameters: &Parameters, tensor: &str) -> Result<Option<SharedMemoryRef>, WireError> {
        let Some(region) = parameters.get("shared_memory_region") else { return Ok(None) };
        let Parameter::Text(region) = region else {
            return Err(WireError::new(format!(
                "tensor '{tensor}': shared_memory_region is {region}; it must be the name of a region"
            )));
        };
        let number = |name: &str| match parameters.get(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| {
                WireError::new(format!("tensor '{tensor}': {name} is {value}; it must be a number of bytes"))
            }),
        };
        let byte_size = number("shared_memory_byte_size")?.ok_or_else(|| {
            WireError::new(format!("tensor '{tensor}': shared_memory_byte_size must be given beside the region"))
        })?;
        Ok(Some(SharedMemoryRef {
            region: region.clone(),
            offset: number("shared_memory_offset")?.unwrap_or(0),
            byte_size,
        }))
    }
}

impl WireTensor {
    /// Sets the elements of a tensor whose data was not in the message, if they agree with its
    /// shape and datatype.
    pub fn fill(&mut self, data: Bytes) -> Result<(), WireError> {
        check_bytes(&self.name, self.datatype, &self.shape, &data)?;
        self.data = data;
        Ok(())
    }
}

/// An output that the client requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestedOutput {
    /// Output name.
    pub name: String,
    /// Whether to send it in binary, if the client chose.
    pub binary: Option<bool>,
    /// Shared memory to write it to instead of sending it.
    pub shared_memory: Option<SharedMemoryRef>,
    /// Parameters of the output.
    pub parameters: Parameters,
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferResponse {
    /// Model name.
    pub model: String,
    /// Version of the model that answered.
    pub version: String,
    /// Id of the request; empty if it had none.
    pub id: String,
    /// Parameters of the response.
    pub parameters: Parameters,
    /// Outputs in the order in which they are sent.
    pub outputs: Vec<ResponseTensor>,
}

/// An output tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseTensor {
    /// Tensor name.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions.
    pub shape: Vec<i64>,
    /// Elements, encoded as in [`WireTensor::data`].
    pub data: Bytes,
    /// Encoding of the elements in the response.
    pub encoding: OutputEncoding,
}

/// Encoding of an output's elements in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputEncoding {
    /// JSON numbers or strings, over HTTP.
    Json,
    /// Binary data; always used over gRPC.
    Binary,
    /// None: the elements were written to the client's shared memory, and `data` is empty.
    SharedMemory,
}

/// Returns the number of elements of a client's shape; the error names the tensor.
pub fn element_count(tensor: &str, shape: &[i64]) -> Result<usize, WireError> {
    if shape.len() > MAX_DIMENSIONS {
        return Err(WireError::new(format!(
            "input '{tensor}': {} dimensions; at most {MAX_DIMENSIONS} are allowed",
            shape.len()
        )));
    }
    if let Some(negative) = shape.iter().find(|&&dimension| dimension < 0) {
        return Err(WireError::new(format!(
            "input '{tensor}': dimension {negative} in shape {shape:?} is negative; send the size of this very tensor"
        )));
    }
    // The bound is below usize::MAX so that the size in bytes fits too.
    let product = shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension as u64));
    product.filter(|&count| count <= i64::MAX as u64 / 8).and_then(|count| usize::try_from(count).ok()).ok_or_else(
        || WireError::new(format!("input '{tensor}': shape {shape:?} has more elements than can be counted")),
    )
}

/// Checks that the size of raw bytes agrees with shape and datatype.
pub(crate) fn check_bytes(tensor: &str, datatype: DataType, shape: &[i64], data: &[u8]) -> Result<(), WireError> {
    let count = element_count(tensor, shape)?;
    match datatype.size() {
        Some(size) if data.len() == count * size => Ok(()),
        Some(size) => Err(WireError::new(format!(
            "input '{tensor}': expected {} bytes for shape {shape:?} of {datatype}, got {}",
            count * size,
            data.len()
        ))),
        None => check_lengths(tensor, count, data),
    }
}

/// Checks the element lengths of a BYTES tensor.
fn check_lengths(tensor: &str, count: usize, data: &[u8]) -> Result<(), WireError> {
    let found = byte_elements(data).try_fold(0usize, |found, element| element.map(|_| found + 1));
    match found {
        Some(found) if found == count => Ok(()),
        Some(found) => Err(WireError::new(format!(
            "input '{tensor}': expected {count} BYTES elements by its shape, got {found} in {} bytes",
            data.len()
        ))),
        None => Err(WireError::new(format!(
            "input '{tensor}': an element of BYTES ends after the data; each element is a little-endian 4-byte length and \
             that many bytes"
        ))),
    }
}

/// Returns the elements of BYTES data in order. Truncated data yields `None` as the last item.
pub(crate) fn byte_elements(mut data: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let element = data
            .split_first_chunk::<4>()
            .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
        data = element.map_or(&[], |(_, rest)| rest);
        Some(element.map(|(element, _)| element))
    })
}

/// Appends one BYTES element.
pub(crate) fn push_byte_element(tensor: &str, element: &[u8], data: &mut Vec<u8>) -> Result<(), WireError> {
    let length = u32::try_from(element.len())
        .map_err(|_| WireError::new(format!("input '{tensor}': an element of BYTES is longer than 2^32 bytes")))?;
    data.extend_from_slice(&length.to_le_bytes());
    data.extend_from_slice(element);
    Ok(())
}

/// Returns the first name that occurs twice.
pub(crate) fn first_duplicate<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

impl InferRequest {
    /// Checks the rules that hold for both protocols.
    pub(crate) fn check_names(&self) -> Result<(), WireError> {
        if self.id.len() > MAX_ID_BYTES {
            return Err(WireError::new(format!(
                "the id has {} bytes; at most {MAX_ID_BYTES} are allowed",
                self.id.len()
            )));
        }
        if let Some(name) = first_duplicate(self.inputs.iter().map(|input| input.name.as_str())) {
            return Err(WireError::new(format!("input '{name}' is given twice")));
        }
        if let Some(name) = first_duplicate(self.outputs.iter().map(|output| output.name.as_str())) {
            return Err(WireError::new(format!("output '{name}' is requested twice")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_from_outside_cannot_overflow() {
        assert_eq!(element_count("x", &[2, 3]), Ok(6));
        assert_eq!(element_count("x", &[]), Ok(1));
        assert_eq!(element_count("x", &[0, 1 << 62]), Ok(0));
        assert!(element_count("x", &[1 << 40, 1 << 40]).unwrap_err().0.contains("more elements"));
        assert!(element_count("x", &[i64::MAX]).unwrap_err().0.contains("more elements"));
        assert!(element_count("x", &[2, -1]).unwrap_err().0.contains("-1 in shape [2, -1] is negative"));
        assert!(element_count("x", &[1; 33]).unwrap_err().0.contains("33 dimensions"));
    }

    #[test]
    fn bytes_must_agree_with_the_shape() {
        assert_eq!(check_bytes("x", DataType::Fp32, &[2], &[0; 8]), Ok(()));
        let error = check_bytes("x", DataType::Fp32, &[2], &[0; 7]).unwrap_err();
        assert_eq!(error.0, "input 'x': expected 8 bytes for shape [2] of FP32, got 7");
        let two = [1, 0, 0, 0, b'a', 0, 0, 0, 0];
        assert_eq!(check_bytes("x", DataType::Bytes, &[2], &two), Ok(()));
        assert!(check_bytes("x", DataType::Bytes, &[1], &two).unwrap_err().0.contains("expected 1 BYTES"));
        assert!(check_bytes("x", DataType::Bytes, &[1], &[9, 0, 0, 0, 1]).unwrap_err().0.contains("ends after"));
        assert!(check_bytes("x", DataType::Bytes, &[1], &[9, 0]).unwrap_err().0.contains("ends after"));
    }
}
