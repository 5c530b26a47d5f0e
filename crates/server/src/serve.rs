//! Listening, accepting, and going down in order.
//!
//! One accept loop for all three ports, on hyper itself: connections are counted, their heads bounded in size and time,
//! and every one of them hears of the shutdown, which the ready-made servers offer only in part. What a connection may take is
//! in [`bounds`](crate::bounds).

use crate::access::{AccessError, Door, Need};
use crate::backend::Backend;
use crate::bounds::call::{Answer, Call};
use crate::bounds::connection::{CONNECTION_WINDOW_BYTES, Connection};
use crate::bounds::places::{NoPlace, Place, Places};
use crate::bounds::socket::Socket;
use crate::config::ServerConfig;
use crate::signals::SAMPLE_EVERY;
use crate::state::State;
use crate::threads::Threads;
use crate::{fresh, grpc, http, metrics, scaler};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::service::{Service, service_fn};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use ripieno_repository::registry::{Registry, Repository};
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

/// The head of an HTTP/2 request: model names and a few headers need far less.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// What hyper may read ahead on an HTTP/1 connection, which no budget counts; smaller buffers cut tensors into many pieces.
const READ_BUFFER_BYTES: usize = 128 << 10;
/// HTTP/2 flow control: what a client may send on one stream before it is read.
const STREAM_WINDOW_BYTES: u32 = 512 << 10;
/// What hyper may take of an answer before the client makes room for it.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// After a failed accept, typically for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long calls that are dismissed have to be told so.
const LAST_WORDS: Duration = Duration::from_secs(1);

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
        loops.spawn(keep_sampling(state.clone()));
        loops.spawn(fresh::keep_fresh(state.clone()));
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
        // What is left is answered with an error; who does not read even that is cut off with the set.
        state.begin_dismissing();
        let _ = tokio::time::timeout(LAST_WORDS, drained).await;
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
    bound.map(Some).map_err(|source| BindError::Listen { address, purpose, option, source })
}

/// Accepts connections until the server drains, then waits for those that are open.
async fn accept<S, B>(state: Arc<State>, listener: TcpListener, is_metrics: bool, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Ok(bind) = listener.local_addr() else { return };
    let door = Door { bind, is_metrics };
    let places = Places::new(&state.config);
    // Who reads metrics is served here, whatever the other threads are busy with.
    let threads = Threads::new(if is_metrics { &[] } else { &state.config.connections_on });
    let mut open = JoinSet::new();
    // Kept between the turns of the loop: who is accepted may wait for a place while others end.
    let mut accepting = Box::pin(accept_one(&state, &listener, &places));
    loop {
        let accepted = tokio::select! {
            // First, so that who is connected already is served when the server goes down.
            biased;
            accepted = &mut accepting => accepted,
            Some(_) = open.join_next() => continue,
            () = state.drained() => break,
        };
        let accepted = accepted.and_then(|(stream, place, connection)| Ok((stream.into_std()?, place, connection)));
        match accepted {
            Ok((stream, Some(place), connection)) => {
                let (state, service) = (state.clone(), service.clone());
                let (thread, seat) = threads.take();
                let served = async move {
                    // Its events come to the thread that it is on.
                    match TcpStream::from_std(stream) {
                        Ok(stream) => serve_connection(state, stream, door, connection, service).await,
                        Err(error) => tracing::warn!("a connection cannot be served: {error}"),
                    }
                    drop((place, seat));
                };
                open.spawn_on(served, thread);
            }
            Ok((_, None, connection)) => tracing::debug!(peer = %connection.peer, "the peer has too many connections"),
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        accepting.set(accept_one(&state, &listener, &places));
    }
    drop(accepting);
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// The next connection, with its place unless its peer has its share.
async fn accept_one(
    state: &State,
    listener: &TcpListener,
    places: &Arc<Places>,
) -> std::io::Result<(TcpStream, Option<Place>, Arc<Connection>)> {
    let (stream, peer) = listener.accept().await?;
    let connection = Connection::new(peer.ip(), state.shares.of(peer.ip()), &state.config);
    Ok((stream, place(places, &connection).await, connection))
}

/// A place for a connection, as soon as there is one; none for a peer that has its share.
async fn place(places: &Arc<Places>, connection: &Arc<Connection>) -> Option<Place> {
    loop {
        match places.take(connection) {
            Ok(place) => return Some(place),
            Err(NoPlace::PeerFull) => return None,
            Err(NoPlace::Full) => places.freed().await,
        }
    }
}

async fn serve_connection<S, B>(state: Arc<State>, stream: TcpStream, door: Door, facts: Arc<Connection>, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot set TCP_NODELAY: {error}");
    }
    let greeted = tokio::select! {
        greeted = state.access.greet(door, stream, service, state.config.header_timeout) => greeted,
        () = facts.evicted.notified() => return,
        () = state.drained() => return,
    };
    let Some((stream, service)) = greeted else { return };
    let socket = Socket::new(stream, facts.clone(), &state.config);
    let builder = builder(&state.config);
    let service = counted(facts.clone(), service);
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    tokio::pin!(connection);
    let mut ticks = tokio::time::interval(look_every(&state.config));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = false;
    let mut over = pin!(last_calls_over(&state, &facts));
    let mut at_rest = pin!(until_at_rest(&state, &facts, |_| false));
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = over.as_mut(), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
            // Part of a head, or a client that does not take its leave.
            () = at_rest.as_mut(), if told => return,
            // A call that began meanwhile is answered; then the connection ends.
            () = facts.evicted.notified() => match facts.idle_since() {
                Some(_) => return,
                None => connection.as_mut().graceful_shutdown(),
            },
            now = ticks.tick() => if let Some(why) = facts.overdue(now.into_std(), &state.config) {
                tracing::debug!(peer = %facts.peer, "a connection is closed: {why}");
                return;
            },
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended badly: {error}");
    }
}

/// Returns once the server goes down and a connection is to take no more calls. HTTP/2 tells its client so at once; one of
/// HTTP/1 may send for a while, since what comes when its connection has just been closed is lost.
async fn last_calls_over(state: &State, facts: &Connection) {
    state.drained().await;
    // Which of them a connection is may show only now.
    until_at_rest(state, facts, Connection::can_announce_end).await;
}

/// Returns once a connection has been at rest, from now on, for as long as last calls may take; soon, if `enough` is so.
async fn until_at_rest(state: &State, facts: &Connection, enough: fn(&Connection) -> bool) {
    let span = state.config.last_calls.min(state.config.drain_timeout / 2);
    let from = Instant::now();
    loop {
        let rest = facts.at_rest_since().map(|since| since.max(from).elapsed());
        if enough(facts) || rest.is_some_and(|rest| rest >= span) {
            return;
        }
        tokio::time::sleep(span.saturating_sub(rest.unwrap_or_default()).max(Duration::from_millis(1))).await;
    }
}

/// A service whose calls have a share of the budget and are known to their connection.
fn counted<S, B>(
    connection: Arc<Connection>,
    service: S,
) -> impl Service<
    Request<Incoming>,
    Response = Response<Answer<B>>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Answer<B>>, Infallible>> + Send,
>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send,
    B: Body<Data = Bytes> + Unpin + Send,
{
    service_fn(move |mut request: Request<Incoming>| {
        let (version, has_body) = (request.version(), !request.body().is_end_stream());
        let call = match connection.budget.enter() {
            Some(room) => {
                let call = Call::begin(&connection, room, version, has_body);
                request.extensions_mut().insert(connection.clone());
                Ok((call, service.call(request)))
            }
            None => Err(no_room(request.headers())),
        };
        async move {
            match call {
                Ok((call, answer)) => Ok(answer.await?.map(|body| Answer::new(body, call))),
                Err(refusal) => Ok(refusal),
            }
        }
    })
}

/// The least that can be said, since there is room for nothing: a head without a body.
fn no_room<B>(to: &HeaderMap) -> Response<Answer<B>> {
    let mut answer = Response::new(Answer::empty());
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

/// Samples the counters until the server goes down.
async fn keep_sampling(state: Arc<State>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => sample(&state),
            () = state.drained() => return,
        }
    }
}

fn sample(state: &State) {
    if !state.backend.is_primary() {
        return state.signals.clear();
    }
    let entries = state.registry.ready_entries();
    let model = |id| state.backend.model(id).map(|model| (u64::from(id.0), model.totals()));
    let mut models: Vec<_> = entries.iter().filter_map(|entry| model(entry.id?)).collect();
    models.sort_unstable_by_key(|&(id, _)| id);
    let there = |device: &DeviceSnapshot| device.state != DeviceState::Lost;
    state.signals.sample(state.backend.devices().into_iter().filter(there).count(), models);
}

/// How often a connection's timeouts are looked at: late by a quarter of the shortest at most.
fn look_every(config: &ServerConfig) -> Duration {
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

/// The port of the metrics: for scrapers, probes, and an autoscaler that asks by calls.
async fn metrics_port(
    state: Arc<State>,
    routes: tonic::service::Routes,
    request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    if request.uri().path().starts_with(scaler::PATH) {
        return Ok(scaler::answer(state, routes, request).await);
    }
    Ok(answer_metrics(state, request).await?.map(tonic::body::Body::new))
}

async fn answer_metrics(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let need = if request.uri().path() == "/metrics" { Need::Metrics } else { Need::Health };
    if let Err(problem) = state.access.admit(need, &request) {
        return Ok(http::refusal(&problem));
    }
    let (status, body) = match request.uri().path() {
        "/metrics" => (hyper::StatusCode::OK, metrics::render(&state)),
        // The same as on the HTTP port, for probes that must get through whatever clients do there.
        "/v2/health/live" => (hyper::StatusCode::OK, "live\n".to_owned()),
        "/v2/health/ready" if state.is_ready() => (hyper::StatusCode::OK, "ready\n".to_owned()),
        "/v2/health/ready" => (hyper::StatusCode::SERVICE_UNAVAILABLE, "not ready\n".to_owned()),
        other => (
            hyper::StatusCode::NOT_FOUND,
            format!("'{other}' is not here; see /metrics, /v2/health/live and /v2/health/ready\n"),
        ),
    };
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, text);
    Ok(answer)
}
