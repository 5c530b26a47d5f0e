//! Clients with small requests beside clients with large ones.

use crate::memory::held;
use crate::scripted::Event;
use crate::support::{PATIENCE, config, scripted};
use hyper::StatusCode;
use ripieno_server::ServerConfig;
use serde_json::json;
use std::sync::mpsc::channel;
use tokio::runtime::Builder;

/// Long JSON is decoded outside of the one thread that serves all connections. Here a test keeps
/// the decoding thread busy, so that long requests wait while short ones are answered.
#[tokio::test]
async fn short_requests_do_not_wait_for_the_decoding_of_long_json() {
    let connections =
        Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
    let (release, gate) = channel::<()>();
    let (begun, taken) = channel();
    connections.spawn_blocking(move || {
        begun.send(()).unwrap();
        let _ = gate.recv();
    });
    taken.recv().unwrap();
    let (server, _backend, mut events) =
        scripted(ServerConfig { connections_on: vec![connections.handle().clone()], ..config() }).await;
    let infer = |elements: usize| {
        let input = json!({"name": "x", "shape": [elements / 2, 2], "datatype": "FP32", "data": vec![1.5; elements]});
        json!({"inputs": [input]})
    };
    let (url, long) = (server.url("/v2/models/stuck/infer"), infer(60_000).to_string());
    let body = long.len();
    let waiting = tokio::spawn(async move {
        let request = hyper::Request::post(url).body(http_body_util::Full::new(long.into())).unwrap();
        crate::support::send(request).await
    });
    // The body, and the memory reserved for decoding it.
    while held(&server).await < 2 * body {}
    for _ in 0..8 {
        let light = tokio::time::timeout(PATIENCE, server.infer("simple", &infer(2))).await.unwrap();
        assert_eq!(light.status, StatusCode::OK);
    }
    assert!(events.try_recv().is_err(), "the long request was decoded where connections are served");
    release.send(()).unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    waiting.abort();
    connections.shutdown_background();
}
