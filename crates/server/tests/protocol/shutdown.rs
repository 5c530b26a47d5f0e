//! Shutdown: nothing new is accepted, requests in flight finish.

use crate::memory::{begin, held, http2};
use crate::scripted::{Event, echo};
use crate::support::{PATIENCE, config, scripted};
use hyper::StatusCode;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn request(model: &str) -> String {
    let body = json!({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).to_string();
    format!("POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn calls_in_flight_are_answered_before_the_end() {
    let (mut server, backend, mut events) = scripted(config()).await;
    let address = server.addresses.http.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request("stuck").as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    server.stop.take().unwrap().send(()).unwrap();
    // Connections are refused once the listener is closed, which takes a moment.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!server.done.is_finished());
    let job = backend.stuck.lock().pop().unwrap();
    (job.on_answer)(echo(&job.inputs));
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}

/// A client with an open connection cannot know of the shutdown, nor whether its next request was
/// served.
#[tokio::test]
async fn the_last_response_of_a_connection_announces_its_end() {
    let patient = ripieno_server::ServerConfig { last_calls: PATIENCE, drain_timeout: 2 * PATIENCE, ..config() };
    let (mut server, _backend, _events) = scripted(patient).await;
    let address = server.addresses.http.unwrap();
    let mut kept = TcpStream::connect(address).await.unwrap();
    let live = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    kept.write_all(live).await.unwrap();
    let mut answer = [0; 4096];
    let first = kept.read(&mut answer).await.unwrap();
    assert!(answer[..first].starts_with(b"HTTP/1.1 200"));
    let mut fresh = TcpStream::connect(address).await.unwrap();
    // Wait until the connection is accepted; one that is still queued is refused with the listener.
    while server.get("/v2/health/live").await.status != StatusCode::OK {}
    server.stop.take().unwrap().send(()).unwrap();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    for stream in [&mut kept, &mut fresh] {
        stream.write_all(live).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    }
}

/// Pipelined requests are answered in order; the last response says that it is the last.
#[tokio::test]
async fn a_pipeline_that_has_come_is_answered_to_its_end() {
    let (mut server, backend, mut events) = scripted(config()).await;
    let address = server.addresses.http.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let live = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    let pipeline = [request("stuck"), request("simple"), request("stuck"), live.to_owned(), live.to_owned()].concat();
    stream.write_all(pipeline.as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    server.stop.take().unwrap().send(()).unwrap();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    for last in [false, true] {
        let job = backend.stuck.lock().pop().unwrap();
        (job.on_answer)(echo(&job.inputs));
        if !last {
            assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
        }
    }
    let mut answers = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answers)).await.unwrap().unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 5, "{answers}");
    assert_eq!(answers.matches("connection: close").count(), 1, "{answers}");
    assert!(answers.rfind("connection: close") > answers.rfind("HTTP/1.1 200"), "{answers}");
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}

/// The number of pipelined requests is bounded.
#[tokio::test]
async fn endless_pipelining_does_not_delay_the_shutdown() {
    let (mut server, backend, mut events) = scripted(config()).await;
    let address = server.addresses.http.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let live = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n".repeat(200);
    stream.write_all([request("stuck"), live].concat().as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    server.stop.take().unwrap().send(()).unwrap();
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let job = backend.stuck.lock().pop().unwrap();
    (job.on_answer)(echo(&job.inputs));
    let mut answers = Vec::new();
    // Unread data may end the connection with a reset.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answers)).await.unwrap();
    let answered = String::from_utf8(answers).unwrap().matches("HTTP/1.1 200").count();
    assert!((2..200).contains(&answered), "{answered}");
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}

/// An HTTP/2 client is notified, even if its first call arrived during the shutdown and whatever
/// its load.
#[tokio::test]
async fn a_connection_that_begins_during_the_shutdown_is_notified() {
    let last_calls = Duration::from_secs(1);
    let patient = ripieno_server::ServerConfig { last_calls, drain_timeout: 10 * PATIENCE, ..config() };
    let (mut server, _backend, _events) = scripted(patient).await;
    let live = ripieno_wire::proto::inference::ServerLiveRequest {};
    let mut client = server.grpc().await;
    // This call is served, so the connection is established.
    server.grpc().await.server_live(live).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    let calls = async { while client.server_live(live).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, calls).await.expect("it learns that the connection ends");
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}

/// Incomplete requests do not delay the shutdown, although timeouts of heads and bodies are long.
#[tokio::test]
async fn requests_that_do_not_come_whole_do_not_keep_the_server() {
    let long = 10 * PATIENCE;
    let server = ripieno_server::ServerConfig {
        header_timeout: long,
        body_timeout: long,
        drain_timeout: long,
        ping_interval: long,
        last_calls: Duration::from_millis(1),
        last_bodies: Duration::from_millis(1),
        ..config()
    };
    let (mut server, _backend, _events) = scripted(server).await;
    let (http, grpc) = (server.addresses.http.unwrap(), server.addresses.grpc.unwrap());
    let whole = request("simple");
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // Nothing, parts of a head and of a body, part of an HTTP/2 preface, and all of it without a
    // call.
    let parts = ["", &whole[..20], &whole[..whole.len() - 3], &preface[..10], preface];
    let mut clients = Vec::new();
    for part in parts {
        let mut client = TcpStream::connect(http).await.unwrap();
        client.write_all(part.as_bytes()).await.unwrap();
        clients.push(client);
    }
    let mut client = http2(grpc, 1 << 16).await;
    let call = begin(&mut client, "ModelInfer", 1 << 18).await;
    call.pieces.send(vec![0; 1 << 17].into()).await.unwrap();
    // The received part of the message is held.
    while held(&server).await < 1 << 17 {}
    server.stop.take().unwrap().send(()).unwrap();
    assert!(tokio::time::timeout(PATIENCE, server.done).await.expect("it goes down").unwrap(), "in order");
    let mut answer = String::new();
    clients[2].read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("connection: close"), "{answer}");
    assert_eq!(call.code().await, tonic::Code::Unavailable);
}

#[tokio::test]
async fn what_does_not_end_in_time_is_withdrawn() {
    let hasty = ripieno_server::ServerConfig { drain_timeout: Duration::from_millis(1), ..config() };
    let (mut server, _backend, mut events) = scripted(hasty).await;
    let mut stream = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    stream.write_all(request("stuck").as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    server.stop.take().unwrap().send(()).unwrap();
    assert!(!tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Withdrawn));
}

#[tokio::test]
async fn an_idle_server_goes_down_immediately() {
    let (mut server, _backend, _events) = scripted(config()).await;
    assert_eq!(server.get("/v2/health/live").await.status, StatusCode::OK);
    let mut client = server.grpc().await;
    client.server_live(ripieno_wire::proto::inference::ServerLiveRequest {}).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}
