//! Every endpoint with every credential, over the wire.

use crate::support::{PATIENCE, Reply, Running, config, scripted, send};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ripieno_server::{AccessConfig, ServerConfig, TokenSource};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::Code;
use tracing_subscriber::fmt::MakeWriter;

/// A temporary file, removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(content: &str) -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ripieno-access-{}-{number}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Scratch(path)
    }

    pub(crate) fn write(&self, content: &str) {
        std::fs::write(&self.0, content).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Credentials of a client, and their scopes; `None` if they are invalid.
const CREDENTIALS: [(&str, Option<&[&str]>); 7] = [
    ("", None),
    ("a-token-that-was-not-given", None),
    ("the-token-that-expired-long-ago", None),
    ("the-token-for-inference", Some(&["infer"])),
    ("the-token-for-administration", Some(&["admin"])),
    ("the-token-for-metrics", Some(&["metrics"])),
    ("the-token-for-everything", Some(&["infer", "admin", "metrics"])),
];

fn tokens() -> String {
    let mut text = String::new();
    for (token, scopes) in CREDENTIALS.iter().skip(2) {
        let scopes = scopes.unwrap_or(&["infer", "admin", "metrics"]);
        let expires = if token.contains("expired") { "2001-01-01" } else { "9999-01-01" };
        text += &format!(
            "[[token]]\nname = \"{token} \u{2713}\"\ntoken = \"{token}\"\nscopes = {scopes:?}\nexpires = {expires}\n"
        );
    }
    text
}

async fn guarded(file: &Scratch, guard_health: bool) -> Running {
    let tokens = Some(TokenSource::File(file.0.clone()));
    let reload_every = Duration::from_millis(5);
    let access = AccessConfig { tokens, guard_health, reload_every, ..AccessConfig::default() };
    scripted(ServerConfig { access, ..config() }).await.0
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Unknown,
    Forbidden,
    Passed,
}

/// `need` holds the scopes of which one suffices; an empty list needs no credentials.
fn expected(need: &[&str], scopes: Option<&[&str]>) -> Outcome {
    match scopes {
        _ if need.is_empty() => Outcome::Passed,
        None => Outcome::Unknown,
        Some(scopes) if scopes.iter().any(|scope| need.contains(scope)) => Outcome::Passed,
        Some(_) => Outcome::Forbidden,
    }
}

const DESCRIBE: &[&str] = &["infer", "admin"];
const ANY: &[&str] = &["infer", "admin", "metrics"];

/// HTTP paths; those under `/metrics` are on the metrics port.
const PATHS: [(&str, &str, &[&str]); 35] = [
    ("GET", "/v2/health/live", &[]),
    ("GET", "/v2/health/ready", &[]),
    ("GET", "/v2", DESCRIBE),
    ("GET", "/v2/models/simple", DESCRIBE),
    ("GET", "/v2/models/simple/ready", DESCRIBE),
    ("GET", "/v2/models/simple/config", DESCRIBE),
    ("GET", "/v2/models/simple/stats", DESCRIBE),
    ("GET", "/v2/models/simple/versions/1/stats", DESCRIBE),
    ("GET", "/v2/models/stats", DESCRIBE),
    ("POST", "/v2/repository/index", DESCRIBE),
    ("GET", "/v2/trace/setting", DESCRIBE),
    ("POST", "/v2/models/simple/trace/setting", DESCRIBE),
    ("POST", "/v2/logging", DESCRIBE),
    ("GET", "/v2/systemsharedmemory/status", &["infer"]),
    ("POST", "/v2/systemsharedmemory/region/r/register", &["infer"]),
    ("POST", "/v2/systemsharedmemory/unregister", &["infer"]),
    ("POST", "/v2/cudasharedmemory/region/r/unregister", &["infer"]),
    ("POST", "/v2/models/simple/infer", &["infer"]),
    ("POST", "/v2/models/simple/versions/1/infer", &["infer"]),
    ("POST", "/v2/models/simple/generate", &["infer"]),
    ("POST", "/v2/models/counting/generate_stream", &["infer"]),
    ("POST", "/v2/repository/models/late/load", &["admin"]),
    ("POST", "/v2/repository/models/late/unload", &["admin"]),
    ("GET", "/v1/models", DESCRIBE),
    ("POST", "/v1/embeddings", &["infer"]),
    ("POST", "/v1/classify", &["infer"]),
    ("POST", "/v1/rerank", &["infer"]),
    ("POST", "/embed", &["infer"]),
    ("POST", "/rerank", &["infer"]),
    ("POST", "/predict", &["infer"]),
    ("GET", "/v2/devices", DESCRIBE),
    ("POST", "/v2/devices/add", &["admin"]),
    ("POST", "/v2/devices/0/remove", &["admin"]),
    ("POST", "/v2/devices/0/lose", &["admin"]),
    ("GET", "/metrics", &["metrics"]),
];

async fn ask(server: &Running, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let address = if path == "/metrics" { server.addresses.metrics } else { server.addresses.http };
    let mut request = Request::builder().method(method).uri(format!("http://{}{path}", address.unwrap()));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(request.body(Full::default()).unwrap()).await
}

fn outcome(reply: &Reply) -> Outcome {
    match reply.status {
        StatusCode::UNAUTHORIZED => {
            assert_eq!(reply.headers["www-authenticate"], "Bearer realm=\"ripieno\"");
            assert!(reply.error().contains("token"));
            Outcome::Unknown
        }
        StatusCode::FORBIDDEN => {
            assert!(reply.error().starts_with("the token lacks the scope for this call: "));
            Outcome::Forbidden
        }
        _ => Outcome::Passed,
    }
}

fn headers_of(token: &str) -> Vec<Vec<(&'static str, String)>> {
    if token.is_empty() {
        return vec![Vec::new()];
    }
    vec![vec![("authorization", format!("Bearer {token}"))], vec![("x-api-key", token.to_owned())]]
}

#[tokio::test]
async fn every_path_with_every_credential() {
    let file = Scratch::new(&tokens());
    for guard_health in [false, true] {
        let server = guarded(&file, guard_health).await;
        for (method, path, need) in PATHS {
            let need = if need.is_empty() && guard_health { ANY } else { need };
            for (token, scopes) in CREDENTIALS {
                for headers in headers_of(token) {
                    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
                    let reply = ask(&server, method, path, &headers).await;
                    assert_eq!(outcome(&reply), expected(need, scopes), "{method} {path} {headers:?}");
                }
            }
        }
    }
}

/// gRPC calls that need another permission than reading metadata.
const CALLS: [(&str, &[&str]); 14] = [
    ("inference.GRPCInferenceService/ServerLive", &[]),
    ("inference.GRPCInferenceService/ServerReady", &[]),
    ("grpc.health.v1.Health/Check", &[]),
    ("grpc.health.v1.Health/Watch", &[]),
    ("inference.GRPCInferenceService/ModelInfer", &["infer"]),
    ("inference.GRPCInferenceService/ModelStreamInfer", &["infer"]),
    ("inference.GRPCInferenceService/SystemSharedMemoryStatus", &["infer"]),
    ("inference.GRPCInferenceService/SystemSharedMemoryRegister", &["infer"]),
    ("inference.GRPCInferenceService/SystemSharedMemoryUnregister", &["infer"]),
    ("inference.GRPCInferenceService/CudaSharedMemoryStatus", &["infer"]),
    ("inference.GRPCInferenceService/CudaSharedMemoryRegister", &["infer"]),
    ("inference.GRPCInferenceService/CudaSharedMemoryUnregister", &["infer"]),
    ("inference.GRPCInferenceService/RepositoryModelLoad", &["admin"]),
    ("inference.GRPCInferenceService/RepositoryModelUnload", &["admin"]),
];

/// All calls of the protocol, read from the generated code, so that a new call must be listed
/// above.
fn calls() -> BTreeSet<String> {
    let generated = concat!(
        include_str!("../../../wire/src/generated/inference.rs"),
        include_str!("../../../wire/src/generated/grpc.health.v1.rs")
    );
    let paths = generated.split('"').filter_map(|text| text.strip_prefix('/'));
    paths
        .filter(|path| path.split('/').count() == 2 && !path.contains(char::is_whitespace))
        .map(str::to_owned)
        .collect()
}

/// Returns the gRPC status of a call with an empty message.
async fn call(server: &Running, path: &str, headers: &[(&'static str, String)]) -> Code {
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let mut request = Request::post(format!("http://{}/{path}", server.addresses.grpc.unwrap()));
    request = request.header("content-type", "application/grpc").header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(Full::new(Bytes::from_static(&[0; 5]))).unwrap();
    let answer = tokio::time::timeout(PATIENCE, client.request(request)).await.unwrap().unwrap();
    let code = |headers: &hyper::HeaderMap| Some(Code::from_bytes(headers.get("grpc-status")?.as_bytes()));
    if let Some(code) = code(answer.headers()) {
        return code;
    }
    if path.ends_with("Watch") {
        // The call continues, so it was admitted.
        return Code::Ok;
    }
    let body = tokio::time::timeout(PATIENCE, answer.into_body().collect()).await.unwrap().unwrap();
    body.trailers().and_then(code).expect("a call ends with a status")
}

#[tokio::test]
async fn every_call_with_every_credential() {
    let file = Scratch::new(&tokens());
    let calls = calls();
    assert!(calls.len() >= 22 && CALLS.iter().all(|(path, _)| calls.contains(*path)), "{calls:?}");
    for guard_health in [false, true] {
        let server = guarded(&file, guard_health).await;
        for path in &calls {
            let need = CALLS.iter().find(|(listed, _)| listed == path).map_or(DESCRIBE, |(_, need)| need);
            let need = if need.is_empty() && guard_health { ANY } else { need };
            for (token, scopes) in CREDENTIALS {
                for headers in headers_of(token) {
                    let outcome = match call(&server, path, &headers).await {
                        Code::Unauthenticated => Outcome::Unknown,
                        Code::PermissionDenied => Outcome::Forbidden,
                        _ => Outcome::Passed,
                    };
                    assert_eq!(outcome, expected(need, scopes), "{path} {headers:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn without_a_token_health_does_not_tell_which_models_there_are() {
    use ripieno_wire::proto::health::{HealthCheckRequest, health_client::HealthClient};
    let file = Scratch::new(&tokens());
    let server = guarded(&file, false).await;
    let mut client = HealthClient::new(server.channel().await);
    for service in ["simple", "absent"] {
        let mut call = tonic::Request::new(HealthCheckRequest { service: service.into() });
        assert_eq!(client.check(call).await.unwrap_err().code(), Code::Unauthenticated);
        let watched = client.watch(HealthCheckRequest { service: service.into() }).await;
        assert_eq!(watched.unwrap_err().code(), Code::Unauthenticated);
        call = tonic::Request::new(HealthCheckRequest { service: service.into() });
        call.metadata_mut().insert("x-api-key", "the-token-for-metrics".parse().unwrap());
        assert_eq!(client.check(call).await.is_ok(), service == "simple");
        call = tonic::Request::new(HealthCheckRequest { service: service.into() });
        call.metadata_mut().insert("authorization", "Bearer the-token-for-inference".parse().unwrap());
        assert_eq!(client.check(call).await.is_ok(), service == "simple");
    }
    assert!(client.check(HealthCheckRequest::default()).await.is_ok());
}

#[tokio::test]
async fn a_token_that_is_taken_back_stops_working_and_a_broken_file_changes_nothing() {
    let file = Scratch::new(&tokens());
    let server = guarded(&file, false).await;
    let ask = async |token: &str| {
        let bearer = format!("Bearer {token}");
        ask(&server, "GET", "/v2", &[("authorization", &bearer)]).await.status
    };
    assert_eq!(ask("the-token-for-inference").await, StatusCode::OK);
    file.write("[[token]]\nname = \"new\"\ntoken = \"the-token-of-tomorrow\"\nscopes = [\"infer\"]\n");
    while ask("the-token-of-tomorrow").await != StatusCode::OK {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask("the-token-for-inference").await, StatusCode::UNAUTHORIZED);
    file.write("[[token]]\nname = \"half");
    for _ in 0..20 {
        assert_eq!(ask("the-token-of-tomorrow").await, StatusCode::OK);
    }
    std::fs::remove_file(&file.0).unwrap();
    assert_eq!(ask("the-token-of-tomorrow").await, StatusCode::OK);
}

#[tokio::test]
async fn a_web_page_cannot_unload_a_model_of_a_loopback_server() {
    let server = scripted(config()).await.0;
    let address = server.addresses.http.unwrap().to_string();
    let own = format!("http://{address}");
    let attempts: [&[(&str, &str)]; 5] = [
        &[("host", "evil.example")],
        &[("host", "evil.example:8000"), ("origin", "http://evil.example:8000")],
        &[("host", &address), ("origin", "http://evil.example")],
        &[("host", &address), ("origin", "null"), ("content-type", "text/plain")],
        &[("host", "localhost.evil.example")],
    ];
    for headers in attempts {
        for call in ["load", "unload"] {
            let reply = server.post(&format!("/v2/repository/models/simple/{call}"), headers, "").await;
            assert_eq!(reply.status, StatusCode::FORBIDDEN, "{headers:?}: {:?}", reply.body);
            assert!(reply.error().contains("--allow-"), "{}", reply.error());
        }
        let device = server.post("/v2/devices/add", headers, "").await;
        assert_eq!(device.status, StatusCode::FORBIDDEN, "{headers:?}");
        assert!(!device.error().contains("model"), "not what was asked for: {}", device.error());
    }
    assert_eq!(server.get("/v2/models/simple/ready").await.status, StatusCode::OK);
    let preflight = Request::builder().method(Method::OPTIONS).uri(server.url("/v2/repository/models/simple/unload"));
    let preflight = preflight.header("origin", "http://evil.example").header("access-control-request-method", "POST");
    let preflight = send(preflight.body(Full::default()).unwrap()).await;
    assert_eq!(preflight.status, StatusCode::METHOD_NOT_ALLOWED);
    let infer = server.post("/v2/models/simple/infer", &[("origin", "http://evil.example")], "").await;
    for reply in [preflight, infer] {
        assert!(
            !reply.headers.keys().any(|name| name.as_str().starts_with("access-control-")),
            "no page reads answers"
        );
    }
    let foreign = [("origin", "http://evil.example".to_owned())];
    let unload = "inference.GRPCInferenceService/RepositoryModelUnload";
    assert_eq!(call(&server, unload, &foreign).await, Code::PermissionDenied);
    assert_ne!(call(&server, unload, &[]).await, Code::PermissionDenied);
    let same = server.post("/v2/repository/models/simple/unload", &[("origin", &own)], "").await;
    assert_eq!(same.status, StatusCode::OK, "its own pages and no page at all");
    assert_eq!(server.post("/v2/repository/models/late/load", &[], LOAD).await.status, StatusCode::OK);
}

const LOAD: &str = r#"{"parameters":{"config":"{}"}}"#;

#[tokio::test]
async fn names_and_pages_that_the_operator_allows_pass() {
    let access = AccessConfig {
        allowed_hosts: vec!["models.example".to_owned()],
        allowed_origins: vec!["https://ops.example".to_owned()],
        ..AccessConfig::default()
    };
    let server = scripted(ServerConfig { access, ..config() }).await.0;
    let headers = [("host", "models.example:8000"), ("origin", "https://ops.example")];
    assert_eq!(server.post("/v2/repository/models/late/load", &headers, LOAD).await.status, StatusCode::OK);
}

/// Captures everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[tokio::test]
async fn no_secret_is_logged_even_when_everything_is() {
    let log = Log::default();
    // While a process has one subscriber, a log line that another test's thread reaches first
    // consults only that thread's subscriber. There is none, so the line is then disabled for all.
    // A second subscriber prevents this.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
    let _guard = tracing::subscriber::set_default(subscriber.with_writer(log.clone()).finish());
    let file = Scratch::new(&tokens().replace(" \u{2713}", ".name"));
    let server = guarded(&file, false).await;
    for (token, _) in CREDENTIALS {
        for headers in headers_of(token) {
            let borrowed: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            ask(&server, "GET", "/v2/models/absent", &borrowed).await;
            call(&server, "inference.GRPCInferenceService/ModelMetadata", &headers).await;
        }
    }
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains("absent"), "the log is on");
    for (token, _) in CREDENTIALS.iter().skip(1) {
        assert!(!log.replace(&format!("{token}.name"), "").contains(token), "{token} is in the log");
    }
}
