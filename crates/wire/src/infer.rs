//! An inference request and its response, free of the protocol that carried them.

use crate::{Datatype, MAX_DIMENSIONS, MAX_ID_BYTES, Parameter, Parameters, WireError};
use bytes::Bytes;

/// A request, decoded and checked as far as that is possible without knowing the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferRequest {
    /// The model's name.
    pub model: String,
    /// Its version; empty leaves the choice to the server.
    pub version: String,
    /// Echoed in the response; empty if the client gave none.
    pub id: String,
    /// Parameters of the request.
    pub parameters: Parameters,
    /// Inputs with distinct names; the bytes of each agree with its shape and datatype.
    pub inputs: Vec<WireTensor>,
    /// Outputs asked for, with distinct names; empty asks for all.
    pub outputs: Vec<RequestedOutput>,
    /// Whether outputs that say nothing else are to be sent in binary.
    pub binary_outputs: bool,
    /// The bytes of a raw binary request: the one input of the model, without name, type or shape.
    pub raw_input: Option<Bytes>,
}

/// An input tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct WireTensor {
    /// Name.
    pub name: String,
    /// Element type.
    pub datatype: Datatype,
    /// Dimensions, none negative.
    pub shape: Vec<i64>,
    /// Elements, little-endian and row-major; those of BYTES carry a 4-byte length each.
    pub data: Bytes,
    /// Parameters of the tensor.
    pub parameters: Parameters,
    /// Whether the elements are a slice of the message, and take no memory of their own.
    pub is_slice: bool,
    /// Where the elements are, if not in the message; then `data` is empty until [`fill`](WireTensor::fill).
    pub place: Option<Place>,
}

/// A part of a region of shared memory that a client has registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The region's name.
    pub region: String,
    /// Where the part begins within the region.
    pub offset: u64,
    /// Its bytes: of an input all of them are the tensor, of an output it is the most that it may have.
    pub byte_size: u64,
}

impl Place {
    /// The place that the parameters of `tensor` name, if they name one.
    pub(crate) fn of(parameters: &Parameters, tensor: &str) -> Result<Option<Place>, WireError> {
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
        Ok(Some(Place { region: region.clone(), offset: number("shared_memory_offset")?.unwrap_or(0), byte_size }))
    }
}

impl WireTensor {
    /// Gives a tensor its elements, which were not in the message, if they agree with its shape and datatype.
    pub fn fill(&mut self, data: Bytes) -> Result<(), WireError> {
        check_bytes(&self.name, self.datatype, &self.shape, &data)?;
        self.data = data;
        Ok(())
    }
}

/// An output that the client asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestedOutput {
    /// Name.
    pub name: String,
    /// Whether to send it in binary, if the client said so.
    pub binary: Option<bool>,
    /// Where to write it instead of sending it.
    pub place: Option<Place>,
    /// Parameters of the output.
    pub parameters: Parameters,
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferResponse {
    /// The model's name.
    pub model: String,
    /// The version that answered.
    pub version: String,
    /// The request's id; empty if it had none.
    pub id: String,
    /// Parameters of the response.
    pub parameters: Parameters,
    /// Outputs in the order to be sent.
    pub outputs: Vec<ResponseTensor>,
}

/// An output tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseTensor {
    /// Name.
    pub name: String,
    /// Element type.
    pub datatype: Datatype,
    /// Dimensions.
    pub shape: Vec<i64>,
    /// Elements, as in [`WireTensor::data`].
    pub data: Bytes,
    /// How they travel.
    pub form: Form,
}

/// How the elements of an output travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As JSON, over HTTP.
    Json,
    /// In binary; over gRPC always.
    Binary,
    /// Not at all: they have been written to where the client wanted them, and `data` is empty.
    Elsewhere,
}

/// The number of elements of a shape from outside; the error names the tensor.
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
    // Bytes must be addressable too, hence the bound below usize.
    let product = shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension as u64));
    product.filter(|&count| count <= i64::MAX as u64 / 8).and_then(|count| usize::try_from(count).ok()).ok_or_else(
        || WireError::new(format!("input '{tensor}': shape {shape:?} has more elements than can be counted")),
    )
}

/// Checks that raw bytes are what shape and datatype say.
pub(crate) fn check_bytes(tensor: &str, datatype: Datatype, shape: &[i64], data: &[u8]) -> Result<(), WireError> {
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

/// Walks the elements of a BYTES tensor.
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

/// The elements of BYTES data in order; an inner none where the data is cut off, which ends the iteration.
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

/// Appends one element of BYTES.
pub(crate) fn push_byte_element(tensor: &str, element: &[u8], data: &mut Vec<u8>) -> Result<(), WireError> {
    let length = u32::try_from(element.len())
        .map_err(|_| WireError::new(format!("input '{tensor}': an element of BYTES is longer than 2^32 bytes")))?;
    data.extend_from_slice(&length.to_le_bytes());
    data.extend_from_slice(element);
    Ok(())
}

/// The first name that occurs twice.
pub(crate) fn first_duplicate<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

impl InferRequest {
    /// What both protocols forbid.
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
        assert_eq!(check_bytes("x", Datatype::Fp32, &[2], &[0; 8]), Ok(()));
        let error = check_bytes("x", Datatype::Fp32, &[2], &[0; 7]).unwrap_err();
        assert_eq!(error.0, "input 'x': expected 8 bytes for shape [2] of FP32, got 7");
        let two = [1, 0, 0, 0, b'a', 0, 0, 0, 0];
        assert_eq!(check_bytes("x", Datatype::Bytes, &[2], &two), Ok(()));
        assert!(check_bytes("x", Datatype::Bytes, &[1], &two).unwrap_err().0.contains("expected 1 BYTES"));
        assert!(check_bytes("x", Datatype::Bytes, &[1], &[9, 0, 0, 0, 1]).unwrap_err().0.contains("ends after"));
        assert!(check_bytes("x", Datatype::Bytes, &[1], &[9, 0]).unwrap_err().0.contains("ends after"));
    }
}
