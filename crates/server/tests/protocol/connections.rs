//! Connections: bounded in number and time, and answered whatever their clients do.

use crate::scripted::{Event, echo};
use crate::support::{PATIENCE, Running, config, scripted, send};
use http_body_util::Full;
use hyper::{Request, StatusCode};
use ripieno_server::ServerConfig;
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIVE: &str = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";

pub(crate) fn request(model: &str) -> String {
    let body = json!({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).to_string();
    format!("POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

async fn connect(address: Option<SocketAddr>) -> TcpStream {
    TcpStream::connect(address.unwrap()).await.unwrap()
}

/// Reads until the server closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset ends the connection, too.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server closes");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads the status line of the next response.
async fn status(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    let read = async {
        while !line.ends_with(b"\r\n") {
            line.push(stream.read_u8().await.unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap();
    String::from_utf8(line).unwrap()
}

#[tokio::test]
async fn silent_connections_make_room_for_new_ones() {
    let few = ServerConfig { max_connections: 4, ..config() };
    let (server, ..) = scripted(few).await;
    for address in [server.addresses.http, server.addresses.grpc, server.addresses.metrics] {
        let mut silent = Vec::new();
        for _ in 0..12 {
            silent.push(connect(address).await);
        }
        let mut late = connect(address).await;
        late.write_all(LIVE.as_bytes()).await.unwrap();
        assert!(status(&mut late).await.starts_with("HTTP/1.1 "));
        // The oldest connection was closed.
        assert_eq!(rest(&mut silent[0]).await, "");
    }
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed() {
    let hasty = ServerConfig { header_timeout: Duration::from_millis(200), ..config() };
    let (server, ..) = scripted(hasty).await;
    for begun in ["", "PRI * HTTP", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /v2 HTTP/1.1\r\nHost:"] {
        for address in [server.addresses.http, server.addresses.grpc, server.addresses.metrics] {
            let mut stream = connect(address).await;
            stream.write_all(begun.as_bytes()).await.unwrap();
            let answer = rest(&mut stream).await;
            assert!(!answer.contains("200 OK"), "{begun:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let hasty = ServerConfig { idle_timeout: Duration::from_millis(200), ..config() };
    let (server, _backend, mut events) = scripted(hasty).await;
    let mut idle = connect(server.addresses.http).await;
    idle.write_all(LIVE.as_bytes()).await.unwrap();
    assert!(rest(&mut idle).await.starts_with("HTTP/1.1 200"));
    // A connection that waits for its response is not idle, however long it takes.
    let mut busy = connect(server.addresses.http).await;
    busy.write_all(request("stuck").as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    let mut later = connect(server.addresses.http).await;
    later.write_all(LIVE.as_bytes()).await.unwrap();
    assert!(rest(&mut later).await.starts_with("HTTP/1.1 200"));
    assert!(events.try_recv().is_err(), "the busy one was not withdrawn");
}

#[tokio::test]
async fn one_peer_has_its_share_of_connections_and_the_metrics_port_is_not_concerned() {
    let shared = ServerConfig { max_connections_per_peer: Some(2), ..config() };
    let (server, backend, mut events) = scripted(shared).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(server.addresses.http).await;
        stream.write_all(request("stuck").as_bytes()).await.unwrap();
        assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
        busy.push(stream);
    }
    let mut third = connect(server.addresses.http).await;
    assert_eq!(rest(&mut third).await, "");
    for (path, wanted) in [("/v2/health/live", "live\n"), ("/v2/health/ready", "ready\n")] {
        let url = format!("http://{}{path}", server.addresses.metrics.unwrap());
        let reply = send(Request::get(url).body(Full::default()).unwrap()).await;
        assert_eq!((reply.status, reply.body.as_ref()), (StatusCode::OK, wanted.as_bytes()));
    }
    let job = backend.stuck.lock().pop().unwrap();
    (job.on_answer)(echo(&job.inputs));
    let mut fourth = connect(server.addresses.http).await;
    fourth.write_all(LIVE.as_bytes()).await.unwrap();
    // The answered connection is idle once its response is sent, and is closed for this one.
    while rest_or_status(&mut fourth).await.is_empty() {
        fourth = connect(server.addresses.http).await;
        let _ = fourth.write_all(LIVE.as_bytes()).await;
    }
}

async fn rest_or_status(stream: &mut TcpStream) -> String {
    let mut first = [0; 12];
    match tokio::time::timeout(PATIENCE, stream.read_exact(&mut first)).await.unwrap() {
        Ok(_) => String::from_utf8_lossy(&first).into_owned(),
        Err(_) => String::new(),
    }
}

#[tokio::test]
async fn a_half_closed_client_is_answered() {
    let (server, backend, mut events) = scripted(config()).await;
    let mut stream = connect(server.addresses.http).await;
    stream.write_all(request("stuck").as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    stream.shutdown().await.unwrap();
    // The server has seen the end of input and checks whether the client is still there.
    assert!(status(&mut stream).await.starts_with("HTTP/1.1 100"));
    assert!(events.try_recv().is_err(), "the request was withdrawn");
    let job = backend.stuck.lock().pop().unwrap();
    (job.on_answer)(echo(&job.inputs));
    let answer = rest(&mut stream).await;
    assert!(answer.contains("HTTP/1.1 200") && answer.contains("[1.0,2.0]"), "{answer}");
}

#[tokio::test]
async fn a_client_of_http_1_0_that_stops_sending_gets_the_answer_and_nothing_before_it() {
    let (server, backend, mut events) = scripted(config()).await;
    let mut stream = connect(server.addresses.http).await;
    stream.write_all(request("stuck").replace("HTTP/1.1", "HTTP/1.0").as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    stream.shutdown().await.unwrap();
    // Long enough for the server to see the end of input and to misinterpret it.
    let withdrawn = tokio::time::timeout(Duration::from_millis(100), events.recv()).await;
    assert!(withdrawn.is_err(), "the request was withdrawn");
    let job = backend.stuck.lock().pop().unwrap();
    (job.on_answer)(echo(&job.inputs));
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("[1.0,2.0]"), "{answer}");
}

#[tokio::test]
async fn a_waiting_connection_gets_the_slot_that_becomes_free() {
    let few = ServerConfig { max_connections: 2, ..config() };
    let (server, _backend, mut events) = scripted(few).await;
    let mut busy = std::collections::VecDeque::new();
    for _ in 0..2 {
        busy.push_back(stuck(&server, &mut events).await);
    }
    for turn in 0..16 {
        let mut third = connect(server.addresses.http).await;
        third.write_all(request("stuck").as_bytes()).await.unwrap();
        // Time for the connection to be accepted, so that it waits only for its slot.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        drop(busy.pop_front());
        assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Withdrawn), "{turn}");
        let next = tokio::time::timeout(PATIENCE, events.recv()).await.expect("the third has its place");
        assert_eq!(next, Some(Event::Submitted), "{turn}");
        busy.push_back(third);
    }
}

#[tokio::test]
async fn a_waiting_connection_gets_the_slot_of_one_that_becomes_idle() {
    let few = ServerConfig { max_connections: 1, ..config() };
    let (server, backend, mut events) = scripted(few).await;
    let mut busy = stuck(&server, &mut events).await;
    let mut second = connect(server.addresses.http).await;
    second.write_all(LIVE.as_bytes()).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let job = backend.stuck.lock().pop().unwrap();
    (job.on_answer)(echo(&job.inputs));
    assert!(status(&mut second).await.starts_with("HTTP/1.1 200"));
    assert!(rest(&mut busy).await.contains("[1.0,2.0]"));
}

#[tokio::test]
async fn a_call_that_has_begun_outlives_the_loss_of_its_place() {
    let few = ServerConfig { max_connections: 1, ..config() };
    let (server, backend, mut events) = scripted(few).await;
    for turn in 0..32 {
        let mut first = connect(server.addresses.http).await;
        first.write_all(LIVE.as_bytes()).await.unwrap();
        assert!(status(&mut first).await.starts_with("HTTP/1.1 200"));
        // Both within one poll of the runtime: the request of an idle connection, and a new
        // connection that takes its slot.
        let sent = std::net::TcpStream::connect(server.addresses.http.unwrap()).unwrap();
        first.try_write(request("stuck").as_bytes()).unwrap();
        let mut second = sent;
        std::io::Write::write_all(&mut second, LIVE.as_bytes()).unwrap();
        let begun = tokio::time::timeout(Duration::from_millis(100), events.recv()).await;
        if begun.is_err() {
            // It was closed before the request was read, as any idle connection may be.
            continue;
        }
        let job = backend.stuck.lock().pop().unwrap();
        (job.on_answer)(echo(&job.inputs));
        let answer = rest(&mut first).await;
        assert!(answer.contains("[1.0,2.0]"), "{turn}: {answer:?}");
        while events.try_recv().is_ok() {}
    }
}

/// Opens a connection with a call that is not answered.
async fn stuck(server: &Running, events: &mut tokio::sync::mpsc::Receiver<Event>) -> TcpStream {
    let mut stream = connect(server.addresses.http).await;
    stream.write_all(request("stuck").as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    stream
}

#[tokio::test]
async fn every_request_of_a_pipeline_that_ends_in_a_half_close_is_answered() {
    let (server, ..) = scripted(config()).await;
    let mut stream = connect(server.addresses.http).await;
    stream.write_all(request("simple").repeat(20).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let answers = rest(&mut stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 20, "{answers}");
    assert_eq!(answers.matches("[1.0,2.0]").count(), 20);
}

#[tokio::test]
async fn the_last_of_a_pipeline_is_answered_if_the_end_was_seen_before_its_turn() {
    let (server, backend, mut events) = scripted(config()).await;
    let mut stream = connect(server.addresses.http).await;
    stream.write_all(request("stuck").repeat(3).as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    for _ in 0..3 {
        assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
        // Over loopback the end of input has arrived by now, long before the timeout.
        let job = backend.stuck.lock().pop().unwrap();
        (job.on_answer)(echo(&job.inputs));
    }
    let answers = rest(&mut stream).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 3, "{answers}");
    assert_eq!(answers.matches("[1.0,2.0]").count(), 3, "{answers}");
}

#[tokio::test]
async fn half_a_request_is_not_waited_for() {
    let (server, ..) = scripted(config()).await;
    let mut stream = connect(server.addresses.http).await;
    let whole = request("simple");
    stream.write_all(&whole.as_bytes()[..whole.len() - 5]).await.unwrap();
    stream.shutdown().await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(!answer.contains("200 OK"), "{answer}");
}

#[tokio::test]
async fn an_error_before_the_body_was_read_reaches_its_client() {
    let (server, ..) = scripted(config()).await;
    let size = 8 << 20;
    for (path, wanted) in [
        ("/v2/nowhere", "HTTP/1.1 404"),
        ("/v2/models/missing/infer", "HTTP/1.1 404"),
        ("/v2/health/live", "HTTP/1.1 405"),
        ("/v2/models/simple/infer", "HTTP/1.1 413"),
    ] {
        let mut stream = connect(server.addresses.http).await;
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // Simple clients send everything before they read anything. The server keeps reading for a
        // while.
        let piece = vec![b' '; 64 << 10];
        for _ in 0..(1 << 20) / piece.len() {
            stream.write_all(&piece).await.unwrap();
        }
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with(wanted) && answer.contains("connection: close"), "{path}: {answer}");
    }
    // A connection whose body was read stays open.
    let mut stream = connect(server.addresses.http).await;
    let broken = "POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all([broken, LIVE].concat().as_bytes()).await.unwrap();
    assert!(status(&mut stream).await.starts_with("HTTP/1.1 400"));
    stream.shutdown().await.unwrap();
    assert!(rest(&mut stream).await.contains("HTTP/1.1 200"));
}

#[tokio::test]
async fn calls_unanswered_at_the_end_of_the_shutdown_get_an_error() {
    let hasty = ServerConfig { drain_timeout: Duration::from_millis(1), ..config() };
    let (mut server, _backend, mut events): (Running, _, _) = scripted(hasty).await;
    let mut stream = connect(server.addresses.http).await;
    stream.write_all(request("stuck").as_bytes()).await.unwrap();
    let mut client = server.grpc().await;
    let call = tokio::spawn(async move { client.model_infer(crate::grpc::infer_request("stuck", "")).await });
    for _ in 0..2 {
        assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    }
    server.stop.take().unwrap().send(()).unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("shutting down"), "{answer}");
    assert_eq!(call.await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
    assert!(!tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
}
