//! Listening, accepting connections, and graceful shutdown.
//!
//! One accept loop per listener, directly on hyper: connections are limited in number, request
//! heads in size and time, and every connection is notified of the shutdown; ready-made servers
//! support only some of this. Limits per connection are in [`limits`](crate::limits).

use super::credentials_reload;
use super::threads::ConnectionThreads;
use crate::access::{AccessError, ListenerInfo, Permission};
use crate::backend::Backend;
use crate::config::ServerConfig;
use crate::limits::call::{AnswerBody, CallGuard};
use crate::limits::connection::{CONNECTION_WINDOW_BYTES, ClientConnection};
use crate::limits::slots::{ConnectionSlot, ConnectionSlots, NoSlot};
use crate::limits::socket::Socket;
use crate::observe::signals::SAMPLE_EVERY;
use crate::observe::starvation;
use crate::state::ServerState;
use crate::{
    observe::metrics, observe::recording, observe::telemetry, protocol::grpc, protocol::grpc::scaler, protocol::http,
    ui,
};
use bytes::Bytes;
use http_body_util::{Full, StreamBody};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::service::{Service, service_fn};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use ripieno_base::Nanos;
use ripieno_repository::registry::{ModelRegistry, Repository};
use ripieno_runtime::{DeviceSnapshot, DeviceState};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;

/// Maximum size of an HTTP/2 request head; model names and a few headers need far less.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Read-ahead buffer of hyper on an HTTP/1 connection, which no budget counts; smaller buffers
/// fragment tensors.
const READ_BUFFER_BYTES: usize = 128 << 10;
/// HTTP/2 flow-control window of a stream: the bytes that a client may send before they are read.
const STREAM_WINDOW_BYTES: u32 = 512 << 10;
/// Response bytes that hyper buffers before the client accepts them.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// Pause after a failed accept, which is typically caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Path of what is wrong, as on the HTTP port.
const STATUS: &str = "/v2/health/status";
/// Path of the last minutes, as on the HTTP port. Here it needs no more than the page, which shows
/// the same: the scheduler of a cluster has no other port.
const DUMP: &str = "/v2/recording/dump";
/// Time for the error responses of calls that are aborted at shutdown.
const DISMISS_GRACE: Duration = Duration::from_secs(1);

/// Error for a server that cannot start.
#[derive(Debug, Error)]
pub enum BindError {
    /// A listener cannot be opened.
    #[error(
        "cannot listen on {address} for {purpose}: {error}; is another server running there? choose another with {option}"
    )]
    Listen {
        /// Address of the listener.
        address: SocketAddr,
        /// Purpose of the listener.
        purpose: &'static str,
        /// Option that sets the address.
        option: &'static str,
        /// Error of the system; part of the message, so not its source.
        error: std::io::Error,
    },
    /// Tokens or certificates cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Addresses of a server's listeners; a configured port of 0 is replaced by the actual one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// HTTP listener.
    pub http: Option<SocketAddr>,
    /// gRPC listener.
    pub grpc: Option<SocketAddr>,
    /// Metrics listener.
    pub metrics: Option<SocketAddr>,
}

/// A listening server; clients that connect wait until [`Server::run`].
pub struct Server {
    state: Arc<ServerState>,
    http: Option<TcpListener>,
    grpc: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

impl Server {
    /// Opens all configured listeners, or none if one fails.
    pub async fn bind(
        config: ServerConfig,
        backend: Arc<dyn Backend>,
        registry: Arc<ModelRegistry>,
        repository: Arc<dyn Repository>,
    ) -> Result<Server, BindError> {
        let http = listen(config.http, "HTTP", "--http").await?;
        let grpc = listen(config.grpc, "gRPC", "--grpc").await?;
        let metrics = listen(config.metrics, "metrics", "--metrics").await?;
        let state = Arc::new(ServerState::new(config, backend, registry, repository)?);
        let server = Server { state, http, grpc, metrics };
        let Addresses { http, grpc, metrics } = server.addresses();
        server.state.access.warn_about_open_listeners(&[("HTTP", http), ("gRPC", grpc), ("metrics", metrics)]);
        Ok(server)
    }

    /// Returns the addresses of the listeners.
    pub fn addresses(&self) -> Addresses {
        let address = |listener: &Option<TcpListener>| listener.as_ref().and_then(|l| l.local_addr().ok());
        Addresses { http: address(&self.http), grpc: address(&self.grpc), metrics: address(&self.metrics) }
    }

    /// Serves until `shutdown` completes, then stops accepting connections and waits for the calls
    /// in flight. Returns true if all of them finished within the drain timeout.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> bool {
        let state = self.state;
        let mut loops = JoinSet::new();
        let (sampled, reloaded) = (state.clone(), state.clone());
        loops.spawn(supervise("sampling", move || keep_sampling(sampled.clone())));
        loops.spawn(telemetry::export(state.clone()));
        loops.spawn(supervise("credentials", move || credentials_reload::reload_credentials(reloaded.clone())));
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
            let (shared, routes) = (state.clone(), scaler::routes(&state));
            let service = service_fn(move |request| metrics_port(shared.clone(), routes.clone(), request));
            loops.spawn(accept(state.clone(), listener, true, service));
        }
        shutdown.await;
        state.begin_draining();
        let mut drained = pin!(async { while loops.join_next().await.is_some() {} });
        if tokio::time::timeout(state.config.drain_timeout, drained.as_mut()).await.is_ok() {
            return true;
        }
        // Remaining calls get an error; connections that do not accept it are dropped with the set.
        state.begin_dismissing();
        let _ = tokio::time::timeout(DISMISS_GRACE, drained).await;
        false
    }
}

async fn listen(
    address: Option<SocketAddr>,
    purpose: &'static str,
    option: &'static str,
) -> Result<Option<TcpListener>, BindError> {
    let Some(address) = address else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    bound.map(Some).map_err(|error| BindError::Listen { address, purpose, option, error })
}

/// Accepts connections until the server drains, then waits for the open ones.
async fn accept<S, B>(state: Arc<ServerState>, listener: TcpListener, is_metrics: bool, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Ok(bind) = listener.local_addr() else { return };
    let info = ListenerInfo { bind, is_metrics };
    let slots = ConnectionSlots::new(&state.config);
    // Metrics connections stay on this thread, independent of the load on the serving threads.
    let threads = ConnectionThreads::new(if is_metrics { &[] } else { &state.config.connections_on });
    let mut open = JoinSet::new();
    // The accept future persists across loop iterations, because an accepted connection may wait
    // for a slot.
    let mut accepting = Box::pin(accept_one(&state, &listener, &slots));
    loop {
        let accepted = tokio::select! {
            // `biased`: a connection that is already accepted is served even when the server shuts
            // down.
            biased;
            accepted = &mut accepting => accepted,
            Some(_) = open.join_next() => continue,
            () = state.until_draining() => break,
        };
        let accepted = accepted.and_then(|(stream, slot, connection)| Ok((stream.into_std()?, slot, connection)));
        match accepted {
            Ok((stream, Some(slot), connection)) => {
                let (state, service) = (state.clone(), service.clone());
                let (thread, seat) = threads.least_loaded();
                let served = async move {
                    // Registers the socket with the reactor of its serving thread.
                    match TcpStream::from_std(stream) {
                        Ok(stream) => serve_connection(state, stream, info, connection, service).await,
                        Err(error) => tracing::warn!("a connection cannot be served: {error}"),
                    }
                    drop((slot, seat));
                };
                open.spawn_on(served, thread);
            }
            Ok((_, None, connection)) => tracing::debug!(peer = %connection.peer, "the peer has too many connections"),
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        accepting.set(accept_one(&state, &listener, &slots));
    }
    drop(accepting);
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Accepts a connection and waits for its slot; `None` if its peer is at its limit.
async fn accept_one(
    state: &ServerState,
    listener: &TcpListener,
    slots: &Arc<ConnectionSlots>,
) -> std::io::Result<(TcpStream, Option<ConnectionSlot>, Arc<ClientConnection>)> {
    let (stream, peer) = listener.accept().await?;
    let connection = ClientConnection::new(peer.ip(), state.shares.budget_of(peer.ip()), &state.config);
    Ok((stream, acquire_slot(slots, &connection).await, connection))
}

/// Waits for a slot; returns `None` if the peer is at its limit.
async fn acquire_slot(slots: &Arc<ConnectionSlots>, connection: &Arc<ClientConnection>) -> Option<ConnectionSlot> {
    loop {
        match slots.acquire(connection) {
            Ok(slot) => return Some(slot),
            Err(NoSlot::PeerFull) => return None,
            Err(NoSlot::Full) => slots.freed().await,
        }
    }
}

async fn serve_connection<S, B>(
    state: Arc<ServerState>,
    stream: TcpStream,
    listener: ListenerInfo,
    client: Arc<ClientConnection>,
    service: S,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    let greeted = tokio::select! {
        greeted = state.access.handshake(listener, stream, service, state.config.header_timeout) => greeted,
        () = client.evicted.notified() => return,
        () = state.until_draining() => return,
    };
    let Some((stream, service)) = greeted else { return };
    let socket = Socket::new(stream, client.clone(), &state.config);
    let builder = builder(&state.config);
    let service = with_call_guard(client.clone(), service);
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    tokio::pin!(connection);
    let mut ticks = tokio::time::interval(tick_interval(&state.config));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = false;
    let mut over = pin!(last_calls_over(&state, &client));
    let mut at_rest = pin!(until_at_rest(&state, &client, |_| false));
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = over.as_mut(), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
            // A partial head, or a client that does not close the connection.
            () = at_rest.as_mut(), if told => return,
            // A call that began in the meantime is answered; then the connection ends.
            () = client.evicted.notified() => match client.idle_since() {
                Some(_) => return,
                None => connection.as_mut().graceful_shutdown(),
            },
            now = ticks.tick() => if let Some(why) = client.overdue(now.into_std(), &state.config) {
                tracing::debug!(peer = %client.peer, "a connection is closed: {why}");
                return;
            },
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended badly: {error}");
    }
}

/// Completes when the server shuts down and a connection must accept no more calls. HTTP/2 notifies
/// its client immediately. An HTTP/1 client may send for a while, because a request sent into a
/// closing connection is lost.
async fn last_calls_over(state: &ServerState, client: &ClientConnection) {
    state.until_draining().await;
    // The protocol of the connection may become known only now.
    until_at_rest(state, client, ClientConnection::can_announce_end).await;
}

/// Waits until a connection was idle for the grace period of last calls, or until `enough` holds.
async fn until_at_rest(state: &ServerState, client: &ClientConnection, enough: fn(&ClientConnection) -> bool) {
    let span = state.config.last_calls.min(state.config.drain_timeout / 2);
    let from = Instant::now();
    loop {
        let rest = client.at_rest_since().map(|since| since.max(from).elapsed());
        if enough(client) || rest.is_some_and(|rest| rest >= span) {
            return;
        }
        tokio::time::sleep(span.saturating_sub(rest.unwrap_or_default()).max(Duration::from_millis(1))).await;
    }
}

/// Wraps a service so that each call reserves its share of the budget and is recorded on its
/// connection.
fn with_call_guard<S, B>(
    connection: Arc<ClientConnection>,
    service: S,
) -> impl Service<
    Request<Incoming>,
    Response = Response<AnswerBody<B>>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<AnswerBody<B>>, Infallible>> + Send,
>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send,
    B: Body<Data = Bytes> + Unpin + Send,
{
    service_fn(move |mut request: Request<Incoming>| {
        let (version, has_body) = (request.version(), !request.body().is_end_stream());
        let call = match connection.budget.reserve_call() {
            Some(room) => {
                let call = CallGuard::begin(&connection, room, version, has_body);
                request.extensions_mut().insert(connection.clone());
                Ok((call, service.call(request)))
            }
            None => Err(no_room(request.headers())),
        };
        async move {
            match call {
                Ok((call, answer)) => Ok(answer.await?.map(|body| AnswerBody::new(body, call))),
                Err(refusal) => Ok(refusal),
            }
        }
    })
}

/// Returns the minimal refusal without a body, for an exhausted budget.
fn no_room<B>(to: &HeaderMap) -> Response<AnswerBody<B>> {
    let mut answer = Response::new(AnswerBody::empty());
    let headers = answer.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    let grpc = to.get(CONTENT_TYPE).filter(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if let Some(kind) = grpc {
        headers.insert(CONTENT_TYPE, kind.clone());
        headers.insert("grpc-status", HeaderValue::from(tonic::Code::ResourceExhausted as i32));
        headers.insert("grpc-message", HeaderValue::from_static("the server is full; retry later"));
    } else {
        *answer.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
    }
    answer
}

/// Runs a background task, and begins it again if it panics: without it the page and the status
/// would say for ever what they said last.
async fn supervise<F: Future<Output = ()> + Send + 'static>(name: &'static str, begin: impl Fn() -> F) {
    loop {
        let mut task = JoinSet::new();
        task.spawn(begin());
        match task.join_next().await {
            Some(Err(ended)) if ended.is_panic() => {
                tracing::error!(task = name, "the task '{name}' of the server panicked, and begins again");
                tokio::time::sleep(SAMPLE_EVERY).await;
            }
            _ => return,
        }
    }
}

/// Samples the counters until the server shuts down.
async fn keep_sampling(state: Arc<ServerState>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut recorded = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                sample(&state);
                record_gaps(&state, &mut recorded);
                recording::watch(&state);
                ui::sample(&state);
            }
            () = state.until_draining() => return,
        }
    }
}

/// Records the gaps of the process that ended since the last call.
fn record_gaps(state: &ServerState, recorded: &mut Instant) {
    let Some(watch) = starvation::of_process() else { return };
    let (since, now) = (std::mem::replace(recorded, Instant::now()), Instant::now());
    let gaps = watch.since(since);
    let Some(flight) = state.backend.flight().filter(|_| !gaps.is_empty()) else { return };
    let nanos = |span: Duration| Nanos(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX));
    gaps.iter().for_each(|gap| flight.stalled(nanos(gap.to - gap.from), nanos(now - gap.to)));
}

fn sample(state: &ServerState) {
    if !state.backend.is_primary() && !state.has_clients() {
        return state.signals.clear();
    }
    let entries = state.registry.ready_entries();
    let model = |id| state.backend.model(id).map(|model| (u64::from(id.0), model.totals()));
    let mut models: Vec<_> = entries.iter().filter_map(|entry| model(entry.id?)).collect();
    models.sort_unstable_by_key(|&(id, _)| id);
    let there = |device: &DeviceSnapshot| device.state != DeviceState::Lost;
    state.signals.sample(state.backend.devices().into_iter().filter(there).count(), models);
}

/// Returns the interval at which a connection's timeouts are checked: at most a quarter of the
/// shortest.
fn tick_interval(config: &ServerConfig) -> Duration {
    let shortest = config.header_timeout.min(config.idle_timeout).min(config.write_timeout);
    (shortest / 4).clamp(Duration::from_millis(1), Duration::from_secs(5))
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
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .keep_alive_interval(Some(config.ping_interval))
        .keep_alive_timeout(config.ping_interval);
    builder
}

/// Handles the metrics port: scrapers, probes, and the autoscaler's calls.
async fn metrics_port(
    state: Arc<ServerState>,
    routes: tonic::service::Routes,
    request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    if request.uri().path().starts_with(scaler::PATH) {
        return Ok(scaler::answer(state, routes, request).await);
    }
    if request.uri().path() == "/" && state.config.ui {
        return Ok(ui::redirect());
    }
    if ui::has(request.uri().path()) {
        return Ok(ui::answer(state, request).await);
    }
    answer_metrics(state, request).await
}

async fn answer_metrics(
    state: Arc<ServerState>,
    request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    let path = request.uri().path();
    let need = if path.starts_with("/v2/health/") { Permission::Health } else { Permission::Metrics };
    let need = if path == STATUS { Permission::Metrics } else { need };
    if let Err(problem) = state.access.authorize(need, &request) {
        state.call_errors.on_status(problem.kind.http_status());
        return Ok(http::refusal(&problem).map(tonic::body::Body::new));
    }
    if path == DUMP && request.method() == Method::POST {
        return Ok(match recording::stream(&state) {
            Ok(pieces) => Response::new(tonic::body::Body::new(StreamBody::new(ReceiverStream::new(pieces)))),
            Err(problem) => http::refusal(&problem).map(tonic::body::Body::new),
        });
    }
    let (status, body) = match path {
        "/metrics" => (hyper::StatusCode::OK, metrics::render(&state)),
        // Health paths as on the HTTP port, for probes that must work under any client load there.
        "/v2/health/live" => (hyper::StatusCode::OK, "live\n".to_owned()),
        "/v2/health/ready" if state.is_ready() => (hyper::StatusCode::OK, "ready\n".to_owned()),
        "/v2/health/ready" => (hyper::StatusCode::SERVICE_UNAVAILABLE, "not ready\n".to_owned()),
        STATUS => (hyper::StatusCode::OK, serde_json::to_string(&ui::status::of(&state).await).unwrap_or_default()),
        other => (
            hyper::StatusCode::NOT_FOUND,
            format!("'{other}' is not here; see /ui, /metrics, /v2/health/live, /v2/health/ready and {STATUS}\n"),
        ),
    };
    let mut answer = Response::new(tonic::body::Body::new(Full::new(Bytes::from(body))));
    *answer.status_mut() = status;
    let kind = if path == STATUS { "application/json" } else { "text/plain; version=0.0.4; charset=utf-8" };
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(answer)
}
