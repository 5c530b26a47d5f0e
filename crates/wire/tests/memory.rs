//! Decoding never allocates more than the computed bound, measured by a counting allocator.

use bytes::Bytes;
use ripieno_model::DataType;
use ripieno_wire::grpc;
use ripieno_wire::json::{self, InputShape};

const COUNT: usize = 20_000;

/// Checks that the peak allocation stays within `bound` bytes.
fn check(what: &str, bound: usize, work: impl FnOnce()) {
    let peak = allocation_counter::measure(work).bytes_max as usize;
    // Error messages and similar are small.
    assert!(peak <= bound + 4096, "{what}: {peak} bytes at the peak, bound {bound}");
}

fn repeated(piece: &str) -> String {
    let mut text = piece.repeat(COUNT);
    text.pop();
    text
}

fn input(datatype: &str, data: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"x","shape":[{COUNT}],"datatype":"{datatype}","data":[{data}]}}]}}"#)
}

#[test]
fn json_stays_within_the_bound() {
    let parameters: Vec<String> = (0..250).map(|at| format!(r#""{at}":1"#)).collect();
    let parameters = parameters.join(",");
    let tensors = |fields: &str| {
        let one = |at| format!(r#"{{"name":"{at}","parameters":{{{parameters}}}{fields}}}"#);
        (0..250).map(one).collect::<Vec<_>>().join(",")
    };
    let outputs = format!(r#"{{"inputs":[],"outputs":[{}]}}"#, tensors(""));
    let inputs = format!(r#"{{"inputs":[{}]}}"#, tensors(r#","shape":[0],"datatype":"FP32","data":[]"#));
    let texts = [
        input("FP64", &repeated("1,")),
        input("INT64", &repeated("1,")),
        input("UINT8", &repeated("255,")),
        input("BOOL", &repeated("1,")),
        input("BYTES", &repeated(r#""","#)),
        input("BYTES", &repeated(r#""abcdefghi","#)),
        input("BYTES", &repeated(r#""\u0041\n","#)),
        input("FP32", &"[".repeat(COUNT)),
        format!(r#"{{"id":"{}","inputs":[]}}"#, "\\n".repeat(COUNT)),
        format!(r#"{{"unknown":{}{},"inputs":[]}}"#, "[".repeat(100), "]".repeat(100)),
        outputs,
        inputs,
    ];
    for text in texts {
        let (bound, shown) = (json::decoded_size(text.as_bytes()), format!("{text:.80}"));
        let body = Bytes::from(text);
        check(&shown, bound, || drop(json::parse_infer("m", "", &body, None)));
    }
}

#[test]
fn generate_stays_within_the_bound() {
    let shapes = [("a", DataType::Int64, 2), ("b", DataType::Bytes, 3), ("c", DataType::Fp64, 1)];
    let inputs = shapes.map(|(name, datatype, rank)| InputShape { name, datatype, rank });
    let texts = [
        format!(r#"{{"a":[{}]}}"#, repeated("1,")),
        format!(r#"{{"a":[{}]}}"#, repeated("[1],")),
        format!(r#"{{"b":[{}]}}"#, repeated(r#"[""],"#)),
        format!(r#"{{"c":{}}}"#, "1".repeat(COUNT)),
        format!(r#"{{"a":{}{}}}"#, "[".repeat(COUNT), "]".repeat(COUNT)),
    ];
    for text in texts {
        // The text may be copied once, because a value that is not an array is wrapped in one.
        let bound = json::decoded_size(text.as_bytes()) + text.len();
        check(&format!("{text:.80}"), bound, || drop(json::parse_generate("m", "", text.as_bytes(), &inputs)));
    }
}

/// Encodes a protobuf bytes field.
fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = payload.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(payload);
    bytes
}

/// Encodes a request with one input that has one field of contents.
fn contents(datatype: &str, count: usize, field_of_contents: &[u8]) -> Vec<u8> {
    let shape = field(3, &[count as u8 | 0x80, (count >> 7) as u8 | 0x80, (count >> 14) as u8]);
    let input = [field(1, b"x"), field(2, datatype.as_bytes()), shape, field(5, field_of_contents)].concat();
    field(5, &input)
}

#[test]
fn protobuf_stays_within_the_bound() {
    let ones = vec![1; COUNT];
    let single = |number: u8| [number << 3, 1].repeat(COUNT);
    let parameters: Vec<u8> = (0..250_u8)
        .flat_map(|at| field(4, &[field(1, &[b'a', at % 100, at / 100]), field(2, &[8, 1])].concat()))
        .collect();
    let messages = [
        contents("BOOL", COUNT, &field(1, &ones)),
        contents("INT8", COUNT, &field(2, &ones)),
        contents("INT32", COUNT, &single(2)),
        contents("INT64", COUNT, &field(3, &ones)),
        contents("INT64", COUNT, &single(3)),
        contents("UINT64", COUNT, &field(5, &ones)),
        contents("FP32", COUNT / 4, &field(6, &ones)),
        contents("FP64", COUNT / 8, &field(7, &ones)),
        contents("BYTES", COUNT, &field(8, b"").repeat(COUNT)),
        contents("BYTES", COUNT, &field(8, b"abc").repeat(COUNT)),
        field(5, &field(3, &ones)),
        field(5, b"").repeat(256),
        field(6, b"").repeat(256),
        field(7, b"").repeat(256),
        parameters.clone(),
        field(5, &parameters).repeat(250),
        field(5, b"").repeat(COUNT),
    ];
    for (at, message) in messages.into_iter().enumerate() {
        let message = Bytes::from(message);
        // Messages above a limit are refused before decoding.
        let Ok(bound) = grpc::decoded_size(&message) else { continue };
        check(&format!("message {at}"), bound, || drop(grpc::decode_infer(message).and_then(grpc::parse_infer)));
    }
}
