//! Models that share no batch because their rows depend on each other: each answer is what the
//! request gets alone, and the configuration says why.

use crate::support::{Running, config, send, serving};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use ripieno_wire::proto::inference::ModelConfigRequest;
use serde_json::{Value, json};
use std::path::Path;

const CLIENTS: usize = 16;
/// The file leaves the width open but takes only 7, which the trial of its rows cannot know.
const MODEL: &str = "max_batch = 8\nlatency_ms = [5, 5, 5, 5, 5, 5, 5, 5]\nwarm_up = false\nslo_ms = 60000\n";

/// Returns a request of one row that differs by client.
fn request(client: usize) -> Value {
    let row: Vec<f64> = (0..7).map(|at| (client * 7 + at) as f64 / 16.0).collect();
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 7], "data": row}]})
}

/// Returns the answers to all requests, sent together.
async fn answers(server: &Running, requests: &[Value]) -> Vec<Value> {
    let url = server.url("/v2/models/centred/infer");
    let call = |request: &Value| {
        let request = Request::post(&url).body(Full::new(Bytes::from(request.to_string()))).unwrap();
        tokio::spawn(async { send(request).await.json()["outputs"][0]["data"].clone() })
    };
    let calls: Vec<_> = requests.iter().map(call).collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    answers
}

#[tokio::test]
async fn a_model_whose_rows_meet_answers_each_request_as_if_alone() {
    let folder = std::env::temp_dir().join(format!("ripieno-untried-{}", std::process::id()));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models/seven_wide_centred.onnx");
    std::fs::create_dir_all(folder.join("centred/1")).unwrap();
    std::fs::copy(file, folder.join("centred/1/model.onnx")).unwrap();
    std::fs::write(folder.join("centred/model.toml"), MODEL).unwrap();
    let (server, reports) = serving(config(), &folder).await;
    assert_eq!(reports[0].error, None);
    let mut alone = Vec::new();
    for client in 0..CLIENTS {
        let reply = server.infer("centred", &request(client)).await;
        assert_eq!(reply.status, 200, "{}", reply.json());
        alone.push(reply.json()["outputs"][0]["data"].clone());
    }
    let requests: Vec<Value> = (0..CLIENTS).map(request).collect();
    for _ in 0..5 {
        let together = answers(&server, &requests).await;
        assert_eq!(together, alone, "beside others each request is answered as it is alone");
    }
    let body = server.get("/v2/models/centred/config").await.json();
    let why = body["parameters"]["unbatched"]["string_value"].as_str().unwrap().to_owned();
    assert!(why.contains("(ReduceMean 'mean': it combines the rows") && why.contains("batching = \"trust\""), "{why}");
    assert_eq!((&body["max_batch_size"], &body["dynamic_batching"]), (&json!(0), &Value::Null));
    let request = ModelConfigRequest { name: "centred".to_owned(), version: String::new() };
    let same = server.grpc().await.model_config(request).await.unwrap().into_inner().config.unwrap();
    assert_eq!(same.parameters["unbatched"].string_value, why);
    std::fs::remove_dir_all(folder).unwrap();
}
