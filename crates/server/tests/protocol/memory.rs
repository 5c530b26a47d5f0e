//! Memory: everything that clients make the server hold is within one budget, and is released.

use crate::grpc::infer_request;
use crate::scripted::{Event, MODELS, answer, echo, serve};
use crate::support::{PATIENCE, Running, config, scripted, send};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ripieno_model::DataType;
use ripieno_server::ServerConfig;
use ripieno_wire::proto::inference::infer_parameter::ParameterChoice;
use ripieno_wire::proto::inference::{InferParameter, InferTensorContents};
use std::convert::Infallible;
use std::io::Write;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

const MIB: usize = 1 << 20;
const BUDGET: usize = 8 * MIB;
/// Memory of calls besides their bodies.
const CALLS: usize = 64 << 10;
/// Halving 7 MiB repeatedly gives this size, which is reserved before any data arrives.
const PIECE: usize = 7 * MIB / 32;

pub(crate) fn small() -> ServerConfig {
    ServerConfig { max_bytes_in_flight: BUDGET, max_body_bytes: 64 * MIB, ..config() }
}

/// Returns the value of a metric without labels.
async fn metric(server: &Running, name: &str) -> usize {
    let url = format!("http://{}/metrics", server.addresses.metrics.unwrap());
    let text = send(Request::get(url).body(Full::default()).unwrap()).await.body;
    let text = std::str::from_utf8(&text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

pub(crate) async fn held(server: &Running) -> usize {
    metric(server, "ripieno_held_bytes").await
}

/// Waits until only the memory of the metrics calls is held.
pub(crate) async fn until_free(server: &Running) {
    let free = async { while held(server).await > CALLS {} };
    tokio::time::timeout(PATIENCE, free).await.expect("bytes are given back");
}

fn gzip(piece: &[u8], times: usize) -> Vec<u8> {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
    (0..times).for_each(|_| bomb.write_all(piece).unwrap());
    bomb.finish().unwrap()
}

#[tokio::test]
async fn what_inflates_beyond_the_budget_is_refused_before_it_has() {
    let (server, ..) = scripted(small()).await;
    let bomb = gzip(&[b' '; MIB], 60);
    let infer = |path: &'static str| server.post(path, &[("Content-Encoding", "gzip")], bomb.clone());
    for path in ["/v2/models/simple/infer", "/v2/models/simple/generate", "/v2/models/simple/generate_stream"] {
        let refused = infer(path).await;
        assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
        // The transfer was stopped.
        let error = refused.error();
        let taken: usize = error.split(' ').find_map(|word| word.parse().ok()).unwrap();
        assert!(taken < 2 * BUDGET && error.contains("more than the 8388608 that the server may hold"), "{error}");
    }
    until_free(&server).await;
    assert_eq!(metric(&server, "ripieno_max_held_bytes").await, BUDGET);
}

#[tokio::test]
async fn json_that_becomes_large_is_refused_before_it_has() {
    let (server, ..) = scripted(small()).await;
    // Two bytes per number, which become eight.
    let numbers = "1,".repeat(2 * MIB / 2);
    let infer = format!(r#"{{"inputs":[{{"name":"x","shape":[1,2],"datatype":"FP32","data":[{numbers}1]}}]}}"#);
    let refused = server.post("/v2/models/simple/infer", &[], infer).await;
    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
    let refused = server.post("/v2/models/simple/generate", &[], format!(r#"{{"x":[{numbers}1]}}"#)).await;
    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
    until_free(&server).await;
}

/// A call whose body is sent piece by piece.
pub(crate) struct Slow {
    pub(crate) pieces: mpsc::Sender<Bytes>,
    answer: tokio::task::JoinHandle<HeaderMap>,
}

pub(crate) type Body =
    StreamBody<std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>>;

pub(crate) async fn http2(address: std::net::SocketAddr, window: u32) -> http2::SendRequest<Body> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

fn body(pieces: mpsc::Receiver<Bytes>) -> Body {
    use tokio_stream::StreamExt;
    StreamBody::new(Box::pin(ReceiverStream::new(pieces).map(|piece| Ok(Frame::data(piece)))))
}

/// Starts a message of `length` bytes; returns the headers and trailers of the response.
pub(crate) async fn begin(client: &mut http2::SendRequest<Body>, path: &str, length: usize) -> Slow {
    let (pieces, receive) = mpsc::channel(4);
    let head = [&[0][..], &(length as u32).to_be_bytes()].concat();
    pieces.send(head.into()).await.unwrap();
    let request = Request::post(format!("http://x/inference.GRPCInferenceService/{path}"))
        .header("content-type", "application/grpc")
        .body(body(receive))
        .unwrap();
    let answer = client.send_request(request);
    let answer = tokio::spawn(async move {
        let (head, body) = answer.await.unwrap().into_parts();
        let mut headers = head.headers;
        let trailers = body.collect().await.ok().and_then(|body| body.trailers().cloned());
        headers.extend(trailers.unwrap_or_default());
        headers
    });
    Slow { pieces, answer }
}

impl Slow {
    pub(crate) async fn code(self) -> Code {
        let headers = tokio::time::timeout(PATIENCE, self.answer).await.unwrap().unwrap();
        Code::from_bytes(headers["grpc-status"].as_bytes())
    }
}

#[tokio::test]
async fn messages_are_reserved_as_they_come() {
    let (server, ..) = scripted(small()).await;
    let mut client = http2(server.addresses.grpc.unwrap(), 65_535).await;
    let mut begun = Vec::new();
    for path in ["ModelInfer", "ModelStreamInfer"].repeat(4) {
        begun.push(begin(&mut client, path, 7 * MIB).await);
    }
    let reserved = async { while held(&server).await < 8 * PIECE {} };
    tokio::time::timeout(PATIENCE, reserved).await.unwrap();
    assert!(held(&server).await < 8 * PIECE + CALLS, "no more is held than may soon come");
    assert_eq!(begin(&mut client, "ModelInfer", 65 * MIB).await.code().await, Code::InvalidArgument);
    // Together they use up the budget; then one is refused, and the others continue.
    let pieces = begun.iter().map(|call| call.pieces.clone()).collect::<Vec<_>>();
    for (at, call) in pieces.iter().enumerate() {
        if call.send(Bytes::from(vec![0; 2 * MIB])).await.is_err() {
            break;
        }
        if at < 2 {
            let reserved = async { while held(&server).await < 2 * MIB * (at + 1) {} };
            tokio::time::timeout(PATIENCE, reserved).await.unwrap();
        }
    }
    drop(pieces);
    let mut answered = tokio::task::JoinSet::new();
    for Slow { pieces, answer } in begun {
        answered.spawn(async move {
            let headers = answer.await.unwrap();
            drop(pieces);
            Code::from_bytes(headers["grpc-status"].as_bytes())
        });
    }
    let first = tokio::time::timeout(PATIENCE, answered.join_next()).await.unwrap().unwrap().unwrap();
    assert_eq!(first, Code::ResourceExhausted);
    assert!(held(&server).await <= BUDGET + CALLS);
    drop(answered);
    drop(client);
    until_free(&server).await;
}

#[tokio::test]
async fn heads_without_bodies_leave_room_for_others() {
    let (server, ..) = scripted(small()).await;
    let head = format!("POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 7 * MIB);
    let mut silent = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        silent.push(stream);
    }
    let reserved = async { while held(&server).await < 8 * PIECE {} };
    tokio::time::timeout(PATIENCE, reserved).await.unwrap();
    let raw = [("Inference-Header-Content-Length", "0")];
    let neighbour = server.post("/v2/models/simple/infer", &raw, vec![0; 2 * MIB]).await;
    assert_eq!(neighbour.status, StatusCode::BAD_REQUEST);
    drop(silent);
    until_free(&server).await;
}

#[tokio::test]
async fn a_body_in_pieces_arrives_whole() {
    let (server, ..) = scripted(small()).await;
    let size = 300_000 * 8;
    let request = binary(size);
    let mut stream = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    let (mut read, mut write) = stream.split();
    let send = async {
        for piece in request.chunks(70_001) {
            write.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        write.shutdown().await.unwrap();
    };
    let mut answer = Vec::new();
    let receive = tokio::time::timeout(PATIENCE, read.read_to_end(&mut answer));
    let ((), received) = tokio::join!(send, receive);
    received.unwrap().unwrap();
    assert!(answer.windows(12).any(|part| part == b"HTTP/1.1 200"));
    assert!(answer.len() > size);
    until_free(&server).await;
}

#[tokio::test]
async fn idle_streams_hold_next_to_nothing() {
    let (server, ..) = scripted(small()).await;
    let mut client = http2(server.addresses.grpc.unwrap(), 65_535).await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        let (pieces, receive) = mpsc::channel(1);
        let path = "http://x/inference.GRPCInferenceService/ModelStreamInfer";
        let request = Request::post(path).body(body(receive)).unwrap();
        let answer = tokio::time::timeout(PATIENCE, client.send_request(request)).await.unwrap().unwrap();
        assert!(!answer.headers().contains_key("grpc-status"), "{answer:?}");
        idle.push((pieces, answer));
    }
    assert!(held(&server).await < 41 * 4096 + CALLS);
    drop(idle);
    drop(client);
    until_free(&server).await;
}

/// Waits until `jobs` jobs are stuck, and then until their streams have paused.
async fn until_paused(server: &Running, events: &mut mpsc::Receiver<Event>, jobs: usize) {
    for _ in 0..jobs {
        assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    }
    let paused = async { while held(server).await < 2 * MIB {} };
    tokio::time::timeout(PATIENCE, paused).await.expect("what may wait is reserved");
}

#[tokio::test]
async fn what_may_wait_while_streams_are_not_read_is_reserved_once_a_connection() {
    let narrow = ServerConfig { max_stream_in_flight: 1, ..small() };
    let (server, backend, mut events) = scripted(narrow).await;
    let client = server.grpc().await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let (send, receive) = mpsc::channel(4);
        send.send(infer_request("stuck", "")).await.unwrap();
        let answers = client.clone().model_stream_infer(ReceiverStream::new(receive)).await.unwrap();
        streams.push((send, answers.into_inner()));
    }
    until_paused(&server, &mut events, 5).await;
    assert!(held(&server).await < 4 * MIB, "one window for all of them");
    // Two more connections nearly fill the budget, so that the last one has no room to pause.
    let mut others = Vec::new();
    for at in 2..5 {
        let (send, receive) = mpsc::channel(4);
        send.send(infer_request("stuck", "")).await.unwrap();
        let call = server.grpc().await.model_stream_infer(ReceiverStream::new(receive)).await;
        others.push((send, call.unwrap().into_inner()));
        let paused = async { while at < 4 && held(&server).await < at * 2 * MIB {} };
        tokio::time::timeout(PATIENCE, paused).await.unwrap();
    }
    let last = tokio::time::timeout(PATIENCE, others[2].1.message()).await.unwrap();
    assert_eq!(last.unwrap_err().code(), Code::ResourceExhausted);
    drop(others);
    let jobs = std::mem::take(&mut *backend.stuck.lock());
    jobs.into_iter().for_each(|job| answer(job, echo).unwrap());
    for (_, answers) in &mut streams {
        let answer = tokio::time::timeout(PATIENCE, answers.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(answer.error_message, "");
    }
    until_free(&server).await;
}

#[tokio::test]
async fn typed_contents_are_held_whatever_their_parameters_say() {
    let (server, backend, mut events) = scripted(small()).await;
    let mut request = infer_request("stuck", "");
    request.raw_input_contents.clear();
    request.inputs[0].shape = vec![(MIB / 8) as i64, 2];
    let contents = InferTensorContents { fp32_contents: vec![0.5; MIB / 4], ..Default::default() };
    request.inputs[0].contents = Some(contents);
    let size = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(MIB as i64)) };
    request.inputs[0].parameters.insert("binary_data_size".into(), size);
    let mut client = server.grpc().await;
    let call = tokio::spawn(async move { client.model_infer(request).await });
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    // The response's reservation is added.
    assert!(held(&server).await >= 3 * MIB, "{}", held(&server).await);
    let job = backend.stuck.lock().pop().unwrap();
    answer(job, echo).unwrap();
    assert!(tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap().is_ok());
    until_free(&server).await;
}

#[tokio::test]
async fn a_raw_string_is_held_while_it_waits() {
    let (server, backend, mut events) = scripted(small()).await;
    let stuck = MODELS.iter().position(|(name, _)| *name == "stuck").unwrap();
    serve(&server.registry, "texts", "1", stuck as u16, DataType::Bytes, &["x"]);
    let request = format!(
        "POST /v2/models/texts/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {MIB}\r\nInference-Header-Content-Length: 0\r\n\r\n"
    );
    let mut stream = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    stream.write_all(&[request.into_bytes(), vec![b'a'; MIB]].concat()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    assert!(held(&server).await >= MIB);
    backend.stuck.lock().clear();
    drop(stream);
    until_free(&server).await;
}

#[tokio::test]
async fn unfinished_messages_do_not_last() {
    let hasty = ServerConfig { body_timeout: Duration::from_millis(200), ..small() };
    let (server, ..) = scripted(hasty).await;
    let mut client = http2(server.addresses.grpc.unwrap(), 65_535).await;
    for path in ["ModelInfer", "ModelStreamInfer", "ModelMetadata"] {
        let call = begin(&mut client, path, 3 << 10).await;
        let open = call.pieces.clone();
        assert_eq!(call.code().await, Code::DeadlineExceeded, "{path}");
        drop(open);
    }
    until_free(&server).await;
}

#[tokio::test]
async fn a_dense_message_is_refused_before_it_is_decoded() {
    let (server, ..) = scripted(small()).await;
    let mut client = http2(server.addresses.grpc.unwrap(), 65_535).await;
    let cases = [
        // Inputs of two bytes each.
        ([0x2a, 0].repeat(100_000), Code::InvalidArgument),
        // One input with a shape of a million one-byte numbers.
        ([&[0x2a, 0xc4, 0x84, 0x3d, 0x1a, 0xc0, 0x84, 0x3d][..], &vec![1; 1_000_000]].concat(), Code::InvalidArgument),
    ];
    for (message, code) in cases {
        let call = begin(&mut client, "ModelInfer", message.len()).await;
        call.pieces.send(message.into()).await.unwrap();
        let Slow { pieces, answer } = call;
        drop(pieces);
        let headers = tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap();
        assert_eq!(Code::from_bytes(headers["grpc-status"].as_bytes()), code, "{headers:?}");
    }
    until_free(&server).await;
}

/// An HTTP/1 request whose response is `size` bytes of binary data.
fn binary(size: usize) -> Vec<u8> {
    let shape = size / 8;
    let head = format!(
        r#"{{"inputs":[{{"name":"x","shape":[{shape},2],"datatype":"FP32","parameters":{{"binary_data_size":{size}}}}}],"outputs":[{{"name":"y","parameters":{{"binary_data":true}}}}]}}"#
    );
    let http = format!(
        "POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
        head.len(),
        head.len() + size
    );
    [http.into_bytes(), head.into_bytes(), vec![0; size]].concat()
}

async fn narrow(server: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(server.addresses.http.unwrap()).await.unwrap()
}

#[tokio::test]
async fn unread_responses_are_within_the_budget_and_time_out() {
    let hasty = ServerConfig { write_timeout: Duration::from_secs(2), max_bytes_in_flight: 4 * BUDGET, ..small() };
    let (server, ..) = scripted(hasty).await;
    let mut silent = Vec::new();
    // More than the kernel buffers, so that the server keeps most of it. Request, output and
    // encoding are held together for a moment, so that a third response has no room.
    for _ in 0..4 {
        let mut stream = narrow(&server).await;
        stream.write_all(&binary(BUDGET)).await.unwrap();
        silent.push(stream);
    }
    let full = async { while held(&server).await < BUDGET {} };
    tokio::time::timeout(PATIENCE, full).await.unwrap();
    assert!(held(&server).await <= 4 * BUDGET + CALLS);
    // A client that reads nothing is disconnected.
    until_free(&server).await;
    let answer = server.post("/v2/models/simple/infer", &[], crate::infer::floats().to_string()).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn unread_responses_on_one_connection_are_within_the_budget_and_time_out() {
    let hasty = ServerConfig { write_timeout: Duration::from_secs(2), ..small() };
    let (server, ..) = scripted(hasty).await;
    let mut client = http2(server.addresses.grpc.unwrap(), 1024).await;
    let mut request = infer_request("simple", "");
    request.inputs[0].shape = vec![(MIB / 4) as i64, 2];
    request.raw_input_contents = vec![Bytes::from(vec![0; 2 * MIB])];
    let message = ripieno_wire::grpc::encode_message(&request, 0);
    let mut unread = Vec::new();
    let mut codes = Vec::new();
    for _ in 0..6 {
        let (pieces, receive) = mpsc::channel(4);
        let head = [&[0][..], &(message.len() as u32).to_be_bytes()].concat();
        pieces.send([head, message.clone()].concat().into()).await.unwrap();
        drop(pieces);
        let request = Request::post("http://x/inference.GRPCInferenceService/ModelInfer").body(body(receive)).unwrap();
        let answer = tokio::time::timeout(PATIENCE, client.send_request(request)).await.unwrap().unwrap();
        let status = answer.headers().get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()));
        codes.push(status);
        unread.push(answer);
    }
    assert_eq!(codes[0], None, "the first is answered");
    assert!(codes.contains(&Some(Code::ResourceExhausted)), "{codes:?}");
    until_free(&server).await;
}

#[tokio::test]
async fn a_call_that_waits_for_its_body_gives_its_share_back_when_it_is_left() {
    let (server, ..) = scripted(small()).await;
    let mut stream = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    let head = format!("POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{{", 5 * MIB);
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; 5 * MIB - 2]).await.unwrap();
    let reserved = async { while held(&server).await < 5 * MIB {} };
    tokio::time::timeout(PATIENCE, reserved).await.unwrap();
    let refused = server.post("/v2/models/simple/infer", &[], vec![b' '; 4 * MIB]).await;
    assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (429, "1"));
    drop(stream);
    until_free(&server).await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_and_given_back() {
    let hasty = ServerConfig { body_timeout: Duration::from_millis(200), ..small() };
    let (server, _backend, mut events) = scripted(hasty).await;
    let mut stream = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    stream
        .write_all(b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        .await
        .unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("connection: close"), "{answer}");
    until_free(&server).await;
    assert_eq!(events.try_recv().ok(), None::<Event>);
}
