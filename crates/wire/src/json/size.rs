//! Upper bounds on the memory of a decoded message, computed from its text before allocation.
//!
//! A server that reserves this amount before it decodes stays within its memory budget. Decoding
//! multiplies the size: "1," is two bytes of text and eight as an INT64; a parameter of six bytes
//! becomes a map entry.

use crate::{InferResponse, OutputEncoding};
use ripieno_model::DataType;

/// Maximum bytes of a decoded number.
const NUMBER_BYTES: usize = 8;
/// Bytes of a string in memory besides its text: its list or map entry, and its allocation.
const STRING_ENTRY_BYTES: usize = 160;

/// Returns an upper bound on the bytes that decoding this JSON allocates.
pub fn decoded_size(text: &[u8]) -> usize {
    let (mut commas, mut colons) = (1_usize, 1_usize);
    // Chunks whose counts fit in a byte, so that the compiler vectorises the loop.
    for piece in text.chunks(255) {
        commas += usize::from(piece.iter().map(|&byte| u8::from(byte == b',')).sum::<u8>());
        colons += usize::from(piece.iter().map(|&byte| u8::from(byte == b':')).sum::<u8>());
    }
    // Strings count once as they are, and three times for the growing buffer when escapes are
    // removed or nesting is tracked.
    commas.saturating_mul(NUMBER_BYTES) + colons.saturating_mul(STRING_ENTRY_BYTES) + 4 * text.len()
}

/// Returns an upper bound on the encoded size of a response, binary outputs included.
pub fn encoded_size(response: &InferResponse) -> usize {
    let tensors = response.outputs.iter().map(|output| {
        let data = output.data.len();
        let text = if output.encoding == OutputEncoding::Json { text_size(output.datatype, data) } else { data };
        text + output.name.len() * 6 + output.shape.len() * 21 + 128
    });
    let parameters = response.parameters.0.len() * 64;
    256 + 6 * (response.id.len() + response.model.len()) + parameters + tensors.sum::<usize>()
}

/// Returns an upper bound on the characters, including commas, of `bytes` of tensor data as JSON.
pub fn text_size(datatype: DataType, bytes: usize) -> usize {
    // The longest elements: "false,", "-128,", "-1.17549435e-38,", …
    let longest = match datatype {
        DataType::Bool => 6,
        DataType::Uint8 => 4,
        DataType::Int8 => 5,
        DataType::Uint16 => 6,
        DataType::Int16 => 7,
        DataType::Uint32 => 11,
        DataType::Int32 => 12,
        DataType::Uint64 | DataType::Int64 => 21,
        DataType::Fp32 => 16,
        DataType::Fp64 => 26,
        // A byte may become six characters; the bytes of the element's length prefix cover the
        // quotes and the comma.
        DataType::Bytes => return bytes.saturating_mul(6),
        DataType::Fp16 | DataType::Bf16 => return 0,
    };
    (bytes / datatype.size().unwrap_or(1)).saturating_mul(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ResponseTensor;
    use crate::json::{encode_generate, encode_infer, parse_infer};
    use bytes::Bytes;

    #[test]
    fn the_longest_texts_of_every_datatype_fit() {
        let cases: [(DataType, Vec<u8>); 12] = [
            (DataType::Bool, vec![0]),
            (DataType::Uint8, vec![255]),
            (DataType::Int8, vec![0x80]),
            (DataType::Uint16, u16::MAX.to_le_bytes().to_vec()),
            (DataType::Int16, i16::MIN.to_le_bytes().to_vec()),
            (DataType::Uint32, u32::MAX.to_le_bytes().to_vec()),
            (DataType::Int32, i32::MIN.to_le_bytes().to_vec()),
            (DataType::Uint64, u64::MAX.to_le_bytes().to_vec()),
            (DataType::Int64, i64::MIN.to_le_bytes().to_vec()),
            (DataType::Fp32, (-f32::MIN_POSITIVE).to_le_bytes().to_vec()),
            (DataType::Fp64, (-f64::MIN_POSITIVE).to_le_bytes().to_vec()),
            (DataType::Bytes, [&3_u32.to_le_bytes()[..], &[1, 2, 3]].concat()),
        ];
        for (datatype, element) in cases {
            let output = ResponseTensor {
                name: "y".into(),
                datatype,
                shape: vec![1000],
                data: Bytes::from(element.repeat(1000)),
                encoding: OutputEncoding::Json,
            };
            let response = InferResponse { model: "m".into(), outputs: vec![output], ..InferResponse::default() };
            let bound = encoded_size(&response);
            let infer = encode_infer(&response).unwrap().body.len();
            assert!(
                infer <= bound && encode_generate(&response).unwrap().len() <= bound,
                "{datatype}: {infer} > {bound}"
            );
        }
    }

    #[test]
    fn decoded_messages_fit_in_their_reservation() {
        let numbers = |datatype: &str, count: usize| {
            let data = vec!["1"; count].join(",");
            format!(r#"{{"inputs":[{{"name":"x","shape":[{count}],"datatype":"{datatype}","data":[{data}]}}]}}"#)
        };
        let strings = format!(
            r#"{{"inputs":[{{"name":"x","shape":[1000],"datatype":"BYTES","data":[{}]}}]}}"#,
            vec![r#""""#; 1000].join(",")
        );
        for text in [numbers("FP64", 1000), numbers("INT64", 7), numbers("UINT8", 1000), strings] {
            let request = parse_infer("m", "", &Bytes::from(text.clone()), None).unwrap();
            let held = request.inputs[0].data.len();
            assert!(held <= decoded_size(text.as_bytes()), "{held} of {text:.60}");
        }
        assert!(decoded_size(&[b','; 1000]) >= 8000);
    }
}
