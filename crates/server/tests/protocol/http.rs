//! Every HTTP path except inference.

use crate::scripted::{Scripted, Shelf};
use crate::support::{Running, config, run, scripted, send, start};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, StatusCode};
use ripieno_repository::registry::{ModelRegistry, ModelState};
use ripieno_server::ServerConfig;
use ripieno_wire::proto::inference::ServerReadyRequest;
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test]
async fn health_has_bodies_and_statuses() {
    let server = start().await;
    let live = server.get("/v2/health/live").await;
    assert_eq!((live.status, live.json()), (StatusCode::OK, json!({"live": true})));
    let ready = server.get("/v2/health/ready?test_1=1").await;
    assert_eq!((ready.status, ready.json()), (StatusCode::OK, json!({"ready": true})));
    server.registry.set("slow", "1", ModelState::Loading, "");
    let ready = server.get("/v2/health/ready").await;
    assert_eq!((ready.status, ready.json()), (StatusCode::OK, json!({"ready": true})), "a later load changes nothing");
    let starting = start().await;
    starting.registry.set("slow", "1", ModelState::Loading, "");
    let ready = starting.get("/v2/health/ready").await;
    assert_eq!((ready.status, ready.json()), (StatusCode::SERVICE_UNAVAILABLE, json!({"ready": false})));
    let model = server.get("/v2/models/slow/ready").await;
    assert_eq!(
        (model.status, model.json()),
        (StatusCode::SERVICE_UNAVAILABLE, json!({"name": "slow", "ready": false}))
    );
    let model = server.get("/v2/models/simple/versions/1/ready").await;
    assert_eq!((model.status, model.json()), (StatusCode::OK, json!({"name": "simple", "ready": true})));
    assert_eq!(server.get("/v2/models/missing/ready").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_model_without_its_process_is_not_ready_but_the_server_is() {
    let server = start().await;
    let model = server.get("/v2/models/down/ready").await;
    assert_eq!(
        (model.status, model.json()),
        (StatusCode::SERVICE_UNAVAILABLE, json!({"name": "down", "ready": false}))
    );
    assert_eq!(server.get("/v2/health/ready").await.status, StatusCode::OK);
}

#[tokio::test]
async fn one_broken_model_matters_only_if_asked_to() {
    assert_eq!(start().await.get("/v2/health/ready").await.status, StatusCode::OK);
    let strict = ripieno_server::ServerConfig { strict_readiness: true, ..config() };
    let server = scripted(strict).await.0;
    assert_eq!(server.get("/v2/health/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_server_without_a_model_is_live_but_not_ready() {
    let (backend, _events) = Scripted::new();
    let registry = Arc::new(ModelRegistry::new());
    let server = run(config(), backend, registry.clone(), Arc::new(Shelf(registry))).await;
    let metrics = server.addresses.metrics.unwrap();
    for url in [server.url("/v2/health/ready"), format!("http://{metrics}/v2/health/ready")] {
        let ready = send(Request::get(url).body(Full::default()).unwrap()).await;
        assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert!(!server.grpc().await.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    assert_eq!(server.get("/v2/health/live").await.status, StatusCode::OK);
    server.registry.set("bad", "1", ModelState::Unavailable, "no such file");
    assert_eq!(server.get("/v2/health/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn metadata_describes_server_and_model() {
    let server = start().await;
    let metadata = server.get("/v2").await.json();
    assert_eq!(metadata["name"], "ripieno");
    let extensions = [
        "binary_tensor_data",
        "classification",
        "generate",
        "model_configuration",
        "model_repository",
        "sequence",
        "statistics",
    ];
    assert_eq!(metadata["extensions"], json!(extensions));
    let model = server.get("/v2/models/simple").await.json();
    assert_eq!(
        model,
        json!({"name": "simple", "versions": ["1"], "platform": "emulated",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}]})
    );
    let named = ripieno_server::ServerConfig { server_name: "triton".into(), ..config() };
    assert_eq!(scripted(named).await.0.get("/v2").await.json()["name"], "triton");
}

#[tokio::test]
async fn configuration_and_statistics_have_every_field_that_clients_read() {
    let server = start().await;
    let config = server.get("/v2/models/identity_BYTES/config").await.json();
    assert_eq!((&config["max_batch_size"], &config["dynamic_batching"]), (&json!(8), &json!({})));
    assert!(config["parameters"]["slo_ms"]["string_value"].as_str().unwrap().parse::<f64>().unwrap() > 0.0);
    assert_eq!(config["input"][0]["data_type"], "TYPE_STRING");
    assert_eq!((&config["input"][0]["dims"], &config["output"][0]["name"]), (&json!([2]), &json!("y")));
    let all = server.get("/v2/models/stats").await.json();
    assert!(all["model_stats"].as_array().unwrap().len() > 20);
    let one = server.get("/v2/models/simple/versions/1/stats").await.json();
    let model = &one["model_stats"][0];
    assert_eq!((&model["name"], &model["version"]), (&json!("simple"), &json!("1")));
    for field in
        ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"]
    {
        assert_eq!(model["inference_stats"][field], json!({"count": 0, "ns": 0}), "{field}");
    }
    assert!(model["batch_stats"].is_array() && model["last_inference"].is_u64());
}

#[tokio::test]
async fn the_repository_index_load_and_unload_calls_work() {
    let server = start().await;
    let index = server.post("/v2/repository/index", &[], "").await.json();
    let broken = json!({"name": "broken", "version": "1", "state": "UNAVAILABLE",
        "reason": "model.onnx: not an ONNX file"});
    assert!(index.as_array().unwrap().contains(&broken));
    let ready = server.post("/v2/repository/main/index", &[], r#"{"ready":true}"#).await.json();
    assert!(ready.as_array().unwrap().iter().all(|row| row["state"] == "READY"));
    let load = r#"{"parameters":{"config":"{}"}}"#;
    assert_eq!(server.post("/v2/repository/models/late/load", &[], load).await.status, StatusCode::OK);
    assert_eq!(server.get("/v2/models/late/ready").await.status, StatusCode::OK);
    assert_eq!(server.post("/v2/repository/models/late/unload", &[], "").await.status, StatusCode::OK);
    let gone = server.get("/v2/models/late").await;
    assert_eq!(gone.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(gone.error(), "Request for unknown model: 'late' has no available versions: unloaded");
    let unknown = server.post("/v2/repository/models/missing/load", &[], "").await;
    assert_eq!((unknown.status, unknown.error().contains("no folder")), (StatusCode::BAD_REQUEST, true));
    let odd = server.post("/v2/repository/index", &[], "[").await;
    assert_eq!((odd.status, odd.error().contains("not valid")), (StatusCode::BAD_REQUEST, true));
}

/// Files are base64; an error names a parameter that is not base64 or not a string.
#[tokio::test]
async fn load_calls_may_bring_files_where_that_is_open() {
    let load = async |server: &Running, parameters: Value| {
        let body = json!({"parameters": parameters}).to_string();
        server.post("/v2/repository/models/late/load", &[], body).await
    };
    let server = start().await;
    let upload = json!({"config": "{}", "file:1/model.onnx": "AAAA"});
    assert_eq!(load(&server, upload.clone()).await.status, StatusCode::OK);
    assert_eq!(server.get("/v2/models/late/ready").await.status, StatusCode::OK);
    for (wrong, words) in [
        (json!({"file:1/model.onnx": "?"}), "file:1/model.onnx is not base64"),
        (json!({"file:1/model.onnx": 7}), "file:1/model.onnx is 7; it must be a string"),
        (json!({"config": true}), "config is true; it must be a string"),
        (json!({"config": "{}", "file:1/model.onnx": "AAAB"}), "failed to load"),
        (json!({"config": "{}", "file:1/model.onnx": "A".repeat(900_000)}), "failed to load"),
    ] {
        let refused = load(&server, wrong).await;
        assert!(refused.status == StatusCode::BAD_REQUEST && refused.error().contains(words), "{}", refused.error());
    }
    let closed = scripted(ServerConfig { load_overrides: 0, ..config() }).await.0;
    for parameters in [json!({"config": "{}"}), json!({"file:1/model.onnx": "AAAA"}), upload] {
        let refused = load(&closed, parameters).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
        assert!(refused.error().contains("--load-overrides"), "{}", refused.error());
    }
    let simple = closed.post("/v2/repository/models/simple/load", &[], r#"{"parameters":{"other":1}}"#).await;
    assert_eq!(simple.status, StatusCode::OK);
}

#[tokio::test]
async fn unknown_paths_and_methods_get_json_errors() {
    let server = start().await;
    let lost = server.get("/v2/modells/simple").await;
    assert_eq!((lost.status, lost.error().contains("'/v2/modells/simple'")), (StatusCode::NOT_FOUND, true));
    let unknown = server.get("/v2/models/missing").await;
    let message = "Request for unknown model: 'missing' is not found; models that serve: ";
    assert!(unknown.status == StatusCode::NOT_FOUND && unknown.error().starts_with(message), "{}", unknown.error());
    let version = server.get("/v2/models/simple/versions/7").await;
    assert!(version.error().contains("version 7 is not found; known versions: 1"));
    let get = server.get("/v2/models/simple/infer").await;
    assert_eq!((get.status, get.headers["allow"].to_str().unwrap()), (StatusCode::METHOD_NOT_ALLOWED, "POST"));
    assert_eq!(get.headers["content-type"], "application/json");
    let head = Request::builder().method(Method::HEAD).uri(server.url("/v2/health/live"));
    let head = send(head.body(Full::<Bytes>::default()).unwrap()).await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
}

#[tokio::test]
async fn a_port_in_use_is_named_with_the_way_out() {
    let server = start().await;
    let (backend, _events) = crate::scripted::Scripted::new();
    let taken = ServerConfig { http: server.addresses.http, ..config() };
    let repository = std::sync::Arc::new(crate::scripted::Shelf(server.registry.clone()));
    let error = ripieno_server::Server::bind(taken, backend, server.registry.clone(), repository).await.err().unwrap();
    let text = error.to_string();
    assert!(text.contains(&server.addresses.http.unwrap().to_string()) && text.contains("--http"), "{text}");
}
