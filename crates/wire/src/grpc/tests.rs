use super::*;
use crate::{OutputEncoding, ResponseTensor, proto::inference::InferTensorContents};
use proptest::prelude::*;
use ripieno_model::DataType;

fn request(datatype: &str, shape: &[i64], contents: Option<InferTensorContents>, raw: &[&[u8]]) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "x".into(),
        datatype: datatype.into(),
        shape: shape.to_vec(),
        contents,
        ..InferInputTensor::default()
    };
    let raw_input_contents = raw.iter().map(|data| Bytes::copy_from_slice(data)).collect();
    ModelInferRequest { model_name: "m".into(), inputs: vec![input], raw_input_contents, ..Default::default() }
}

fn data_of(datatype: &str, shape: &[i64], contents: InferTensorContents) -> Result<Vec<u8>, String> {
    let request = parse_infer(request(datatype, shape, Some(contents), &[])).map_err(|error| error.0)?;
    Ok(request.inputs[0].data.to_vec())
}

#[test]
fn typed_contents_become_bytes() {
    let ints = || InferTensorContents { int_contents: vec![-1, 2], ..Default::default() };
    assert_eq!(data_of("INT8", &[2], ints()).unwrap(), [255, 2]);
    assert_eq!(data_of("INT16", &[2], ints()).unwrap(), [255, 255, 2, 0]);
    assert_eq!(data_of("INT32", &[2, 1], ints()).unwrap(), [255, 255, 255, 255, 2, 0, 0, 0]);
    let texts = InferTensorContents { bytes_contents: vec![Bytes::from("a"), Bytes::new()], ..Default::default() };
    assert_eq!(data_of("BYTES", &[2], texts).unwrap(), [1, 0, 0, 0, b'a', 0, 0, 0, 0]);
    let flags = InferTensorContents { bool_contents: vec![true, false], ..Default::default() };
    assert_eq!(data_of("BOOL", &[2], flags).unwrap(), [1, 0]);
}

#[test]
fn typed_contents_are_checked() {
    let wide = InferTensorContents { uint_contents: vec![1, 300], ..Default::default() };
    assert_eq!(
        data_of("UINT8", &[2], wide.clone()).unwrap_err(),
        "input 'x': element 1 is 300, which is out of the range of UINT8"
    );
    assert!(data_of("UINT16", &[3], wide.clone()).unwrap_err().contains("expected 3 elements in uint_contents"));
    assert!(data_of("FP32", &[2], wide.clone()).unwrap_err().contains("in fp32_contents"));
    assert!(data_of("FP16", &[2], wide).unwrap_err().contains("use raw_input_contents"));
}

#[test]
fn raw_contents_are_all_or_none() {
    let parse = |request| parse_infer(request).map_err(|error| error.0);
    assert_eq!(parse(request("BF16", &[2], None, &[&[1, 2, 3, 4]])).unwrap().inputs[0].data.as_ref(), [1, 2, 3, 4]);
    assert!(
        parse(request("FP32", &[1], None, &[&[0; 4], &[0; 4]])).unwrap_err().contains("2 raw_input_contents for 1")
    );
    assert!(parse(request("FP32", &[1], None, &[&[0; 3]])).unwrap_err().contains("expected 4 bytes"));
    let both = request("FP32", &[1], Some(InferTensorContents::default()), &[&[0; 4]]);
    assert!(parse(both).unwrap_err().contains("beside raw_input_contents"));
    let mut twice = request("FP32", &[0], None, &[]);
    twice.inputs.push(twice.inputs[0].clone());
    assert!(parse(twice).unwrap_err().contains("'x' is given twice"));
}

#[test]
fn responses_go_raw() {
    let data = Bytes::from_static(&[1, 2, 3, 4]);
    let output = ResponseTensor {
        name: "y".into(),
        datatype: DataType::Fp32,
        shape: vec![1],
        data: data.clone(),
        encoding: OutputEncoding::Binary,
    };
    let mut response = InferResponse { model: "m".into(), id: "7".into(), outputs: vec![output], ..Default::default() };
    response.parameters.0.insert("triton_final_response".into(), Parameter::Bool(true));
    let message = encode_infer(response);
    assert_eq!((message.outputs[0].datatype.as_str(), message.id.as_str()), ("FP32", "7"));
    assert_eq!(message.raw_output_contents, [data]);
    assert_eq!(message.parameters["triton_final_response"], parameter(Parameter::Bool(true)));
}

#[test]
fn messages_have_the_numbers_of_the_protocol() {
    let message =
        ModelInferRequest { id: "a".into(), raw_input_contents: vec![Bytes::from("b")], ..Default::default() };
    assert_eq!(message.encode_to_vec(), [3 << 3 | 2, 1, b'a', 7 << 3 | 2, 1, b'b']);
}

proptest! {
    #[test]
    fn no_message_makes_the_parser_panic(bytes: Vec<u8>) {
        if let Ok(message) = ModelInferRequest::decode(bytes.as_slice()) {
            let _ = parse_infer(message);
        }
    }

    #[test]
    fn raw_and_typed_agree(values in proptest::collection::vec(any::<f32>(), 0..20)) {
        let shape = [values.len() as i64];
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let typed = InferTensorContents { fp32_contents: values, ..Default::default() };
        prop_assert_eq!(data_of("FP32", &shape, typed).unwrap(), raw);
    }
}
