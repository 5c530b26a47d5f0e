//! Headers of gateways, trace context, and Triton's statuses.

use crate::grpc::infer_request;
use crate::scripted::Event;
use crate::support::{config, scripted, start};
use hyper::StatusCode;
use ripieno_server::{ErrorProfile, ServerConfig};
use ripieno_wire::proto::inference::{RepositoryModelUnloadRequest, ServerLiveRequest};
use serde_json::{Value, json};
use std::time::Duration;
use tonic::{Code, Request};

const SLO: &str = "x-llm-d-slo-ttft-ms";
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn body(parameters: Value) -> String {
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]});
    json!({"inputs": [input], "parameters": parameters}).to_string()
}

#[tokio::test]
async fn the_header_of_a_gateway_tightens_the_deadline() {
    let (server, _backend, mut events) = scripted(config()).await;
    let path = "/v2/models/timed/infer";
    for (own_us, slo_ms, expected) in [(9_000_000, "800", 800), (500_000, "800", 500), (0, "1500.0", 1500)] {
        let reply = server.post(path, &[(SLO, slo_ms)], body(json!({"timeout": own_us}))).await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(events.recv().await, Some(Event::Timeout(Some(Duration::from_millis(expected)))));
    }
    let odd = server.post(path, &[(SLO, "soon")], body(json!({}))).await;
    assert_eq!(odd.status, StatusCode::BAD_REQUEST);
    let mut client = server.grpc().await;
    let mut call = Request::new(infer_request("timed", ""));
    call.metadata_mut().insert(SLO, "700".parse().unwrap());
    client.model_infer(call).await.unwrap();
    assert_eq!(events.recv().await, Some(Event::Timeout(Some(Duration::from_millis(700)))));
}

#[tokio::test]
async fn a_trace_goes_back_with_every_answer() {
    let server = start().await;
    for path in ["/v2/models/simple/infer", "/v2/models/missing/infer"] {
        let reply = server.post(path, &[("traceparent", TRACE)], body(json!({}))).await;
        assert_eq!(reply.headers["traceparent"], TRACE);
        let reply = server.post(path, &[("traceparent", "00-made-up")], body(json!({}))).await;
        assert!(!reply.headers.contains_key("traceparent"));
    }
    let mut client = server.grpc().await;
    let with_trace =
        |metadata: &mut tonic::metadata::MetadataMap| metadata.insert("traceparent", TRACE.parse().unwrap());
    let mut call = Request::new(infer_request("simple", ""));
    with_trace(call.metadata_mut());
    assert_eq!(client.model_infer(call).await.unwrap().metadata().get("traceparent").unwrap(), TRACE);
    let mut call = Request::new(ServerLiveRequest {});
    with_trace(call.metadata_mut());
    assert_eq!(client.server_live(call).await.unwrap().metadata().get("traceparent").unwrap(), TRACE);
}

#[tokio::test]
async fn tritons_clients_get_tritons_statuses_where_they_are_asked_for() {
    let ours = start().await;
    let theirs = scripted(ServerConfig { error_profile: ErrorProfile::Triton, ..config() }).await.0;
    let cases = [("expired", 504, 503, Code::Unavailable), ("full", 429, 503, Code::Unavailable)];
    for (model, own, triton, code) in cases {
        let path = format!("/v2/models/{model}/infer");
        assert_eq!(ours.post(&path, &[], body(json!({}))).await.status.as_u16(), own);
        let reply = theirs.post(&path, &[], body(json!({}))).await;
        assert_eq!(reply.status.as_u16(), triton, "{}", reply.error());
        let error = theirs.grpc().await.model_infer(infer_request(model, "")).await.unwrap_err();
        assert_eq!(error.code(), code);
    }
    let large = vec![b' '; 2 << 20];
    assert_eq!(theirs.post("/v2/models/simple/infer", &[], large).await.status, StatusCode::BAD_REQUEST);
    let unload = "/v2/repository/models/missing/unload";
    assert_eq!(ours.post(unload, &[], "").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(theirs.post(unload, &[], "").await.status, StatusCode::OK);
    let unload = RepositoryModelUnloadRequest { model_name: "missing".into(), ..Default::default() };
    assert!(theirs.grpc().await.repository_model_unload(unload.clone()).await.is_ok());
    assert_eq!(ours.grpc().await.repository_model_unload(unload).await.unwrap_err().code(), Code::InvalidArgument);
}
