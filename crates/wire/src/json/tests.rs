use super::*;
use crate::{InferRequest, InferResponse, OutputEncoding, ResponseTensor, SharedMemoryRef, WireError};
use bytes::Bytes;
use proptest::prelude::*;
use ripieno_model::DataType;
use serde_json::{Value, json};

fn parse(json: &Value) -> Result<InferRequest, WireError> {
    parse_infer("m", "", &Bytes::from(json.to_string()), None)
}

fn one(datatype: &str, shape: Value, data: Value) -> Result<Bytes, String> {
    let request = json!({"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]});
    parse(&request).map(|request| request.inputs[0].data.clone()).map_err(|error| error.0)
}

fn error_of(json: Value) -> String {
    parse(&json).unwrap_err().0
}

#[test]
fn nested_and_flat_data_are_the_same() {
    let flat = one("INT16", json!([2, 3]), json!([1, 2, 3, 4, 5, -6])).unwrap();
    assert_eq!(flat.as_ref(), [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 250, 255]);
    assert_eq!(one("INT16", json!([2, 3]), json!([[1, 2, 3], [4, 5, -6]])).unwrap(), flat);
    assert_eq!(one("INT16", json!([0, 3]), json!([])).unwrap().len(), 0);
}

#[test]
fn keys_may_come_in_any_order() {
    let body = r#" {"inputs":[{"data":[ 1.5 , 2e0 ],"shape":[2],"datatype":"FP32","name":"x","junk":{"a":[1]}}],"id":"7","z":0} "#;
    let request = parse_infer("m", "3", &Bytes::from(body), Some(body.len())).unwrap();
    assert_eq!((request.id.as_str(), request.version.as_str()), ("7", "3"));
    assert_eq!(request.inputs[0].data.as_ref(), [1.5f32.to_le_bytes(), 2f32.to_le_bytes()].concat());
}

#[test]
fn errors_name_tensor_element_value_and_type() {
    assert_eq!(
        one("UINT8", json!([3]), json!([1, 2, 300])).unwrap_err(),
        "input 'x': element 2 is 300, which is not an integer in the range of UINT8, 0 to 255"
    );
    let cases = [
        ("INT8", json!([-129]), "range of INT8, -128 to 127"),
        ("UINT64", json!([-1]), "range of UINT64, 0 to 18446744073709551615"),
        ("INT64", json!([9_223_372_036_854_775_808u64]), "-9223372036854775808 to 9223372036854775807"),
        ("INT32", json!([1.5]), "element 0 is 1.5"),
        ("INT32", json!(["1"]), "element 0 is \"1\""),
        ("FP32", json!([1e39]), "a number in the range of FP32, or"),
        ("FP64", json!([null]), "element 0 is null"),
        ("FP32", json!([true]), "element 0 is true"),
        ("BOOL", json!([2]), "a BOOL: true or false"),
        ("BYTES", json!([1]), "a BYTES element: a string"),
        ("FP32", json!([{"a": 1}]), "element 0 is {"),
        ("FP16", json!([1.0]), "FP16 has no JSON form; send it as binary"),
        ("BF16", json!([1.0]), "BF16 has no JSON form"),
        ("FLOAT", json!([1.0]), "datatype 'FLOAT' is unknown; use one of"),
        ("FP32", json!([1, 2]), "more than the 1 elements"),
        ("FP32", json!([]), "expected 1 elements by its shape, got 0"),
        ("FP32", json!(1.0), "data must be an array"),
        ("FP32", json!("1.0"), "data must be an array"),
    ];
    for (datatype, data, expected) in cases {
        let error = one(datatype, json!([1]), data).unwrap_err();
        assert!(error.contains(expected) && error.contains("'x'"), "{datatype}: {error}");
    }
}

#[test]
fn numbers_that_are_not_finite_come_and_go_as_pythons_json_writes_them() {
    let body = |data: &str, datatype: &str| {
        let body = format!(r#"{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[3],"data":{data}}}]}}"#);
        parse_infer("m", "1", &Bytes::from(body), None).map(|request| request.inputs[0].data.to_vec())
    };
    let wanted = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
    let bytes = wanted.map(f32::to_le_bytes).concat();
    for data in ["[NaN,-Infinity, Infinity]", r#"["NaN","-Infinity","Infinity"]"#] {
        assert_eq!(body(data, "FP32").unwrap(), bytes, "{data}");
    }
    let wide = wanted.map(|value| f64::from(value).to_le_bytes()).concat();
    assert_eq!(body("[[NaN,-Infinity,Infinity]]", "FP64").unwrap(), wide);
    assert!(body("[NaN,1,2]", "INT32").unwrap_err().0.contains("element 0 is \"NaN\""));
    assert!(body("[NaN,nan,2]", "FP32").is_err() && body("[+Infinity,1,2]", "FP32").is_err());
    // A string that holds such a word is a string.
    assert!(body(r#"["NaN","a NaN","Infinity"]"#, "BYTES").unwrap().ends_with(b"Infinity"));
    let answer = encode(vec![ResponseTensor { shape: vec![3], ..output(DataType::Fp64, wide, false) }]).unwrap();
    assert!(String::from_utf8(answer.body).unwrap().contains(r#""data":[NaN,-Infinity,Infinity]"#));
}

#[test]
fn uneven_nesting_is_refused() {
    assert!(one("FP32", json!([2, 2]), json!([[1, 2, 3], [4]])).unwrap_err().contains("ragged"));
    assert!(one("FP32", json!([2, 2]), json!([[1, 2, 3], 4])).unwrap_err().contains("mixes elements and arrays"));
    let deep = |levels: usize| {
        let data = "[".repeat(levels) + "1" + &"]".repeat(levels);
        let body = format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1],"data":{data}}}]}}"#);
        parse_infer("m", "", &Bytes::from(body), None)
    };
    assert!(deep(64).is_ok());
    assert!(deep(65).unwrap_err().0.contains("deeper than 64"));
    assert!(deep(100_000).unwrap_err().0.contains("deeper than 64"));
}

#[test]
fn malformed_requests_are_refused() {
    let input = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1], "data": [1]});
    let with = |key: &str, value: Value| {
        let mut input = input("x");
        input[key] = value;
        error_of(json!({"inputs": [input]}))
    };
    assert!(error_of(json!({})).contains("missing field `inputs`"));
    assert!(error_of(json!({"inputs": [input("x"), input("x")]})).contains("'x' is given twice"));
    let outputs = json!([{"name": "y"}, {"name": "y"}]);
    assert!(error_of(json!({"inputs": [], "outputs": outputs})).contains("'y' is requested twice"));
    assert!(with("parameters", json!({"binary_data_size": 4})).contains("both data and binary_data_size"));
    assert!(with("shape", json!([-1])).contains("is negative"));
    assert!(with("shape", json!([1u64 << 40, 1u64 << 40])).contains("more elements than can be counted"));
    assert!(with("shape", json!(vec![1; 33])).contains("at most 32"));
    assert!(with("parameters", json!({"a": []})).contains("a string, a number or a boolean"));
    let many: Vec<Value> = (0..257).map(|index| input(&index.to_string())).collect();
    assert!(error_of(json!({"inputs": many})).contains("at most 256"));
    let no_data = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]});
    assert!(error_of(no_data).contains("'x' has no data"));
    let flag = json!({"inputs": [], "parameters": {"binary_data_output": 1}});
    assert!(error_of(flag).contains("binary_data_output of the request is 1; it must be true or false"));
    assert!(parse_infer("m", "", &Bytes::from("{} x"), None).unwrap_err().0.contains("not valid"));
}

#[test]
fn a_tensor_may_be_elsewhere() {
    let with = |parameters: Value, data: Value| {
        parse(
            &json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "parameters": parameters, "data": data}]}),
        )
    };
    let place = json!({"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": 8});
    let mut input = with(place.clone(), Value::Null).unwrap().inputs.remove(0);
    assert_eq!(input.shared_memory, Some(SharedMemoryRef { region: "r".into(), offset: 8, byte_size: 4 }));
    assert!(input.data.is_empty() && input.fill(Bytes::from_static(&[0; 5])).is_err());
    assert!(input.fill(Bytes::from_static(&[0; 4])).is_ok() && input.data.len() == 4);
    assert!(with(place, json!([1])).unwrap_err().0.contains("beside shared_memory_region"));
    let refused = |parameters: Value| with(parameters, Value::Null).unwrap_err().0;
    assert!(refused(json!({"shared_memory_region": 4})).contains("must be the name of a region"));
    assert!(refused(json!({"shared_memory_region": "r"})).contains("shared_memory_byte_size must be given"));
    let negative = json!({"shared_memory_region": "r", "shared_memory_byte_size": -4});
    assert!(refused(negative).contains("shared_memory_byte_size is -4; it must be a number of bytes"));
}

fn binary_request(size: Value, tail: &[u8], json_length: Option<isize>) -> Result<InferRequest, WireError> {
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size}});
    let json = json!({"inputs": [input]}).to_string();
    let length = json_length.map(|more| json.len().checked_add_signed(more).unwrap());
    parse_infer("m", "", &Bytes::from([json.as_bytes(), tail].concat()), length)
}

#[test]
fn binary_data_must_add_up() {
    assert_eq!(binary_request(json!(4), &[1, 2, 3, 4], Some(0)).unwrap().inputs[0].data.as_ref(), [1, 2, 3, 4]);
    let error = |size, tail: &[u8], length| binary_request(size, tail, length).unwrap_err().0;
    assert!(error(json!(4), &[1, 2, 3], Some(0)).contains("only 3 bytes follow the JSON"));
    assert!(error(json!(4), &[1; 5], Some(0)).contains("1 bytes are left over"));
    assert!(error(json!(5), &[1; 5], Some(0)).contains("expected 4 bytes for shape [1] of FP32, got 5"));
    assert!(error(json!(-4), &[1; 4], Some(0)).contains("not a number of bytes"));
    assert!(error(json!(u64::MAX), &[1; 4], Some(0)).contains("only 4 bytes"));
    assert!(error(json!(4), &[1; 4], Some(5)).contains("the body has only"));
    assert!(error(json!(4), &[1; 4], None).contains("not valid"));
}

#[test]
fn a_raw_binary_request_is_left_to_the_model() {
    let request = parse_infer("m", "", &Bytes::from_static(b"\x01\x02"), Some(0)).unwrap();
    assert_eq!(request.raw_input.as_deref(), Some(&[1u8, 2][..]));
    assert!(request.binary_outputs && request.inputs.is_empty());
}

#[test]
fn the_output_flag_beats_the_one_of_the_request() {
    let output = |name: &str, flag| json!({"name": name, "parameters": {"binary_data": flag}});
    let request = parse(&json!({"inputs": [], "parameters": {"binary_data_output": true, "timeout": 5},
        "outputs": [output("a", false), {"name": "b"}]}))
    .unwrap();
    assert!(request.binary_outputs);
    assert_eq!((request.outputs[0].binary, request.outputs[1].binary), (Some(false), None));
    assert_eq!(request.parameters.get("timeout").and_then(|value| value.as_u64()), Some(5));
}

fn output(datatype: DataType, data: Vec<u8>, binary: bool) -> ResponseTensor {
    let form = if binary { OutputEncoding::Binary } else { OutputEncoding::Json };
    ResponseTensor { name: "y".into(), datatype, shape: vec![1, 2], data: Bytes::from(data), encoding: form }
}

fn encode(outputs: Vec<ResponseTensor>) -> Result<EncodedResponse, WireError> {
    encode_infer(&InferResponse { model: "m".into(), version: "1".into(), outputs, ..InferResponse::default() })
}

#[test]
fn responses_say_what_follows_the_json() {
    let floats = [1.5f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
    let mixed =
        encode(vec![output(DataType::Fp32, floats.clone(), false), output(DataType::Fp32, floats.clone(), true)]);
    let EncodedResponse { body, json_length } = mixed.unwrap();
    let (json, tail) = body.split_at(json_length.unwrap());
    assert_eq!(tail, floats);
    let json = String::from_utf8(json.to_vec()).unwrap();
    assert!(json.contains(r#""data":[1.5,NaN]"#), "{json}");
    let json: Value = serde_json::from_str(&json.replace("NaN", "null")).unwrap();
    assert!(json["outputs"][0].get("parameters").is_none());
    assert_eq!(json["outputs"][1]["parameters"], json!({"binary_data_size": 8}));
    assert!(json.get("id").is_none());
    assert_eq!(encode(vec![output(DataType::Fp32, vec![], false)]).unwrap().json_length, None);
}

#[test]
fn what_json_cannot_say_asks_for_binary() {
    let not_text = vec![1, 0, 0, 0, 0xff];
    let error = encode(vec![output(DataType::Bytes, not_text, false)]).unwrap_err().0;
    assert!(error.contains("element 0 is not UTF-8") && error.contains("{\"binary_data\": true}"), "{error}");
    assert!(encode(vec![output(DataType::Fp16, vec![0, 0], false)]).unwrap_err().0.contains("no JSON form"));
}

/// Generates the bytes of a tensor of `count` elements, without values that JSON cannot represent.
fn tensor_data() -> impl Strategy<Value = (DataType, usize, Vec<u8>)> {
    let json_types: Vec<DataType> =
        DataType::ALL.into_iter().filter(|datatype| !matches!(datatype, DataType::Fp16 | DataType::Bf16)).collect();
    (proptest::sample::select(json_types), proptest::collection::vec(any::<u64>(), 0..40)).prop_map(
        |(datatype, words)| {
            let element = |word: &u64| match datatype {
                DataType::Bool => vec![(*word & 1) as u8],
                DataType::Fp32 => {
                    let value = f32::from_bits(*word as u32);
                    (if value.is_finite() { value } else { 0.5 }).to_le_bytes().to_vec()
                }
                DataType::Fp64 => {
                    let value = f64::from_bits(*word);
                    (if value.is_finite() { value } else { 0.5 }).to_le_bytes().to_vec()
                }
                DataType::Bytes => {
                    let text: String =
                        format!("{word:x}\"\\\n\u{1}ä{}", char::from_u32((*word % 0xd800) as u32).unwrap());
                    [(text.len() as u32).to_le_bytes().as_slice(), text.as_bytes()].concat()
                }
                _ => word.to_le_bytes()[..datatype.size().unwrap()].to_vec(),
            };
            (datatype, words.len(), words.iter().flat_map(element).collect())
        },
    )
}

/// Sends a response back as a request, as a client would.
fn send_back(encoded: EncodedResponse) -> Result<InferRequest, WireError> {
    let text = String::from_utf8_lossy(&encoded.body[..encoded.json_length.unwrap_or(encoded.body.len())]).into_owned();
    let json = text.replacen("\"outputs\"", "\"inputs\"", 1).into_bytes();
    let length = encoded.json_length.map(|_| json.len());
    let tail = encoded.json_length.map_or(&[][..], |length| &encoded.body[length..]);
    parse_infer("m", "", &Bytes::from([json.as_slice(), tail].concat()), length)
}

proptest! {
    #[test]
    fn every_datatype_survives_json_and_binary((datatype, count, data) in tensor_data(), binary: bool) {
        let mut tensor = output(datatype, data.clone(), binary);
        tensor.shape = vec![count as i64];
        let request = send_back(encode(vec![tensor]).unwrap()).unwrap();
        prop_assert_eq!(request.inputs[0].data.as_ref(), data.as_slice());
        prop_assert_eq!(request.inputs[0].datatype, datatype);
    }

    #[test]
    fn half_precision_survives_binary(words in proptest::collection::vec(any::<u16>(), 0..20), brain: bool) {
        let datatype = if brain { DataType::Bf16 } else { DataType::Fp16 };
        let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut tensor = output(datatype, data.clone(), true);
        tensor.shape = vec![words.len() as i64];
        let request = send_back(encode(vec![tensor]).unwrap()).unwrap();
        prop_assert_eq!(request.inputs[0].data.as_ref(), data.as_slice());
    }

    #[test]
    fn no_bytes_make_the_parser_panic(body: Vec<u8>, length: Option<u8>) {
        let _ = parse_infer("m", "", &Bytes::from(body), length.map(usize::from));
    }

    #[test]
    fn no_damage_to_a_request_makes_the_parser_panic(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let body = br#"{"id":"1","inputs":[{"name":"x","shape":[1,2],"datatype":"BYTES","data":[["a\n","b"]]},{"name":"y",
            "shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}],"outputs":[{"name":"z"}]}ab"#;
        let mut damaged = body.to_vec();
        *at.get_mut(&mut damaged) = byte;
        damaged.truncate(cut.index(body.len()) + 1);
        let length = damaged.len().saturating_sub(2);
        let _ = parse_infer("m", "", &Bytes::from(damaged), Some(length));
    }

    #[test]
    fn no_data_text_makes_the_parser_panic(text in r#"[\[\]0-9eE.,"a\\ -]{0,40}"#, count in 0usize..9) {
        for datatype in DataType::ALL.into_iter() {
            let _ = data::parse("x", datatype, count, &text);
        }
    }
}
