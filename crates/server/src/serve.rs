//! Listening, accepting, and going down in order.
//!
//! One accept loop for all three ports, on hyper itself: connections are counted, their heads bounded in size and time,
//! and every one of them hears of the shutdown, which the ready-made servers offer only in part.

use crate::access::{self, AccessError, Door, Need};
use crate::backend::Backend;
use crate::config::ServerConfig;
use crate::registry::{Registry, Repository};
use crate::state::State;
use crate::{grpc, http, metrics, signals};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The head of an HTTP/2 request: model names and a few headers need far less.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// What hyper may read ahead of an HTTP/1 body; smaller buffers cut tensors into many pieces.
const READ_BUFFER_BYTES: usize = 512 << 10;
/// HTTP/2 flow control: a tensor of a few MB should not wait for window updates.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// After a failed accept, typically for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The front end cannot start.
#[derive(Debug, Error)]
pub enum BindError {
    /// An address cannot be had.
    #[error(
        "cannot listen on {address} for {purpose}: {source}; is another server running there? choose another with {option}"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What it is for.
        purpose: &'static str,
        /// The option that sets it.
        option: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// Tokens or certificates cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Where a server listens; ports that were 0 are real here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// HTTP.
    pub http: Option<SocketAddr>,
    /// gRPC.
    pub grpc: Option<SocketAddr>,
    /// Metrics.
    pub metrics: Option<SocketAddr>,
}

/// A front end that listens; clients that connect wait until [`Server::run`].
pub struct Server {
    state: Arc<State>,
    http: Option<TcpListener>,
    grpc: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

impl Server {
    /// Listens on all configured addresses, or on none if one of them cannot be had.
    pub async fn bind(
        config: ServerConfig,
        backend: Arc<dyn Backend>,
        registry: Arc<Registry>,
        repository: Arc<dyn Repository>,
    ) -> Result<Server, BindError> {
        let http = listen(config.http, "HTTP", "--http").await?;
        let grpc = listen(config.grpc, "gRPC", "--grpc").await?;
        let metrics = listen(config.metrics, "metrics", "--metrics").await?;
        let state = Arc::new(State::new(config, backend, registry, repository)?);
        let server = Server { state, http, grpc, metrics };
        let Addresses { http, grpc, metrics } = server.addresses();
        server.state.access.announce(&[("HTTP", http), ("gRPC", grpc), ("metrics", metrics)]);
        Ok(server)
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        let address = |listener: &Option<TcpListener>| listener.as_ref().and_then(|l| l.local_addr().ok());
        Addresses { http: address(&self.http), grpc: address(&self.grpc), metrics: address(&self.metrics) }
    }

    /// Serves until `shutdown` is done; then takes no more connections, lets the calls in flight end, and returns. True if
    /// all of them ended within the drain timeout.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> bool {
        let state = self.state;
        let mut loops = JoinSet::new();
        loops.spawn(signals::keep_sampling(state.clone()));
        loops.spawn(access::keep_fresh(state.clone()));
        if let Some(listener) = self.http {
            let shared = state.clone();
            let service = service_fn(move |request| http::handle(shared.clone(), request));
            loops.spawn(accept(state.clone(), listener, false, service));
        }
        if let Some(listener) = self.grpc {
            let (shared, routes) = (state.clone(), grpc::routes(&state));
            let service = service_fn(move |request| grpc::handle(shared.clone(), routes.clone(), request));
            loops.spawn(accept(state.clone(), listener, false, service));
        }
        if let Some(listener) = self.metrics {
            let shared = state.clone();
            let service = service_fn(move |request| answer_metrics(shared.clone(), request));
            loops.spawn(accept(state.clone(), listener, true, service));
        }
        shutdown.await;
        state.begin_draining();
        let drained = async { while loops.join_next().await.is_some() {} };
        // What is left is aborted with the set; that withdraws its requests.
        tokio::time::timeout(state.config.drain_timeout, drained).await.is_ok()
    }
}

async fn listen(
    address: Option<SocketAddr>,
    purpose: &'static str,
    option: &'static str,
) -> Result<Option<TcpListener>, BindError> {
    let Some(address) = address else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    bound.map(Some).map_err(|source| BindError::Listen { address, purpose, option, source })
}

/// Accepts connections until the server drains, then waits for those that are open.
async fn accept<S, B>(state: Arc<State>, listener: TcpListener, is_metrics: bool, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Ok(bind) = listener.local_addr() else { return };
    let door = Door { bind, is_metrics };
    let places = Arc::new(Semaphore::new(state.config.max_connections.max(1)));
    let mut open = JoinSet::new();
    loop {
        let next = async {
            // The semaphore is never closed.
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            Some(_) = open.join_next() => continue,
            () = state.drained() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = serve_connection(state.clone(), stream, door, service.clone());
                open.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

async fn serve_connection<S, B>(state: Arc<State>, stream: TcpStream, door: Door, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    let greeted = tokio::select! {
        greeted = state.access.greet(door, stream, service, state.config.header_timeout) => greeted,
        () = state.drained() => return,
    };
    let Some((stream, service)) = greeted else { return };
    let builder = builder(&state.config);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = state.drained() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended badly: {error}");
    }
}

fn builder(config: &ServerConfig) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(config.header_timeout).max_buf_size(READ_BUFFER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.max_concurrent_streams)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .keep_alive_interval(Some(Duration::from_secs(60)));
    builder
}

async fn answer_metrics(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match (request.uri().path(), state.access.admit(Need::Metrics, &request)) {
        ("/metrics", Ok(_)) => (hyper::StatusCode::OK, metrics::render(&state)),
        ("/metrics", Err(problem)) => return Ok(http::refusal(&problem)),
        (other, _) => (hyper::StatusCode::NOT_FOUND, format!("'{other}' is not here; see /metrics\n")),
    };
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let text = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    answer.headers_mut().insert(hyper::header::CONTENT_TYPE, text);
    Ok(answer)
}
