//! Streamed responses: ModelStreamInfer and server-sent events.

use crate::grpc::infer_request;
use crate::memory::{small, until_free};
use crate::scripted::{Event, LARGE_STEPS};
use crate::support::{PATIENCE, Running, config, scripted, start};
use hyper::StatusCode;
use ripieno_server::ServerConfig;
use ripieno_wire::proto::inference::infer_parameter::ParameterChoice;
use ripieno_wire::proto::inference::model_infer_request::InferRequestedOutputTensor;
use ripieno_wire::proto::inference::*;
use serde_json::{Value, json};
use std::time::Duration;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

/// Returns every message in response to one request.
async fn stream(server: &Running, request: ModelInferRequest) -> Vec<ModelStreamInferResponse> {
    let (send, receive) = tokio::sync::mpsc::channel(1);
    send.send(request).await.unwrap();
    drop(send);
    let mut answers = server.grpc().await.model_stream_infer(ReceiverStream::new(receive)).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(message) = tokio::time::timeout(PATIENCE, answers.message()).await.unwrap().unwrap() {
        all.push(message);
    }
    all
}

fn is_final(response: &ModelInferResponse) -> bool {
    let choice = response.parameters["triton_final_response"].parameter_choice.clone();
    choice == Some(ParameterChoice::BoolParam(true))
}

/// Returns the values of each output by name.
fn values(response: &ModelInferResponse) -> Vec<(String, Vec<f32>)> {
    let outputs = response.outputs.iter().zip(&response.raw_output_contents);
    let read = |raw: &[u8]| raw.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    outputs.map(|(output, raw)| (output.name.clone(), read(raw))).collect()
}

#[tokio::test]
async fn a_grpc_stream_has_a_message_for_each_step_and_marks_the_last() {
    let server = start().await;
    let messages = stream(&server, infer_request("counting", "7")).await;
    let responses: Vec<_> = messages.into_iter().map(|message| message.infer_response.unwrap()).collect();
    assert_eq!(responses.iter().map(is_final).collect::<Vec<_>>(), [false, false, true]);
    assert!(responses.iter().all(|response| response.id == "7" && response.model_name == "counting"));
    let y = |value| ("y".to_owned(), vec![value]);
    // Outputs without steps come with the last one.
    let expected = [vec![y(0.0)], vec![y(1.0)], vec![y(2.0), ("z".to_owned(), vec![9.0])]];
    assert_eq!(responses.iter().map(values).collect::<Vec<_>>(), expected);
    let unary = server.grpc().await.model_infer(infer_request("counting", "")).await.unwrap().into_inner();
    assert_eq!(values(&unary), [("y".to_owned(), vec![0.0, 1.0, 2.0]), ("z".to_owned(), vec![9.0])]);
    let request = ModelConfigRequest { name: "counting".into(), version: String::new() };
    let config = server.grpc().await.model_config(request).await.unwrap().into_inner().config.unwrap();
    assert!(config.model_transaction_policy.unwrap().decoupled);
}

#[tokio::test]
async fn only_requested_outputs_are_streamed() {
    let server = start().await;
    let asking = |name: &str| {
        let output = InferRequestedOutputTensor { name: name.into(), ..Default::default() };
        ModelInferRequest { outputs: vec![output], ..infer_request("counting", "") }
    };
    let last = stream(&server, asking("z")).await;
    assert_eq!(last.len(), 1);
    assert_eq!(values(last[0].infer_response.as_ref().unwrap()), [("z".to_owned(), vec![9.0])]);
    let steps = stream(&server, asking("y")).await;
    assert_eq!(steps.len(), 3);
    assert_eq!(values(steps[2].infer_response.as_ref().unwrap()), [("y".to_owned(), vec![2.0])]);
}

#[tokio::test]
async fn a_failure_after_some_steps_is_the_last_message() {
    let server = start().await;
    let messages = stream(&server, infer_request("broken-off", "7")).await;
    let errors: Vec<_> = messages.iter().map(|message| message.error_message.as_str()).collect();
    assert_eq!(errors[..2], ["", ""]);
    assert!(errors.len() == 3 && errors[2].starts_with("Request timeout expired; model 'broken-off' had 100ms"));
    assert_eq!(messages[2].infer_response.as_ref().unwrap().id, "7");
}

#[tokio::test]
async fn a_client_that_does_not_keep_up_loses_its_request_and_nothing_grows() {
    let (server, _backend, mut events) = scripted(config()).await;
    let messages = stream(&server, infer_request("flooding", "")).await;
    let (failure, steps) = messages.split_last().unwrap();
    assert!(failure.error_message.contains("wait to be read"), "{}", failure.error_message);
    assert!((1..100_000).contains(&steps.len()), "{} steps came", steps.len());
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Withdrawn));
}

#[tokio::test]
async fn steps_that_come_together_are_all_streamed() {
    let server = start().await;
    let messages = stream(&server, infer_request("bursting", "")).await;
    assert!(messages.iter().all(|message| message.error_message.is_empty()), "{:?}", messages.last());
    assert_eq!(messages.len(), 4_000);
    let messages = stream(&server, infer_request("large-steps", "")).await;
    assert!(messages.iter().all(|message| message.error_message.is_empty()), "{:?}", messages.last());
    assert_eq!(messages.len(), LARGE_STEPS);
}

#[tokio::test]
async fn steps_that_wait_count_towards_the_memory_of_the_server() {
    let (server, ..) = scripted(small()).await;
    let messages = stream(&server, infer_request("large-steps", "")).await;
    let (failure, steps) = messages.split_last().unwrap();
    assert!(failure.error_message.contains("more do not fit"), "{}", failure.error_message);
    assert!((1..LARGE_STEPS).contains(&steps.len()), "{} steps came", steps.len());
    until_free(&server).await;
}

/// Returns the objects of a body of server-sent events.
fn events_of(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).unwrap();
    let blocks = text.strip_suffix("\n\n").unwrap().split("\n\n");
    blocks.map(|block| serde_json::from_str(block.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn server_sent_events_have_one_object_a_step() {
    let server = start().await;
    let body = json!({"id": "7", "x": [1, 2]}).to_string();
    let reply = server.post("/v2/models/counting/generate_stream", &[], body.clone()).await;
    assert_eq!((reply.status, &reply.headers["cache-control"]), (StatusCode::OK, &"no-cache".parse().unwrap()));
    assert!(reply.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let event = |y: f32, last: bool| json!({"model_name": "counting", "model_version": "1", "id": "7", "triton_final_response": last, "y": y});
    let mut last = event(2.0, true);
    last["z"] = json!(9.0);
    assert_eq!(events_of(&reply.body), [event(0.0, false), event(1.0, false), last]);
    let whole = server.post("/v2/models/counting/versions/1/generate", &[], body).await;
    let expected = json!({"model_name": "counting", "model_version": "1", "id": "7", "y": [0.0, 1.0, 2.0], "z": 9.0});
    assert_eq!((whole.status, whole.json()), (StatusCode::OK, expected));
    // A model without steps answers with one event.
    let single = server.post("/v2/models/simple/generate_stream", &[], r#"{"x":[1,2]}"#).await;
    let single = events_of(&single.body);
    assert_eq!((single.len(), &single[0]["y"]), (1, &json!([1.0, 2.0])));
}

#[tokio::test]
async fn failures_have_a_status_before_the_first_event_and_are_one_after_it() {
    let server = start().await;
    let post = |model: &'static str, body: &'static str| {
        let server = &server;
        async move { server.post(&format!("/v2/models/{model}/generate_stream"), &[], body).await }
    };
    let events = events_of(&post("broken-off", r#"{"x":[1,2]}"#).await.body);
    let error = events[2]["error"].as_str().unwrap();
    assert!(events.len() == 3 && error.starts_with("Request timeout expired; model 'broken-off' had 100ms"), "{error}");
    let cases = [
        ("missing", r#"{"x":[1,2]}"#, StatusCode::NOT_FOUND, "unknown model"),
        ("simple", r#"{"x":[1,2"#, StatusCode::BAD_REQUEST, "not valid"),
        ("simple", r#"{"x":[1,2,3]}"#, StatusCode::BAD_REQUEST, "must have shape [-1, 2], got [1, 3]"),
        ("simple", r#"{"w":[1,2]}"#, StatusCode::BAD_REQUEST, "key 'w' is no input of model 'simple'"),
        ("picky", r#"{"x":[1,2]}"#, StatusCode::BAD_REQUEST, "model 'picky': two roots"),
        ("crowded", r#"{"x":[1,2]}"#, StatusCode::TOO_MANY_REQUESTS, "3 of 4 nodes"),
        ("expired", r#"{"x":[1,2]}"#, StatusCode::GATEWAY_TIMEOUT, "expired"),
    ];
    for (model, body, status, text) in cases {
        let reply = post(model, body).await;
        assert_eq!(reply.status, status, "{model} {body}");
        assert!(reply.error().contains(text), "{model} {body}: {}", reply.error());
    }
}

#[tokio::test]
async fn a_reader_of_events_that_goes_away_withdraws_its_request() {
    let (server, _backend, mut events) = scripted(config()).await;
    let url = server.url("/v2/models/stuck/generate_stream");
    let call = tokio::spawn(async move {
        let body = http_body_util::Full::new(bytes::Bytes::from(r#"{"x":[1,2]}"#));
        crate::support::send(hyper::Request::post(url).body(body).unwrap()).await
    });
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    call.abort();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Withdrawn));
}

#[tokio::test]
async fn an_idle_stream_is_ended_and_one_that_waits_for_answers_is_not() {
    let hasty = ServerConfig { idle_timeout: Duration::from_millis(200), ..config() };
    let (server, backend, mut events) = scripted(hasty).await;
    let mut client = server.grpc().await;
    let (busy, receive) = tokio::sync::mpsc::channel(1);
    busy.send(infer_request("stuck", "7")).await.unwrap();
    let mut busy_answers = client.model_stream_infer(ReceiverStream::new(receive)).await.unwrap().into_inner();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    let (_idle, receive) = tokio::sync::mpsc::channel::<ModelInferRequest>(1);
    let mut idle_answers = client.model_stream_infer(ReceiverStream::new(receive)).await.unwrap().into_inner();
    let ended = tokio::time::timeout(PATIENCE, idle_answers.message()).await.expect("it is ended").unwrap_err();
    assert_eq!(ended.code(), Code::DeadlineExceeded);
    assert!(ended.message().contains("--idle-timeout-s"), "{ended}");
    // The other stream has waited longer.
    assert!(events.try_recv().is_err(), "the request was withdrawn");
    let job = backend.stuck.lock().pop().unwrap();
    crate::scripted::answer(job, crate::scripted::echo).unwrap();
    let answer = tokio::time::timeout(PATIENCE, busy_answers.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.infer_response.unwrap().id, "7");
    // Idle from here on.
    let ended = tokio::time::timeout(PATIENCE, busy_answers.message()).await.expect("it is ended").unwrap_err();
    assert_eq!(ended.code(), Code::DeadlineExceeded);
}
