use super::*;
use ripieno_base::{ModelId, Nanos};
use ripieno_repository::slo::{Slo, SloOrigin};
use ripieno_repository::stats::ServedStatistics;
use ripieno_wire::{RequestedOutput, json};
use serde_json::{Value, json};

fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }
}

fn entry(inputs: Vec<TensorSpec>) -> ServedEntry {
    ServedEntry {
        name: "m".into(),
        version: "1".into(),
        id: Some(ModelId(0)),
        platform: "emulated".into(),
        inputs,
        optional: vec![spec("scale", DataType::Fp32, &[1]), spec("seed", DataType::Int64, &[])],
        outputs: vec![spec("y", DataType::Fp32, &[-1, 2]), spec("z", DataType::Int64, &[-1])],
        batched: true,
        unbatched: None,
        max_batch: 8,
        streams: false,
        lengths: None,
        labels: Default::default(),
        text: None,
        no_text: None,
        slo: Slo { span: Nanos::from_millis(10), origin: SloOrigin::Owner, answer_late: false },
        one_row: None,
        ensemble: None,
        edge: Default::default(),
        stats: ServedStatistics::default(),
    }
}

fn two_inputs() -> ServedEntry {
    entry(vec![spec("a", DataType::Fp32, &[-1, 2]), spec("b", DataType::Int8, &[-1, -1])])
}

fn request(body: &Value) -> InferRequest {
    json::parse_infer("m", "", &Bytes::from(body.to_string()), None).unwrap()
}

fn a(rows: usize) -> Value {
    json!({"name": "a", "shape": [rows, 2], "datatype": "FP32", "data": vec![0; rows * 2]})
}

fn b(rows: usize) -> Value {
    json!({"name": "b", "shape": [rows, 3], "datatype": "INT8", "data": vec![1; rows * 3]})
}

fn refusal(body: Value) -> String {
    check(&two_inputs(), request(&body)).unwrap_err().message
}

#[test]
fn inputs_come_out_in_the_order_of_the_model() {
    let checked = check(&two_inputs(), request(&json!({"inputs": [b(3), a(3)]}))).unwrap();
    let names: Vec<&str> = checked.inputs.iter().map(|input| &*input.name).collect();
    assert_eq!((names, checked.rows, checked.timeout), (vec!["a", "b"], 3, None));
    assert_eq!(
        checked.outputs,
        [0, 1].map(|index| OutputSelection { index, encoding: OutputEncoding::Json, classes: None })
    );
}

#[test]
fn refusals_name_tensor_wanted_got_and_fix() {
    let with = |key: &str, value: Value| {
        let mut input = a(1);
        input[key] = value;
        refusal(json!({"inputs": [input, b(1)]}))
    };
    assert_eq!(with("datatype", json!("UINT64")), "input 'a' of model 'm' must be FP32, got UINT64; convert it first");
    assert_eq!(
        with("shape", json!([2])),
        "input 'a' of model 'm' must have shape [-1, 2], got [2]; the first dimension is the batch and at least 1; send one row as [1, 2]"
    );
    assert!(with("shape", json!([2, 1])).contains("got [2, 1]"));
    assert!(refusal(json!({"inputs": [a(0), b(0)]})).contains("got [0, 2]"));
    assert!(refusal(json!({"inputs": [a(1)]})).contains("input 'b' of model 'm' is missing; it needs 'a', 'b'"));
    assert!(with("name", json!("c")).contains(
        "unexpected inference input 'c' for model 'm'; its inputs are 'a', 'b', and with defaults 'scale', 'seed'"
    ));
    assert!(refusal(json!({"inputs": [a(1), b(2)]})).contains("'a' has 1, 'b' has 2"));
}

#[test]
fn a_tensor_without_elements_has_bounded_sizes() {
    for (shape, bounded) in [(&[1, 0, 4][..], true), (&[1, 1 << 40, 4], true), (&[1, 0, 1 << 40], false)] {
        assert_eq!(super::is_bounded(shape), bounded, "{shape:?}");
    }
    assert!(!super::is_bounded(&[0, i64::MAX, i64::MAX]));
}

#[test]
fn parameters_are_understood_or_refused() {
    let with =
        |parameters: Value| check(&two_inputs(), request(&json!({"inputs": [a(1), b(1)], "parameters": parameters})));
    assert_eq!(with(json!({"timeout": 250})).unwrap().timeout, Some(Duration::from_micros(250)));
    assert_eq!(with(json!({"timeout": 0, "priority": 1, "mine": "x"})).unwrap().timeout, None);
    assert_eq!(with(json!({"sequence_id": 0, "sequence_start": false, "sequence_end": false})).unwrap().rows, 1);
    for reserved in ["sequence_start", "sequence_end", "triton_final_response", "headers"] {
        assert!(with(json!({reserved: true})).unwrap_err().message.contains(reserved), "{reserved}");
    }
    assert_eq!(with(json!({"triton_enable_empty_final_response": true, "my_own": "x"})).unwrap().rows, 1);
    assert!(with(json!({"timeout": -1})).unwrap_err().message.contains("timeout is -1"));
    assert!(with(json!({"sequence_id": 4})).unwrap_err().message.contains("keeps no state"));
    assert!(with(json!({"sequence_id": "s"})).unwrap_err().message.contains("keeps no state"));
}

#[test]
fn priorities_count_from_the_most_urgent() {
    let of = |entry: &ServedEntry, parameters: Value| {
        check(entry, request(&json!({"inputs": [a(1), b(1)], "parameters": parameters}))).map(|ok| ok.priority)
    };
    let mut entry = two_inputs();
    let levels = [0, 1, 2, 5, 9, 1000].map(|level| of(&entry, json!({"priority": level})).unwrap());
    assert_eq!((levels, of(&entry, json!({})).unwrap()), ([5, 9, 8, 5, 1, 5], 5));
    // Two levels, as in the model's file: a request without a level is not behind those with the
    // last one.
    entry.edge.levels = Levels::new(2, 1).unwrap();
    let levels = [0, 1, 2, 3].map(|level| of(&entry, json!({"priority": level})).unwrap());
    assert_eq!((levels, of(&entry, json!({})).unwrap()), ([9, 9, 8, 9], 9));
    assert!(
        of(&entry, json!({"priority": "high"})).unwrap_err().message.contains("a whole number from 1, the most urgent")
    );
}

#[test]
fn outputs_are_chosen_by_name() {
    let with = |outputs: Value| check(&two_inputs(), request(&json!({"inputs": [a(1), b(1)], "outputs": outputs})));
    let binary = json!([{"name": "z", "parameters": {"binary_data": true}}, {"name": "y"}]);
    let wanted = [(1, OutputEncoding::Binary), (0, OutputEncoding::Json)].map(|(index, form)| OutputSelection {
        index,
        encoding: form,
        classes: None,
    });
    assert_eq!(with(binary).unwrap().outputs, wanted);
    let unknown = with(json!([{"name": "x"}])).unwrap_err().message;
    assert!(unknown.contains("unexpected inference output 'x' for model 'm'; its outputs are 'y', 'z'"));
    let classes = |count: Value| with(json!([{"name": "y", "parameters": {"classification": count}}]));
    assert_eq!(
        classes(json!(3)).unwrap().outputs,
        [OutputSelection { index: 0, encoding: OutputEncoding::Json, classes: Some(3) }]
    );
    assert_eq!(classes(json!(0)).unwrap().outputs[0].classes, None);
    for odd in [json!(-1), json!("3"), json!(1.5)] {
        assert!(classes(odd).unwrap_err().message.contains("it must be a number of classes"));
    }
    let place = json!({"classification": 1, "shared_memory_region": "r", "shared_memory_byte_size": 1});
    let both = with(json!([{"name": "y", "parameters": place}])).unwrap_err().message;
    assert!(both.contains("leave the region or the classification out"));
    assert_eq!(RequestedOutput::default().binary, None);
}

fn raw(spec: TensorSpec, bytes: &'static [u8]) -> Result<(Vec<i64>, Bytes), String> {
    let request = json::parse_infer("m", "", &Bytes::from_static(bytes), Some(0)).unwrap();
    let checked = check(&entry(vec![spec]), request).map_err(|problem| problem.message)?;
    Ok((checked.inputs[0].shape.clone(), checked.inputs[0].data.clone()))
}

#[test]
fn a_raw_binary_request_is_one_row() {
    let shape = |datatype, shape: &[i64], bytes| raw(spec("a", datatype, shape), bytes).map(|(shape, _)| shape);
    assert_eq!(shape(DataType::Fp32, &[-1, 2], &[0; 8]), Ok(vec![1, 2]));
    assert_eq!(shape(DataType::Int16, &[-1, 2, -1], &[0; 12]), Ok(vec![1, 2, 3]));
    assert!(shape(DataType::Fp32, &[-1, 2], &[0; 9]).unwrap_err().contains("9 bytes does not fit one row"));
    assert!(shape(DataType::Int16, &[-1, 2, -1], &[0; 9]).is_err());
    assert!(shape(DataType::Int8, &[-1, -1, -1], &[0; 9]).is_err());
    assert!(shape(DataType::Int8, &[-1, -1], &[]).is_err());
    let (shape, data) = raw(spec("a", DataType::Bytes, &[-1, 1]), b"hi").unwrap();
    assert_eq!((shape, data.as_ref()), (vec![1, 1], &[2, 0, 0, 0, b'h', b'i'][..]));
    let two = check(&two_inputs(), InferRequest { raw_input: Some(Bytes::new()), ..InferRequest::default() });
    assert!(two.unwrap_err().message.contains("needs a model of one input; 'm' has 2"));
}

#[test]
fn a_request_may_replace_a_default_for_all_its_rows() {
    let whole = |name: &str, datatype: &str, shape: Value, data: Value| json!({"name": name, "datatype": datatype, "shape": shape, "data": data});
    let scale = || whole("scale", "FP32", json!([1]), json!([2.0]));
    let seed = || whole("seed", "INT64", json!([]), json!([7]));
    for given in [vec![scale()], vec![seed(), scale()], vec![]] {
        let inputs: Vec<Value> = given.iter().cloned().chain([b(2), a(2)]).collect();
        let checked = check(&two_inputs(), request(&json!({ "inputs": inputs }))).unwrap();
        let shapes: Vec<(&str, &[i64])> = checked.inputs.iter().map(|input| (&*input.name, &input.shape[..])).collect();
        let expected: [(&str, &[i64]); 4] = [("a", &[2, 2]), ("b", shapes[1].1), ("scale", &[1, 1]), ("seed", &[1])];
        let expected = expected
            .into_iter()
            .filter(|(name, _)| ["a", "b"].contains(name) || given.iter().any(|one| one["name"] == *name));
        assert_eq!((shapes.clone(), checked.rows), (expected.collect(), 2));
    }
    let with = |other: Value, rows: usize| refusal(json!({"inputs": [a(rows), b(rows), other]}));
    assert!(with(whole("scale", "FP32", json!([1, 1]), json!([2.0])), 1).contains("must have shape [1], got [1, 1]"));
    assert!(with(whole("seed", "INT32", json!([]), json!([2])), 1).contains("must be INT64, got INT32"));
    assert!(with(scale(), 9).contains("runs as one batch, of at most 8 rows; it has 9"));
}
