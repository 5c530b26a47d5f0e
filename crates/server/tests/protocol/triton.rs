//! Server features that a `config.pbtxt` enables, as clients see them.

use crate::support::{Running, config, serving};
use hyper::StatusCode;
use ripieno_wire::proto::inference::infer_parameter::ParameterChoice;
use ripieno_wire::proto::inference::model_infer_request::InferInputTensor;
use ripieno_wire::proto::inference::{InferParameter, ModelInferRequest};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Starts a server for models with a name, a file of the executor's tests and a configuration each.
async fn serve(models: &[(&str, &str, &str)]) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models");
    for (name, file, text) in models {
        fs::create_dir_all(folder.path().join(name).join("1")).unwrap();
        fs::copy(files.join(file), folder.path().join(name).join("1/model.onnx")).unwrap();
        // An SLO that a busy test machine does not miss.
        let slo = "parameters { key: \"slo_ms\" value { string_value: \"60000\" } }";
        fs::write(folder.path().join(name).join("config.pbtxt"), format!("{text}\n{slo}\n")).unwrap();
    }
    let (server, reports) = serving(config(), folder.path()).await;
    assert!(reports.iter().all(|report| report.error.is_none()), "{reports:?}");
    (server, folder)
}

fn numbers(shape: &[i64]) -> Value {
    let data: Vec<f32> = (0..shape.iter().product::<i64>()).map(|at| at as f32 / 4.0).collect();
    json!({"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": data}]})
}

const RESHAPED: &str = "max_batch_size: 8
    input { name: \"x\" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } }
    output { name: \"y\" data_type: TYPE_FP32 dims: [ 1, 3, 1 ] reshape { shape: [ 3 ] } }";

#[tokio::test]
async fn clients_see_the_dims_and_the_model_its_own_shape() {
    let (server, _folder) =
        serve(&[("plain", "mlp.onnx", "max_batch_size: 8"), ("reshaped", "mlp.onnx", RESHAPED)]).await;
    let expected = server.infer("plain", &numbers(&[3, 4])).await.json()["outputs"][0]["data"].clone();
    let reply = server.infer("reshaped", &numbers(&[3, 2, 2])).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.json());
    let output = reply.json()["outputs"][0].clone();
    assert_eq!((&output["shape"], &output["data"]), (&json!([3, 1, 3, 1]), &expected));
    let metadata = server.get("/v2/models/reshaped").await.json();
    assert_eq!(
        (&metadata["inputs"][0]["shape"], &metadata["outputs"][0]["shape"]),
        (&json!([-1, 2, 2]), &json!([-1, 1, 3, 1]))
    );
    let described = server.get("/v2/models/reshaped/config").await.json();
    assert_eq!(
        (&described["input"][0]["dims"], &described["input"][0]["reshape"]),
        (&json!([2, 2]), &json!({"shape": [4]}))
    );
    let refused = server.infer("reshaped", &numbers(&[3, 4])).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.error().contains("must have shape [-1, 2, 2], got [3, 4]"), "{}", refused.error());
}

#[tokio::test]
async fn a_step_of_an_ensemble_takes_what_clients_of_its_model_send() {
    let ensemble = "platform: \"ensemble\" max_batch_size: 8
        input { name: \"x\" data_type: TYPE_FP32 dims: [ 2, 2 ] }
        output { name: \"y\" data_type: TYPE_FP32 dims: [ 1, 3, 1 ] }
        ensemble_scheduling { step { model_name: \"reshaped\"
            input_map { key: \"x\" value: \"x\" } output_map { key: \"y\" value: \"y\" } } }";
    let (server, _folder) = serve(&[("reshaped", "mlp.onnx", RESHAPED), ("whole", "mlp.onnx", ensemble)]).await;
    let expected = server.infer("reshaped", &numbers(&[2, 2, 2])).await.json()["outputs"].clone();
    assert_eq!(server.infer("whole", &numbers(&[2, 2, 2])).await.json()["outputs"], expected);
}

const SUMS: &str = "max_batch_size: 8
    sequence_batching {
        control_input { name: \"start\" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
        control_input { name: \"id\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }
        state { input_name: \"past\" output_name: \"present\" data_type: TYPE_FP32 dims: [ 1 ] }
        max_sequence_idle_microseconds: 60000000 }";

fn part(number: f32, parameters: Value) -> Value {
    let x = json!({"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]});
    json!({"inputs": [x], "parameters": parameters})
}

#[tokio::test]
async fn a_sequence_takes_up_what_its_last_request_has_left() {
    let (server, _folder) = serve(&[("sums", "sequence.onnx", SUMS)]).await;
    let ask = async |number: f32, parameters: Value| {
        let reply = server.infer("sums", &part(number, parameters)).await.json();
        let named = |name: &str| {
            let outputs = reply["outputs"].as_array()?;
            outputs.iter().find(|output| output["name"] == *name)?["data"][0].as_f64()
        };
        assert!(named("present").is_none(), "states are not for clients: {reply}");
        (named("y"), named("started"), named("whose"))
    };
    let told = |y: f64, started: f64, whose: f64| (Some(y), Some(started), Some(whose));
    assert_eq!(ask(1.0, json!({"sequence_id": 7, "sequence_start": true})).await, told(1.0, 1.0, 7.0));
    assert_eq!(ask(10.0, json!({"sequence_id": 8, "sequence_start": true})).await, told(10.0, 1.0, 8.0));
    assert_eq!(ask(2.0, json!({"sequence_id": 7})).await, told(3.0, 0.0, 7.0));
    assert_eq!(ask(20.0, json!({"sequence_id": 8, "sequence_start": true})).await, told(20.0, 1.0, 8.0), "anew");
    assert_eq!(ask(4.0, json!({"sequence_id": 7, "sequence_end": true})).await, told(7.0, 0.0, 7.0));
    let refusals = [
        (json!({"sequence_id": 7}), "for sequence 7 to model 'sums' must specify the START flag"),
        (json!({}), "must specify a non-zero or non-empty correlation ID"),
        (json!({"sequence_id": 0, "sequence_start": true}), "must specify a non-zero or non-empty correlation ID"),
        (
            json!({"sequence_id": "a", "sequence_start": true}),
            "sequence_id is \"a\"; the model takes a number of INT64",
        ),
        (json!({"sequence_id": 9, "sequence_start": 1}), "sequence_start is 1; it must be true or false"),
    ];
    for (parameters, needle) in refusals {
        let refused = server.infer("sums", &part(1.0, parameters)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.error().contains(needle), "{}", refused.error());
    }
    let mut two = part(1.0, json!({"sequence_id": 8}));
    two["inputs"][0] = json!({"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]});
    let refused = server.infer("sums", &two).await;
    assert!(refused.error().contains("must specify batch-size 1"), "{}", refused.error());
    // A failed request left the sequence's state unchanged.
    assert_eq!(ask(1.0, json!({"sequence_id": 8})).await, told(21.0, 0.0, 8.0));
    let described = server.get("/v2/models/sums").await.json();
    let inputs: Vec<&Value> = described["inputs"].as_array().unwrap().iter().map(|input| &input["name"]).collect();
    assert_eq!(inputs, ["x"]);
    let config = server.get("/v2/models/sums/config").await.json();
    assert_eq!(config["sequence_batching"], json!({"max_sequence_idle_microseconds": 60_000_000}));
}

#[tokio::test]
async fn a_sequence_that_is_idle_for_too_long_is_forgotten() {
    let brief = SUMS.replace("60000000", "1");
    let (server, _folder) = serve(&[("sums", "sequence.onnx", &brief)]).await;
    let first = server.infer("sums", &part(1.0, json!({"sequence_id": "a", "sequence_start": true}))).await;
    assert_eq!(first.status, StatusCode::BAD_REQUEST, "the id is no number");
    let first = server.infer("sums", &part(1.0, json!({"sequence_id": 3, "sequence_start": true}))).await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.json());
    let next = server.infer("sums", &part(1.0, json!({"sequence_id": 3}))).await;
    assert!(next.error().contains("was idle for longer"), "{}", next.error());
}

/// All messages are sent before the first is answered.
#[tokio::test]
async fn messages_of_a_stream_have_their_turns_in_the_order_in_which_they_came() {
    let (server, _folder) = serve(&[("sums", "sequence.onnx", SUMS)]).await;
    let message = |at: u32| {
        let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
        let parameters = [
            ("sequence_id".to_owned(), parameter(ParameterChoice::Int64Param(i64::from(1 + at % 2)))),
            ("sequence_start".to_owned(), parameter(ParameterChoice::BoolParam(at < 2))),
            ("sequence_end".to_owned(), parameter(ParameterChoice::BoolParam(at >= 58))),
        ];
        let x = InferInputTensor { name: "x".into(), datatype: "FP32".into(), shape: vec![1, 1], ..Default::default() };
        ModelInferRequest {
            model_name: "sums".into(),
            id: at.to_string(),
            parameters: parameters.into_iter().collect(),
            inputs: vec![x],
            raw_input_contents: vec![(at as f32).to_le_bytes().to_vec().into()],
            ..Default::default()
        }
    };
    let messages: Vec<ModelInferRequest> = (0..60).map(message).collect();
    let mut client = server.grpc().await;
    let mut answers = client.model_stream_infer(tokio_stream::iter(messages)).await.unwrap().into_inner();
    let mut sums = std::collections::BTreeMap::new();
    while let Some(answer) = answers.message().await.unwrap() {
        assert_eq!(answer.error_message, "");
        let answer = answer.infer_response.unwrap();
        let at = answer.outputs.iter().position(|output| output.name == "y").unwrap();
        let sum = f32::from_le_bytes(answer.raw_output_contents[at].as_ref().try_into().unwrap());
        sums.insert(answer.id.parse::<u32>().unwrap(), sum);
    }
    let expected = (0..60).map(|at: u32| (at, (at % 2..=at).step_by(2).sum::<u32>() as f32)).collect();
    assert_eq!(sums, expected);
}
