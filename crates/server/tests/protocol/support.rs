//! A server on free ports, and a client for it.

use crate::scripted::{Event, Scripted, Shelf, registry};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ripieno_executor::{CpuEngine, CpuOptions};
use ripieno_policies::build;
use ripieno_repository::registry::{ModelRegistry, Repository};
use ripieno_repository::{LiveRepository, LoadTarget, ModelReport};
use ripieno_runtime::{Engine, EngineConfig};
use ripieno_sched::{Limits, Setup};
use ripieno_server::{Addresses, Backend, Server, ServerConfig};
use ripieno_wire::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

/// Timeout that only ends a test that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Running {
    pub(crate) addresses: Addresses,
    pub(crate) registry: Arc<ModelRegistry>,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) done: JoinHandle<bool>,
}

pub(crate) fn config() -> ServerConfig {
    let free = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (max_body_bytes, load_overrides) = (1 << 20, 1 << 20);
    ServerConfig { http: free, grpc: free, metrics: free, max_body_bytes, load_overrides, ..ServerConfig::default() }
}

pub(crate) async fn run(
    config: ServerConfig,
    backend: Arc<dyn Backend>,
    registry: Arc<ModelRegistry>,
    repository: Arc<dyn Repository>,
) -> Running {
    let server = Server::bind(config, backend, registry.clone(), repository).await.unwrap();
    let addresses = server.addresses();
    let (stop, stopped) = oneshot::channel::<()>();
    let done = tokio::spawn(server.run(async { drop(stopped.await) }));
    Running { addresses, registry, stop: Some(stop), done }
}

pub(crate) async fn scripted(config: ServerConfig) -> (Running, Arc<Scripted>, mpsc::Receiver<Event>) {
    let (backend, events) = Scripted::new();
    let registry = registry();
    let repository = Arc::new(Shelf(registry.clone()));
    (run(config, backend.clone(), registry, repository).await, backend, events)
}

/// Starts a server for the models in this folder on the built-in engine; returns the load reports.
pub(crate) async fn serving(config: ServerConfig, folder: &Path) -> (Running, Vec<ModelReport>) {
    let limits = Limits { requests: 256, models: 4, depth: 2, batch: 64, ..Limits::ONE };
    let setup = || Setup { models: vec![], devices: 1, limits };
    let scheduler = build("eager", &setup(), &Default::default()).unwrap();
    let executor = Arc::new(CpuEngine::new(CpuOptions::default()));
    let engine = Engine::start(EngineConfig::new(scheduler, setup(), vec![executor.clone()])).unwrap();
    let registry = Arc::new(ModelRegistry::new());
    let target = LoadTarget { measure_for: Duration::ZERO, ..LoadTarget::new(executor) };
    let host = Arc::new(engine.clone());
    let repository = LiveRepository::new(folder.to_owned(), target, registry.clone(), host, Arc::new(|_, _, _| {}));
    let reports = repository.load_all().unwrap();
    (run(config, Arc::new(engine), registry, Arc::new(repository)).await, reports)
}

/// Starts a server with the scripted backend and default limits.
pub(crate) async fn start() -> Running {
    scripted(config()).await.0
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn error(&self) -> String {
        let error = &self.json()["error"];
        // Text paths use OpenAI's format.
        error.as_str().or(error["message"].as_str()).expect("every error has a body").to_owned()
    }
}

pub(crate) async fn send(request: Request<Full<Bytes>>) -> Reply {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let answer = tokio::time::timeout(PATIENCE, client.request(request)).await.unwrap().unwrap();
    let (head, body) = answer.into_parts();
    Reply { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
}

impl Running {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addresses.http.unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        send(Request::get(self.url(path)).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        let mut request = Request::post(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        send(request.body(Full::new(body.into())).unwrap()).await
    }

    pub(crate) async fn infer(&self, model: &str, body: &Value) -> Reply {
        self.post(&format!("/v2/models/{model}/infer"), &[], body.to_string()).await
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.addresses.grpc.unwrap())).unwrap();
        endpoint.connect().await.unwrap()
    }

    pub(crate) async fn grpc(&self) -> GrpcInferenceServiceClient<Channel> {
        GrpcInferenceServiceClient::new(self.channel().await)
    }
}
