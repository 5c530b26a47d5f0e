//! Inference over HTTP: both encodings of tensors, every datatype, every failure.

use crate::scripted::Event;
use crate::support::{PATIENCE, Running, config, scripted, start};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::StatusCode;
use ripieno_model::DataType;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) fn floats() -> Value {
    json!({"id": "7", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}]})
}

#[tokio::test]
async fn json_in_json_out() {
    let server = start().await;
    let reply = server.infer("simple", &floats()).await;
    assert_eq!(reply.headers["content-type"], "application/json");
    let expected = json!({"model_name": "simple", "model_version": "1", "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0]}]});
    assert_eq!((reply.status, reply.json()), (StatusCode::OK, expected));
}

/// Returns two elements of each datatype, in bytes and, if possible, in JSON.
fn elements(datatype: DataType) -> (Vec<u8>, Option<Value>) {
    match datatype {
        DataType::Bool => (vec![1, 0], Some(json!([true, false]))),
        DataType::Bytes => (b"\x02\0\0\0h\xc3\0\0\0\0"[..6].to_vec(), None),
        DataType::Fp16 | DataType::Bf16 => (vec![0, 60, 1, 2], None),
        DataType::Fp32 => ([0.1f32, -3e38].map(f32::to_le_bytes).concat(), Some(json!([0.1, -3e38]))),
        DataType::Fp64 => ([0.1f64, 1e300].map(f64::to_le_bytes).concat(), Some(json!([0.1, 1e300]))),
        _ => {
            let size = datatype.size().unwrap();
            let signed = datatype.name().starts_with('I');
            let second = if signed { json!(-2) } else { json!(254) };
            let fill = if signed { 0xff } else { 0 };
            let mut bytes = vec![0; 2 * size];
            bytes[0] = 1;
            bytes[size..].fill(fill);
            bytes[size] = 254;
            (bytes, Some(json!([1, second])))
        }
    }
}

async fn binary_infer(server: &Running, datatype: DataType, data: &[u8], output: &str) -> crate::support::Reply {
    let input = json!({"name": "x", "shape": [1, 2], "datatype": datatype.name(),
        "parameters": {"binary_data_size": data.len()}});
    let outputs: Value = serde_json::from_str(output).unwrap();
    let head = json!({"inputs": [input], "outputs": [{"name": "y", "parameters": outputs}]}).to_string();
    let length = head.len().to_string();
    let body = [head.as_bytes(), data].concat();
    let path = format!("/v2/models/identity_{datatype}/infer");
    server.post(&path, &[("Inference-Header-Content-Length", &length)], body).await
}

#[tokio::test]
async fn every_datatype_in_both_forms() {
    let server = start().await;
    for datatype in DataType::ALL {
        let (mut bytes, json_form) = elements(datatype);
        if datatype == DataType::Bytes {
            bytes = b"\x02\0\0\0hi\0\0\0\0".to_vec();
        }
        let reply = binary_infer(&server, datatype, &bytes, r#"{"binary_data":true}"#).await;
        assert_eq!(reply.status, StatusCode::OK, "{datatype}: {:?}", reply.body);
        assert_eq!(reply.headers["content-type"], "application/octet-stream");
        let length: usize = reply.headers["inference-header-content-length"].to_str().unwrap().parse().unwrap();
        let head: Value = serde_json::from_slice(&reply.body[..length]).unwrap();
        assert_eq!(head["outputs"][0]["parameters"], json!({"binary_data_size": bytes.len()}));
        assert_eq!(&reply.body[length..], bytes, "{datatype}");
        let Some(json_form) = json_form else { continue };
        let as_json = binary_infer(&server, datatype, &bytes, r#"{"binary_data":false}"#).await.json();
        let input = json!({"name": "x", "shape": [1, 2], "datatype": datatype.name(), "data": json_form});
        let from_json = server.infer(&format!("identity_{datatype}"), &json!({"inputs": [input]})).await.json();
        assert_eq!(as_json["outputs"], from_json["outputs"], "{datatype}");
        assert_eq!(from_json["outputs"][0]["datatype"], datatype.name());
    }
}

#[tokio::test]
async fn what_has_no_json_form_asks_for_binary() {
    let server = start().await;
    let reply = binary_infer(&server, DataType::Fp16, &[0; 4], "{}").await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert!(reply.error().contains("\"binary_data\": true"), "{}", reply.error());
    let reply = binary_infer(&server, DataType::Bytes, b"\x01\0\0\0\xff\0\0\0\0", "{}").await;
    assert!(reply.error().contains("is not UTF-8"), "{}", reply.error());
}

#[tokio::test]
async fn a_raw_body_is_one_row() {
    let server = start().await;
    let data = [1f32, 2.0].map(f32::to_le_bytes).concat();
    let path = "/v2/models/simple/infer";
    let reply = server.post(path, &[("Inference-Header-Content-Length", "0")], data.clone()).await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    assert!(reply.body.ends_with(&data));
    let bad = server.post(path, &[("Inference-Header-Content-Length", "x")], data).await;
    assert_eq!((bad.status, bad.error().contains("Content-Length is \"x\"")), (StatusCode::BAD_REQUEST, true));
}

#[tokio::test]
async fn failures_have_their_statuses() {
    let server = start().await;
    let cases = [
        (
            "expired",
            504,
            "Request timeout expired; model 'expired' had 100ms (its slo_ms); one row needs 178ms by its profile on an idle device; \
             raise slo_ms, or write late = \"answer\", in its model.toml",
        ),
        (
            "queued",
            504,
            "Request timeout expired; model 'queued' had 100ms (its slo_ms); one row needs 50ms by its profile on an idle device; \
             add devices, send less, or raise slo_ms, or write late = \"answer\", in its model.toml",
        ),
        ("failing", 500, "inference failed: device on fire"),
        ("unloaded", 503, "the model was unloaded"),
        ("leaving", 503, "the server is shutting down"),
        ("down", 503, "its process ended: signal: 6; retry after 2.5s"),
        ("cancelled", 499, "the request was cancelled"),
        ("broken", 503, "Request for unknown model: 'broken' has no available versions: model.onnx: not an ONNX file"),
    ];
    for (model, status, text) in cases {
        let reply = server.infer(model, &floats()).await;
        assert_eq!((reply.status.as_u16(), reply.error().as_str()), (status, text));
    }
    let rows = json!({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}]});
    let error = server.infer("expired", &rows).await.error();
    assert!(error.contains("one row needs 178ms by its profile on an idle device, and the request has 2;"), "{error}");
    let long = server.infer("too-long", &rows).await;
    assert!(long.status == StatusCode::GATEWAY_TIMEOUT && !long.headers.contains_key("retry-after"));
    assert_eq!(
        long.error(),
        "Request timeout expired: the request needs 5.31s by its profile even on idle devices, so a retry cannot be in time; \
         model 'too-long' had 100ms (its slo_ms); one row needs 178ms by its profile on an idle device, and the request has 2; \
         send fewer rows in a request, or raise slo_ms, or write late = \"answer\", in its model.toml"
    );
    let distant = server.infer("distant", &floats()).await;
    assert!(distant.status == StatusCode::GATEWAY_TIMEOUT && !distant.headers.contains_key("retry-after"));
    assert_eq!(
        distant.error(),
        "Request timeout expired: the messages between this frontend and its scheduler and backends take 95.7ms, so a \
         retry cannot be in time; model 'distant' had 100ms (its slo_ms); one row needs 178ms by its profile on an idle \
         device; move the frontend nearer, or raise slo_ms, or write late = \"answer\", in its model.toml"
    );
    let unknown = server.infer("missing", &floats()).await;
    assert!(
        unknown.status == StatusCode::NOT_FOUND && unknown.error().contains("unknown model: 'missing' is not found")
    );
    let full = server.infer("full", &floats()).await;
    assert_eq!((full.status.as_u16(), full.headers["retry-after"].to_str().unwrap()), (429, "2"));
    assert!(full.error().starts_with("Exceeds maximum queue size"));
    let down = server.infer("down", &floats()).await;
    assert_eq!(down.headers["retry-after"], "3");
    assert_eq!(server.infer("simple", &json!({"inputs": []})).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.post("/v2/models/simple/infer", &[], "{").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn compressed_bodies_are_read_within_bounds() {
    let server = start().await;
    let path = "/v2/models/simple/infer";
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(floats().to_string().as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::fast());
    deflate.write_all(floats().to_string().as_bytes()).unwrap();
    for (encoding, body) in [("gzip", gzip.clone()), ("deflate", deflate.finish().unwrap())] {
        let reply = server.post(path, &[("Content-Encoding", encoding)], body).await;
        assert_eq!(reply.status, StatusCode::OK, "{encoding}: {:?}", reply.body);
    }
    let unknown = server.post(path, &[("Content-Encoding", "br")], gzip.clone()).await;
    assert_eq!(unknown.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let broken = server.post(path, &[("Content-Encoding", "gzip")], &b"plain"[..]).await;
    assert_eq!((broken.status, broken.error().contains("cannot be decompressed")), (StatusCode::BAD_REQUEST, true));
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![b' '; 2 << 20]).unwrap();
    let bomb = server.post(path, &[("Content-Encoding", "gzip")], bomb.finish().unwrap()).await;
    assert_eq!(bomb.status, StatusCode::PAYLOAD_TOO_LARGE);
    let large = server.post(path, &[], vec![b' '; 2 << 20]).await;
    assert_eq!(
        (large.status, large.error().contains("larger than 1048576 bytes")),
        (StatusCode::PAYLOAD_TOO_LARGE, true)
    );
}

#[tokio::test]
async fn chunked_bodies_are_read() {
    let server = start().await;
    let mut stream = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    let body = floats().to_string();
    let head =
        "POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for piece in body.as_bytes().chunks(7) {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await.unwrap();
        stream.write_all(&[piece, b"\r\n"].concat()).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("[1.5,-2.0]"), "{answer}");
}

#[tokio::test]
async fn the_timeout_parameter_reaches_the_runtime() {
    let (server, _backend, mut events) = scripted(config()).await;
    let mut body = floats();
    body["parameters"] = json!({"timeout": 1500});
    assert_eq!(server.infer("timed", &body).await.status, StatusCode::OK);
    assert_eq!(events.recv().await, Some(Event::Timeout(Some(Duration::from_micros(1500)))));
}

#[tokio::test]
async fn a_client_that_hangs_up_withdraws_its_request() {
    let (server, _backend, mut events) = scripted(config()).await;
    let mut stream = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    let body = floats().to_string();
    let head = format!("POST /v2/models/stuck/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all([head, body].concat().as_bytes()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    drop(stream);
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Withdrawn));
}

#[tokio::test]
async fn bytes_in_flight_are_bounded_over_all_requests() {
    let small = ripieno_server::ServerConfig { max_bytes_in_flight: 64 << 10, ..config() };
    let (server, backend, mut events) = scripted(small).await;
    // 12,000 bytes are held until the response, and the same amount for the output and its
    // encoding.
    let head = json!({"inputs": [{"name": "x", "shape": [1500, 2], "datatype": "FP32",
        "parameters": {"binary_data_size": 12_000}}], "parameters": {"binary_data_output": true}})
    .to_string();
    let length = head.len().to_string();
    let body = [head.as_bytes(), &[0; 12_000]].concat();
    let mut held = TcpStream::connect(server.addresses.http.unwrap()).await.unwrap();
    let stuck = format!(
        "POST /v2/models/stuck/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {length}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    held.write_all(&[stuck.as_bytes(), &body].concat()).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let ask = || server.post("/v2/models/simple/infer", &headers, body.clone());
    let refused = ask().await;
    assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (429, "1"));
    assert_eq!(server.get("/v2/health/live").await.status, StatusCode::OK);
    drop(held);
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Withdrawn));
    // The backend holds the job until it is dropped.
    backend.stuck.lock().clear();
    let mut answered = ask().await;
    while answered.status == StatusCode::TOO_MANY_REQUESTS {
        // The withdrawal is reported just before the bytes are released.
        answered = ask().await;
    }
    assert_eq!(answered.status, StatusCode::OK);
}
