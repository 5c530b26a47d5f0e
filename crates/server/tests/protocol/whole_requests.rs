//! Unbatched models, from their files to every protocol: a request has the shapes of the file.

use crate::support::{Running, config, serving};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use ripieno_wire::proto::inference::model_infer_request::InferInputTensor;
use ripieno_wire::proto::inference::{ModelConfigRequest, ModelInferRequest, ModelMetadataRequest};
use serde_json::{Value, json};
use std::path::Path;
use tonic::Code;

const FILES: [&str; 3] = ["two_rows", "scalars", "softmax_of_batch"];

/// Builds a repository of these files.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in FILES {
        let file = format!("{name}.onnx");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models").join(&file);
        std::fs::copy(from, folder.path().join(&file)).unwrap();
        std::fs::write(folder.path().join(format!("{name}.toml")), "slo_ms = 60000\n").unwrap();
    }
    folder
}

fn body(inputs: &[(&str, Value, Value)]) -> Value {
    let input = |(name, shape, data): &(&str, Value, Value)| json!({"name": name, "shape": shape, "datatype": "FP32", "data": data});
    json!({"inputs": inputs.iter().map(input).collect::<Vec<_>>()})
}

fn softmax(numbers: [f64; 2]) -> f64 {
    numbers[0].exp() / (numbers[0].exp() + numbers[1].exp())
}

#[tokio::test]
async fn shapes_are_those_of_the_file_on_every_protocol() {
    let folder = folder();
    let (server, reports) = serving(config(), folder.path()).await;
    assert!(reports.iter().all(|report| report.error.is_none() && report.unbatched.is_some()), "{reports:?}");
    let metadata = server.get("/v2/models/two_rows").await.json();
    assert_eq!((&metadata["inputs"][0]["shape"], &metadata["outputs"][0]["shape"]), (&json!([2, 3]), &json!([2, 3])));
    assert_eq!(server.get("/v2/models/scalars").await.json()["inputs"][0]["shape"], json!([]));
    assert_eq!(server.get("/v2/models/softmax_of_batch").await.json()["inputs"][0]["shape"], json!([-1]));
    let config = server.get("/v2/models/two_rows/config").await.json();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(0), &json!([2, 3])));
    assert!(config.get("dynamic_batching").is_none());

    let reply = server.infer("two_rows", &body(&[("x", json!([2, 3]), json!([1, 2, 3, 4, 4, 4]))])).await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    let output = &reply.json()["outputs"][0];
    assert_eq!(output["shape"], json!([2, 3]));
    assert!((output["data"][0].as_f64().unwrap() - softmax([1.0, 4.0])).abs() < 1e-5);
    for shape in [json!([4, 3]), json!([1, 2, 3]), json!([3])] {
        let elements: i64 = shape.as_array().unwrap().iter().map(|size| size.as_i64().unwrap()).product();
        let refused = server.infer("two_rows", &body(&[("x", shape, json!(vec![0; elements as usize]))])).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.error().contains("must have shape [2, 3], got"), "{}", refused.error());
        assert!(refused.error().contains("takes no batches"), "{}", refused.error());
    }

    let scalars = body(&[("a", json!([]), json!([3])), ("b", json!([]), json!([0.5]))]);
    let reply = server.infer("scalars", &scalars).await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    assert_eq!(
        (&reply.json()["outputs"][0]["shape"], &reply.json()["outputs"][0]["data"]),
        (&json!([]), &json!([1.5]))
    );

    // All of [n] is one request, independent of concurrent ones.
    for numbers in [[0.0, 1.0], [5.0, 2.0]] {
        let reply = server.infer("softmax_of_batch", &body(&[("x", json!([2]), json!(numbers))])).await.json();
        assert_eq!(reply["outputs"][0]["shape"], json!([2]));
        assert!((reply["outputs"][0]["data"][0].as_f64().unwrap() - softmax(numbers)).abs() < 1e-5);
    }
    binary(&server).await;
    grpc(&server).await;
}

async fn binary(server: &Running) {
    let numbers: Vec<u8> = [1f32, 2.0, 3.0, 4.0, 4.0, 4.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let head =
        json!({"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}]})
            .to_string();
    let post = |length: usize, body: Vec<u8>| {
        let request =
            Request::post(server.url("/v2/models/two_rows/infer")).header("Inference-Header-Content-Length", length);
        crate::support::send(request.body(Full::new(Bytes::from(body))).unwrap())
    };
    let reply = post(head.len(), [head.as_bytes(), &numbers].concat()).await;
    assert_eq!((reply.status, &reply.json()["outputs"][0]["shape"]), (StatusCode::OK, &json!([2, 3])));
    // Without a JSON head, the body is the only input.
    let raw = post(0, numbers).await;
    assert_eq!(raw.status, StatusCode::OK, "{:?}", raw.body);
    let short = post(0, vec![0; 12]).await;
    assert_eq!(short.status, StatusCode::BAD_REQUEST);
    assert!(short.error().contains("shape [2, 3]"), "{}", short.error());
}

async fn grpc(server: &Running) {
    let mut client = server.grpc().await;
    let request = ModelMetadataRequest { name: "two_rows".into(), version: String::new() };
    assert_eq!(client.model_metadata(request).await.unwrap().into_inner().inputs[0].shape, [2, 3]);
    let request = ModelConfigRequest { name: "two_rows".into(), version: String::new() };
    let config = client.model_config(request).await.unwrap().into_inner().config.unwrap();
    assert_eq!((config.max_batch_size, config.scheduling_choice.is_none()), (0, true));
    let infer = |shape: &[i64]| {
        let elements = shape.iter().product::<i64>() as usize;
        ModelInferRequest {
            model_name: "two_rows".into(),
            inputs: vec![InferInputTensor {
                name: "x".into(),
                datatype: "FP32".into(),
                shape: shape.to_vec(),
                ..Default::default()
            }],
            raw_input_contents: vec![Bytes::from(1f32.to_le_bytes().repeat(elements))],
            ..Default::default()
        }
    };
    let answer = client.model_infer(infer(&[2, 3])).await.unwrap().into_inner();
    assert_eq!(answer.outputs[0].shape, [2, 3]);
    assert_eq!(answer.raw_output_contents[0], 0.5f32.to_le_bytes().repeat(6));
    let refused = client.model_infer(infer(&[4, 3])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("must have shape [2, 3], got [4, 3]"), "{}", refused.message());
}
