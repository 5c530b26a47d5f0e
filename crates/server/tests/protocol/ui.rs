//! The page at /ui on the metrics port.

use crate::live::{body, serve, start_with};
use crate::support::{Reply, Running, config, send};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ripieno_repository::registry::{ModelState, UNLOADED};
use ripieno_server::ServerConfig;
use serde_json::json;
use std::time::Duration;

async fn page(server: &Running, path: &str) -> Reply {
    let url = format!("http://{}{path}", server.addresses.metrics.unwrap());
    send(Request::get(url).body(Full::<Bytes>::default()).unwrap()).await
}

async fn text(server: &Running, path: &str) -> String {
    let reply = page(server, path).await;
    assert_eq!(reply.status, StatusCode::OK, "{path}");
    String::from_utf8(reply.body.to_vec()).unwrap()
}

#[tokio::test]
async fn every_view_is_whole_html_that_loads_nothing_from_elsewhere() {
    let server = start_with(config()).await;
    for rows in [1, 3, 9] {
        assert_eq!(server.infer("quick", &body(rows, 0)).await.status, StatusCode::OK);
    }
    for path in ["/ui", "/ui/devices?span=0.5", "/ui/model?name=quick", "/ui/requests", "/ui/requests?id=none"] {
        let reply = page(&server, path).await;
        // The name of SVG is no address to load from.
        let html = String::from_utf8(reply.body.to_vec()).unwrap().replace("http://www.w3.org/2000/svg", "");
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>"), "{path}");
        assert!(!html.contains("http://") && !html.contains("https://"), "{path}: {html}");
        let policy = reply.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
    }
    for (path, kind) in [("/ui/style.css", "text/css"), ("/ui/script.js", "text/javascript")] {
        let reply = page(&server, path).await;
        assert!(reply.headers["content-type"].to_str().unwrap().starts_with(kind));
    }
    assert_eq!(page(&server, "/ui/other").await.status, StatusCode::NOT_FOUND);
    let port_alone = page(&server, "/").await;
    assert_eq!(
        (port_alone.status, &port_alone.headers["location"]),
        (StatusCode::TEMPORARY_REDIRECT, &"/ui".parse().unwrap())
    );
}

#[tokio::test]
async fn loads_that_failed_are_shown_with_their_reason() {
    let server = start_with(config()).await;
    assert!(!text(&server, "/ui").await.contains("Loads that failed"));
    server.registry.set("gone", "1", ModelState::Unavailable, UNLOADED);
    assert!(!text(&server, "/ui").await.contains("Loads that failed"), "an unload is no failure");
    server.registry.set("broken", "2", ModelState::Unavailable, "no <ONNX> model");
    let html = text(&server, "/ui").await;
    assert!(html.contains("Loads that failed") && html.contains("broken 2"), "{html}");
    assert!(html.contains("no &lt;ONNX&gt; model"), "{html}");
    // A version that failed beside one that serves.
    server.registry.set("quick", "9", ModelState::Unavailable, "half a file");
    let html = text(&server, "/ui").await;
    assert!(html.contains("quick serves as it was loaded before"), "{html}");
}

#[tokio::test]
async fn a_request_is_found_by_its_id_and_its_batch_shows_it() {
    let server = start_with(config()).await;
    let mut request = body(2, 0);
    request["id"] = json!("order <17>");
    assert_eq!(server.infer("quick", &request).await.status, StatusCode::OK);
    assert_eq!(server.infer("quick", &body(1, 0)).await.status, StatusCode::OK);
    let html = text(&server, "/ui/requests?id=order+%3C17%3E").await;
    assert!(html.contains("quick, 2 rows") && html.contains("in time"), "{html}");
    assert!(html.contains("value=\"order &lt;17&gt;\""), "what a client sends is text: {html}");
    let task = html.split("href=\"").find(|part| part.starts_with("/ui/task?")).unwrap();
    let task = task.split('"').next().unwrap().replace("&amp;", "&");
    let html = text(&server, &task).await;
    assert!(html.contains("2 rows of 1 request on device 0"), "{html}");
    let html = text(&server, "/ui/requests?id=another").await;
    assert!(html.contains("No such request"), "{html}");
}

#[tokio::test]
async fn late_requests_stand_there_with_their_cause() {
    let server = start_with(config()).await;
    // A microsecond is less than any run takes.
    assert_ne!(server.infer("quick", &body(4, 1)).await.status, StatusCode::OK);
    let html = text(&server, "/ui/requests").await;
    assert!(html.contains("deadline shorter than a lone run") && html.contains("quick"), "{html}");
    assert!(html.contains("/ui/requests?cause=short_deadline") && !html.contains("Late requests"), "{html}");
    let html = text(&server, "/ui/requests?cause=short_deadline&model=quick").await;
    assert!(html.contains("Without quick") && html.contains("Late requests") && html.contains(" UTC"), "{html}");
    let html = text(&server, "/ui/requests?cause=overload").await;
    assert!(html.contains("No such request"), "{html}");
}

#[tokio::test]
async fn an_open_view_is_sent_anew_and_too_many_are_refused() {
    let server = start_with(config()).await;
    let url = format!("http://{}/ui/live", server.addresses.metrics.unwrap());
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let open = || client.request(Request::get(&url).body(Full::default()).unwrap());
    let mut first = open().await.unwrap().into_body();
    for _ in 0..2 {
        let event = first.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(event.starts_with(b"data: <div id=\"health\">") && event.ends_with(b"\n\n"), "{event:?}");
    }
    let mut streams = Vec::new();
    for _ in 0..63 {
        streams.push(open().await.unwrap());
    }
    assert!(streams.iter().all(|stream| stream.status() == StatusCode::OK));
    assert_eq!(open().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    drop(streams);
    // Their places are free once the server has seen them go.
    let accepted = async { while open().await.unwrap().status() != StatusCode::OK {} };
    tokio::time::timeout(Duration::from_secs(10), accepted).await.unwrap();
}

#[tokio::test]
async fn a_model_is_tried_on_its_page() {
    let server = start_with(config()).await;
    let html = text(&server, "/ui/model?name=quick").await;
    let proposed = html.split("</textarea>").next().unwrap().split("<textarea").nth(1).unwrap();
    let proposed = proposed.split_once('>').unwrap().1.replace("&quot;", "\"");
    let tried = async |request: &str| {
        let url = format!("http://{}/ui/try", server.addresses.metrics.unwrap());
        let form = form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("name", "quick"), ("version", ""), ("request", request)])
            .finish();
        let reply = send(Request::post(url).body(Full::<Bytes>::from(form)).unwrap()).await;
        (reply.status, String::from_utf8(reply.body.to_vec()).unwrap())
    };
    let (status, html) = tried(&proposed).await;
    assert_eq!(status, StatusCode::OK, "{html}");
    assert!(html.contains("Answered after") && html.contains("&quot;outputs&quot;"), "{proposed}: {html}");
    let life = html.split("href=\"").find(|part| part.starts_with("/ui/requests?id=try-")).unwrap();
    let life = text(&server, life.split('"').next().unwrap()).await;
    assert!(life.contains("quick, 1 row,") && life.contains("in time"), "{life}");
    let (_, html) = tried("<no JSON").await;
    assert!(html.contains("400 after") && html.contains("&lt;no JSON") && !html.contains("<no JSON"), "{html}");
}

#[tokio::test]
async fn programs_learn_what_is_wrong_on_both_ports() {
    let server = start_with(config()).await;
    let status = |at: std::net::SocketAddr| {
        let url = format!("http://{at}/v2/health/status");
        async move { send(Request::get(url).body(Full::<Bytes>::default()).unwrap()).await.json() }
    };
    let until = async |name: &str| {
        for address in [server.addresses.metrics.unwrap(), server.addresses.http.unwrap()] {
            let told = async {
                loop {
                    let status = status(address).await;
                    if status["problems"].as_array().unwrap().iter().any(|problem| problem["name"] == name) {
                        return status;
                    }
                }
            };
            let status = tokio::time::timeout(Duration::from_secs(30), told).await.unwrap();
            assert_eq!(status["healthy"], json!(false));
        }
    };
    assert_eq!(status(server.addresses.http.unwrap()).await, json!({ "healthy": true, "problems": [] }));
    server.registry.set("broken", "2", ModelState::Unavailable, "no model");
    until("load_failed").await;
    let lost = server.post("/v2/devices/0/lose", &[], "").await;
    assert_eq!(lost.status, StatusCode::OK);
    until("no_device").await;
}

/// A version that comes back after a release has counters of its own, which begin at 0.
#[tokio::test]
async fn counters_that_begin_anew_stop_neither_page_nor_status() {
    let server = start_with(config()).await;
    let slow = server.registry.get("slow", "").unwrap().id.unwrap();
    let counted = async {
        while !text(&server, "/ui").await.contains("100 %") {
            assert_eq!(server.infer("quick", &body(1, 0)).await.status, StatusCode::OK);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), counted).await.unwrap();
    serve(&server.registry, "quick", slow);
    server.registry.set("broken", "2", ModelState::Unavailable, "no model");
    let told = async {
        while !text(&server, "/v2/health/status").await.contains("broken cannot be served: no model") {
            assert_eq!(page(&server, "/ui").await.status, StatusCode::OK);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), told).await.unwrap();
}

#[tokio::test]
async fn the_page_can_be_switched_off() {
    let server = start_with(ServerConfig { ui: false, ..config() }).await;
    assert_eq!(page(&server, "/ui").await.status, StatusCode::NOT_FOUND);
    assert_eq!(page(&server, "/metrics").await.status, StatusCode::OK);
}

#[tokio::test]
async fn who_may_not_read_the_metrics_may_not_see_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    let tokens = "[[token]]\nname = \"viewer\"\ntoken = \"viewer-token-0123456789abcdef\"\nscopes = [\"metrics\"]\n\
                  [[token]]\nname = \"client\"\ntoken = \"client-token-0123456789abcdef\"\nscopes = [\"infer\"]\n";
    std::fs::write(&file, tokens).unwrap();
    let access = ripieno_server::AccessConfig {
        tokens: Some(ripieno_server::TokenSource::File(file)),
        ..ripieno_server::AccessConfig::default()
    };
    let server = start_with(ServerConfig { access, ..config() }).await;
    let url = format!("http://{}/ui", server.addresses.metrics.unwrap());
    let with = |authorization: &str| {
        let request = Request::get(&url).header("authorization", authorization);
        send(request.body(Full::<Bytes>::default()).unwrap())
    };
    // The password of basic authentication is the token.
    let basic = |token: &str| format!("Basic {}", base64(format!("any:{token}").as_bytes()));
    assert_eq!(with(&basic("viewer-token-0123456789abcdef")).await.status, StatusCode::OK);
    assert_eq!(with("Bearer viewer-token-0123456789abcdef").await.status, StatusCode::OK);
    assert_eq!(with(&basic("client-token-0123456789abcdef")).await.status, StatusCode::FORBIDDEN);
    let refused = page(&server, "/ui").await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(refused.headers["www-authenticate"].to_str().unwrap().starts_with("Basic"));
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
