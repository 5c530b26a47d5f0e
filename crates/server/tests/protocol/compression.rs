//! Compression of responses on request.

use crate::grpc::infer_request;
use crate::support::{Reply, Running, config, scripted, start};
use bytes::{Buf, Bytes};
use flate2::read::{GzDecoder, ZlibDecoder};
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use ripieno_server::ServerConfig;
use ripieno_wire::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use ripieno_wire::proto::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use serde_json::json;
use std::io::Read;
use tonic::codec::CompressionEncoding;

const LONG: usize = 20_000;

fn inflated(encoding: Option<&str>, body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    match encoding {
        Some("gzip") => GzDecoder::new(body).read_to_end(&mut plain).unwrap(),
        Some("deflate") => ZlibDecoder::new(body).read_to_end(&mut plain).unwrap(),
        _ => (&body[..]).read_to_end(&mut plain).unwrap(),
    };
    plain
}

/// Requests a response of `elements` elements with these headers.
async fn ask(server: &Running, elements: usize, headers: &[(&str, &str)]) -> Reply {
    let input = json!({"name": "x", "shape": [elements / 2, 2], "datatype": "FP32", "data": vec![1.5; elements]});
    server.post("/v2/models/simple/infer", headers, json!({"inputs": [input]}).to_string()).await
}

fn encoding(headers: &HeaderMap) -> Option<&str> {
    headers.get("content-encoding").map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn long_http_answers_are_compressed_as_asked_and_mean_the_same() {
    let server = start().await;
    let plain = ask(&server, LONG, &[]).await;
    assert_eq!((plain.status, encoding(&plain.headers)), (StatusCode::OK, None));
    for (accepts, wanted) in [("gzip", "gzip"), ("deflate", "deflate"), ("br, gzip;q=0.1, deflate;q=0.9", "deflate")] {
        let reply = ask(&server, LONG, &[("accept-encoding", accepts)]).await;
        assert_eq!((reply.status, encoding(&reply.headers)), (StatusCode::OK, Some(wanted)));
        assert_eq!(reply.headers["vary"], "accept-encoding");
        assert!(reply.body.len() * 10 < plain.body.len(), "{} of {}", reply.body.len(), plain.body.len());
        assert_eq!(inflated(Some(wanted), &reply.body), plain.body);
    }
    for (elements, accepts) in [(LONG, "identity"), (LONG, "br"), (LONG, "gzip;q=0"), (2, "gzip")] {
        let reply = ask(&server, elements, &[("accept-encoding", accepts)]).await;
        assert_eq!((reply.status, encoding(&reply.headers)), (StatusCode::OK, None), "{elements} {accepts}");
    }
}

/// The JSON length in front of binary tensors is that before compression, as Triton's clients
/// expect. Data that does not shrink is sent uncompressed.
#[tokio::test]
async fn binary_answers_keep_their_header_and_noise_stays_as_it_is() {
    let server = start().await;
    let mut state = 1_u32;
    let noise: Vec<u8> = (0..4 * LONG)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    for (data, wanted) in [(vec![0; 4 * LONG], Some("gzip")), (noise, None)] {
        let head = json!({"inputs": [{"name": "x", "shape": [LONG / 2, 2], "datatype": "FP32",
            "parameters": {"binary_data_size": 4 * LONG}}], "parameters": {"binary_data_output": true}})
        .to_string();
        let length = head.len().to_string();
        let headers = [("inference-header-content-length", length.as_str()), ("accept-encoding", "gzip")];
        let body = [head.as_bytes(), &data].concat();
        let reply = server.post("/v2/models/simple/infer", &headers, body).await;
        assert_eq!((reply.status, encoding(&reply.headers)), (StatusCode::OK, wanted));
        let plain = inflated(wanted, &reply.body);
        let json_length: usize = reply.headers["inference-header-content-length"].to_str().unwrap().parse().unwrap();
        assert_eq!(plain[json_length..], data);
    }
}

#[tokio::test]
async fn there_is_a_bound_below_which_nothing_is_compressed() {
    let server = scripted(ServerConfig { compress_above: usize::MAX, ..config() }).await.0;
    assert_eq!(encoding(&ask(&server, LONG, &[("accept-encoding", "gzip")]).await.headers), None);
}

fn long_request() -> ModelInferRequest {
    let mut request = infer_request("simple", "");
    request.inputs[0].shape = vec![LONG as i64 / 2, 2];
    request.raw_input_contents = vec![vec![0; 4 * LONG].into()];
    request
}

/// Returns the response headers, and the messages with their compression flags.
async fn call(server: &Running, method: &str, headers: &[(&str, &str)]) -> (HeaderMap, Vec<(u8, Bytes)>) {
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let message = long_request().encode_to_vec();
    let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let url = format!("http://{}/inference.GRPCInferenceService/{method}", server.addresses.grpc.unwrap());
    let mut request = Request::post(url).header("content-type", "application/grpc");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = client.request(request.body(Full::new(framed.into())).unwrap()).await.unwrap();
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    let (mut rest, mut messages) = (body.to_bytes(), Vec::new());
    while rest.has_remaining() {
        let (flag, length) = (rest.get_u8(), rest.get_u32() as usize);
        messages.push((flag, rest.split_to(length)));
    }
    (head.headers, messages)
}

#[tokio::test]
async fn grpc_answers_are_compressed_as_the_call_is() {
    let server = start().await;
    let all = "identity, deflate, gzip";
    for method in ["ModelInfer", "ModelStreamInfer"] {
        // Every client accepts compression; only a compressed call requests it.
        for headers in [vec![("grpc-accept-encoding", all)], vec![("grpc-encoding", "gzip")]] {
            let (head, messages) = call(&server, method, &headers).await;
            assert!(!head.contains_key("grpc-encoding") && messages[0].0 == 0, "{method} {headers:?}");
        }
        for wanted in ["gzip", "deflate"] {
            let (head, messages) =
                call(&server, method, &[("grpc-encoding", wanted), ("grpc-accept-encoding", all)]).await;
            assert_eq!(head["grpc-encoding"], wanted);
            let (flag, message) = &messages[0];
            assert!(*flag == 1 && message.len() < LONG / 10, "{method}: {} bytes", message.len());
            let plain = inflated(Some(wanted), message);
            let answer = match method {
                "ModelInfer" => ModelInferResponse::decode(&plain[..]).unwrap(),
                _ => ModelStreamInferResponse::decode(&plain[..]).unwrap().infer_response.unwrap(),
            };
            assert_eq!(answer.raw_output_contents[0], vec![0; 4 * LONG]);
        }
    }
    let client = GrpcInferenceServiceClient::new(server.channel().await);
    let mut client = client.send_compressed(CompressionEncoding::Gzip).accept_compressed(CompressionEncoding::Gzip);
    let answer = client.model_infer(long_request()).await.unwrap().into_inner();
    assert_eq!(answer.raw_output_contents[0], vec![0; 4 * LONG]);
    let short = client.model_infer(infer_request("simple", "")).await.unwrap().into_inner();
    assert_eq!(short.raw_output_contents[0].len(), 8, "short ones are not compressed, and say so");
}
