//! Going down: nothing new is taken, what is in flight ends.

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
    // Connections are refused once the listener is gone, which takes the server a moment to notice.
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

/// Who keeps a connection cannot know that the server is going down, and would not know whether what it then sends was served.
#[tokio::test]
async fn who_keeps_a_connection_is_told_with_its_last_answer() {
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
    // Until it is accepted: what only waits to be is refused with the listener.
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

/// Who sends several requests ahead has them answered, in order; the last answer says that it is the last.
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

/// But not for ever.
#[tokio::test]
async fn who_always_sends_ahead_does_not_keep_the_server() {
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
    // What is left unread may end the connection with a reset.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answers)).await.unwrap();
    let answered = String::from_utf8(answers).unwrap().matches("HTTP/1.1 200").count();
    assert!((2..200).contains(&answered), "{answered}");
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}

/// A client of HTTP/2 is told, also one whose first call came just in time for the last calls, however busy it is then.
#[tokio::test]
async fn who_begins_with_the_last_calls_is_told_like_all_others() {
    let last_calls = Duration::from_secs(1);
    let patient = ripieno_server::ServerConfig { last_calls, drain_timeout: 10 * PATIENCE, ..config() };
    let (mut server, _backend, _events) = scripted(patient).await;
    let live = ripieno_wire::proto::inference::ServerLiveRequest {};
    let mut client = server.grpc().await;
    // Who comes later is served, so that this one is connected.
    server.grpc().await.server_live(live).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    let calls = async { while client.server_live(live).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, calls).await.expect("it is told that the connection ends");
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}

/// What has come in part when the server goes down holds nobody up, although clients have long for heads and bodies.
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
    // Nothing, part of a head and of a body; of what begins an HTTP/2 connection, and all of it without a call.
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
    // What is read of the message is held.
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
async fn an_idle_server_goes_down_at_once() {
    let (mut server, _backend, _events) = scripted(config()).await;
    assert_eq!(server.get("/v2/health/live").await.status, StatusCode::OK);
    let mut client = server.grpc().await;
    client.server_live(ripieno_wire::proto::inference::ServerLiveRequest {}).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}
