//! Decoding never takes more than is told beforehand, whatever comes: the allocator counts.

use bytes::Bytes;
use ripieno_wire::json::{self, InputShape};
use ripieno_wire::{Datatype, grpc};

const COUNT: usize = 20_000;

/// The most bytes that were allocated at once, and what was told.
fn check(what: &str, told: usize, work: impl FnOnce()) {
    let peak = allocation_counter::measure(work).bytes_max as usize;
    // Error messages and the like are small.
    assert!(peak <= told + 4096, "{what}: {peak} bytes at once, {told} told");
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
fn json_takes_no_more_than_told() {
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
        let (told, shown) = (json::decoded_size(text.as_bytes()), format!("{text:.80}"));
        let body = Bytes::from(text);
        check(&shown, told, || drop(json::parse_infer("m", "", &body, None)));
    }
}

#[test]
fn generate_takes_no_more_than_told() {
    let shapes = [("a", Datatype::Int64, 2), ("b", Datatype::Bytes, 3), ("c", Datatype::Fp64, 1)];
    let inputs = shapes.map(|(name, datatype, rank)| InputShape { name, datatype, rank });
    let texts = [
        format!(r#"{{"a":[{}]}}"#, repeated("1,")),
        format!(r#"{{"a":[{}]}}"#, repeated("[1],")),
        format!(r#"{{"b":[{}]}}"#, repeated(r#"[""],"#)),
        format!(r#"{{"c":{}}}"#, "1".repeat(COUNT)),
        format!(r#"{{"a":{}{}}}"#, "[".repeat(COUNT), "]".repeat(COUNT)),
    ];
    for text in texts {
        // The text may be copied once: what is no array is put into one.
        let told = json::decoded_size(text.as_bytes()) + text.len();
        check(&format!("{text:.80}"), told, || drop(json::parse_generate("m", "", text.as_bytes(), &inputs)));
    }
}

/// A field of protobuf with bytes.
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

/// A request with one input of one field of contents.
fn contents(datatype: &str, count: usize, field_of_contents: &[u8]) -> Vec<u8> {
    let shape = field(3, &[count as u8 | 0x80, (count >> 7) as u8 | 0x80, (count >> 14) as u8]);
    let input = [field(1, b"x"), field(2, datatype.as_bytes()), shape, field(5, field_of_contents)].concat();
    field(5, &input)
}

#[test]
fn protobuf_takes_no_more_than_told() {
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
        // What has too much of something is not decoded at all.
        let Ok(told) = grpc::decoded_size(&message) else { continue };
        check(&format!("message {at}"), told, || drop(grpc::decode_infer(message).and_then(grpc::parse_infer)));
    }
}
