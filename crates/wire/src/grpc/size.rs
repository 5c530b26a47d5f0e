//! Upper bound on the memory of a decoded ModelInferRequest, computed from its bytes before
//! decoding.
//!
//! Protobuf is dense: an empty input tensor takes two bytes on the wire and about 300 in memory, a
//! number one byte and eight. This module walks the field lengths, skips all data, and refuses
//! messages with more tensors or parameters than a request may have.

use crate::{MAX_PARAMETERS, MAX_TENSORS, WireError};

/// Bytes per input or requested output: its struct, three times because the list doubles as it
/// grows.
const TENSOR_BYTES: usize = 1024;
/// Bytes per parameter: its entry in two maps, one after the other.
const PARAMETER_BYTES: usize = 400;
/// Bytes per element of bytes_contents: its handle, three times because the list grows, and its
/// length in the data.
const ELEMENT_BYTES: usize = 112;

/// Returns an upper bound on the bytes that decoding this message allocates. Raw contents count
/// nothing, since they stay slices of the message.
pub fn decoded_size(message: &[u8]) -> Result<usize, WireError> {
    let mut size = 0_usize;
    let (mut tensors, mut outputs, mut raw, mut parameters) = (0, 0, 0, 0);
    fields(message, &mut |field, payload| {
        match field {
            1..=3 => size += payload.len(),
            4 => size += parameter(&mut parameters, payload)?,
            5 => {
                check_count(&mut tensors, MAX_TENSORS, "inputs")?;
                size += tensor(payload, true)?;
            }
            6 => {
                check_count(&mut outputs, MAX_TENSORS, "requested outputs")?;
                size += tensor(payload, false)?;
            }
            7 => {
                check_count(&mut raw, MAX_TENSORS, "raw_input_contents")?;
                size += ELEMENT_BYTES;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(size)
}

/// Returns the same bound for a RepositoryModelLoadRequest. Byte parameters are slices of the
/// message; strings are copied.
pub fn decoded_load_size(message: &[u8]) -> Result<usize, WireError> {
    let (mut size, mut parameters) = (0_usize, 0);
    fields(message, &mut |field, payload| {
        size += match field {
            3 => parameter(&mut parameters, payload)?,
            _ => payload.len(),
        };
        Ok(())
    })?;
    Ok(size)
}

/// Returns the size of an input tensor or of a requested output, whose second field is its
/// parameters.
fn tensor(message: &[u8], is_input: bool) -> Result<usize, WireError> {
    let (mut size, mut parameters) = (TENSOR_BYTES, 0);
    fields(message, &mut |field, payload| {
        match (field, is_input) {
            (2, false) | (4, true) => size += parameter(&mut parameters, payload)?,
            // A dimension takes at least one byte on the wire and eight in memory, three times
            // because the list grows.
            (3, true) => size += 24 * payload.len().max(1),
            (5, true) => size += contents(payload)?,
            _ => size += payload.len(),
        }
        Ok(())
    })?;
    Ok(size)
}

/// Returns the size of typed contents: the message's list, three times because it grows, then two
/// copies as tensor bytes.
fn contents(message: &[u8]) -> Result<usize, WireError> {
    let mut size = 0_usize;
    fields(message, &mut |field, payload| {
        size += match field {
            1 => 3 * payload.len().max(1),
            2 | 4 => 12 * payload.len().max(1),
            3 | 5 => 24 * payload.len().max(1),
            6 | 7 => 3 * payload.len(),
            8 => ELEMENT_BYTES + payload.len(),
            _ => 0,
        };
        Ok(())
    })?;
    Ok(size)
}

fn parameter(count: &mut usize, payload: &[u8]) -> Result<usize, WireError> {
    check_count(count, MAX_PARAMETERS, "parameters")?;
    Ok(PARAMETER_BYTES + 2 * payload.len())
}

fn check_count(count: &mut usize, most: usize, what: &str) -> Result<(), WireError> {
    *count += 1;
    if *count > most {
        return Err(WireError::new(format!("more than {most} {what}")));
    }
    Ok(())
}

/// Callback that receives a field's number and payload.
type Visit<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), WireError>;

/// Visits the fields of a message. The payload of a varint field is the varint's own bytes.
fn fields(mut message: &[u8], visit: Visit<'_>) -> Result<(), WireError> {
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let length = match key & 7 {
            0 => {
                let mut rest = message;
                varint(&mut rest)?;
                message.len() - rest.len()
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)?).map_err(|_| cut_off())?,
            5 => 4,
            // Groups do not occur in the protocol's messages.
            _ => return Err(WireError::new("the message has a field of a type that no request has")),
        };
        let (payload, rest) = message.split_at_checked(length).ok_or_else(cut_off)?;
        visit(key >> 3, payload)?;
        message = rest;
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or_else(cut_off)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(WireError::new("the message has a number of more than ten bytes"))
}

fn cut_off() -> WireError {
    WireError::new("the message ends within a field")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::inference::model_infer_request::InferInputTensor;
    use crate::proto::inference::{InferTensorContents, ModelInferRequest};
    use bytes::Bytes;
    use prost::Message;

    fn input(contents: InferTensorContents) -> ModelInferRequest {
        let input =
            InferInputTensor { name: "x".into(), shape: vec![1, 2], contents: Some(contents), ..Default::default() };
        ModelInferRequest { model_name: "m".into(), inputs: vec![input], ..Default::default() }
    }

    #[test]
    fn small_messages_that_become_large_are_seen_as_large() {
        let ones = input(InferTensorContents { int64_contents: vec![1; 1000], ..Default::default() });
        assert!(decoded_size(&ones.encode_to_vec()).unwrap() >= 24_000);
        let empty = input(InferTensorContents { bytes_contents: vec![Bytes::new(); 1000], ..Default::default() });
        assert!(decoded_size(&empty.encode_to_vec()).unwrap() >= 32 * 1000);
        let raw = ModelInferRequest { raw_input_contents: vec![Bytes::from(vec![0; 1 << 20])], ..Default::default() };
        assert!(decoded_size(&raw.encode_to_vec()).unwrap() < 1000, "raw contents are not copied");
        // Each input takes two bytes.
        let many = [0x2a, 0].repeat(300);
        assert_eq!(decoded_size(&many).unwrap_err().0, "more than 256 inputs");
        assert!(decoded_size(&[0x2a, 0].repeat(256)).unwrap() >= 256 * size_of::<InferInputTensor>());
        assert_eq!(decoded_size(&[0x22, 0].repeat(257)).unwrap_err().0, "more than 256 parameters");
    }

    #[test]
    fn malformed_messages_are_refused() {
        for (bytes, wanted) in [
            (&[0x2a_u8, 5, 0][..], "ends within"),
            (&[0x2a], "ends within"),
            (&[0xff; 11], "more than ten bytes"),
            (&[0x2b], "a type that no request has"),
        ] {
            let error = decoded_size(bytes).unwrap_err().0;
            assert!(error.contains(wanted), "{bytes:?}: {error}");
        }
        assert_eq!(decoded_size(&[]), Ok(0));
    }

    #[test]
    fn a_load_is_bounded_in_parameters_before_it_is_decoded() {
        use crate::proto::inference::model_repository_parameter::ParameterChoice;
        use crate::proto::inference::{ModelRepositoryParameter, RepositoryModelLoadRequest};
        let file = |at: usize| {
            let parameter_choice = Some(ParameterChoice::BytesParam(Bytes::from(vec![0; 1000])));
            (format!("file:1/{at}"), ModelRepositoryParameter { parameter_choice })
        };
        let load = |files: usize| {
            let parameters = (0..files).map(file).collect();
            RepositoryModelLoadRequest { model_name: "m".into(), parameters, ..Default::default() }.encode_to_vec()
        };
        assert!(decoded_load_size(&load(MAX_PARAMETERS)).unwrap() > 1000 * MAX_PARAMETERS);
        assert!(decoded_load_size(&load(MAX_PARAMETERS + 1)).unwrap_err().0.contains("more than 256 parameters"));
        assert!(decoded_load_size(&load(1)[..500]).is_err());
    }
}
