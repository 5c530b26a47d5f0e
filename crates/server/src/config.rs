//! How the front end listens, and what it takes from strangers.

use crate::access::AccessConfig;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::Handle;

/// Which statuses failures have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorProfile {
    /// Those that HTTP and gRPC have for them.
    #[default]
    Ripieno,
    /// Those of Triton, where its clients and their retries look at them.
    Triton,
}

/// Settings of the front end; the defaults are safe on a network that one does not know.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where HTTP listens; none turns it off. Loopback by default.
    pub http: Option<SocketAddr>,
    /// Where gRPC listens.
    pub grpc: Option<SocketAddr>,
    /// Where the metrics are.
    pub metrics: Option<SocketAddr>,
    /// The name in the server's metadata; some clients' tests want "triton".
    pub server_name: String,
    /// The most bytes of one request, before and after decompression.
    pub max_body_bytes: usize,
    /// The largest answer, in bytes, that is never compressed; longer ones are for clients that ask for it.
    pub compress_above: usize,
    /// The most bytes of all requests, from their first byte, and of their answers, until their last byte is sent; what does
    /// not fit is refused.
    pub max_bytes_in_flight: usize,
    /// The most bytes that the calls of one address (of one /64 network in IPv6) may hold. None: half of all, and no limit for
    /// loopback.
    pub max_held_per_peer: Option<usize>,
    /// The most connections per listener. When all are taken, the longest idle one goes; if none is idle, further ones wait.
    pub max_connections: usize,
    /// The most connections of one address (of one /64 network in IPv6). None: a quarter of all, and no limit for loopback.
    pub max_connections_per_peer: Option<usize>,
    /// The most concurrent calls on one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// The most messages of one ModelStreamInfer call that are worked on at once; the stream is not read meanwhile.
    pub max_stream_in_flight: usize,
    /// The longest that the first request of a connection, and the head of every HTTP/1 request, may take to arrive.
    pub header_timeout: Duration,
    /// The longest that the body of a request may take to arrive.
    pub body_timeout: Duration,
    /// The longest that a client may take none of what is sent to it; a large answer has more time, by its size.
    pub write_timeout: Duration,
    /// How long a connection without calls, and a stream without requests, is kept.
    pub idle_timeout: Duration,
    /// How often a peer of HTTP/2 is asked whether it is there, and how long it may take to say so.
    pub ping_interval: Duration,
    /// The most models that are loaded or unloaded at once by calls.
    pub max_loads: usize,
    /// The most bytes of files that calls that load models may bring along, of all models that are served so. 0: such calls bring
    /// nothing, no configuration either.
    pub load_overrides: u64,
    /// Where models are loaded by calls. None: where the server runs; then engines run at the priority of its threads.
    pub loads_on: Option<Handle>,
    /// Runtimes of one thread each that connections of clients are served on; each stays where it began. None: where the server
    /// runs.
    pub connections_on: Vec<Handle>,
    /// Whether one model that failed to load makes the whole server not ready.
    pub strict_readiness: bool,
    /// Which statuses failures have.
    pub error_profile: ErrorProfile,
    /// How long a client of HTTP/1 that keeps a connection may still send on it after the shutdown began: it cannot know, and what
    /// it sends into a connection that closes is lost. Its answer tells it. Half of `drain_timeout` at most.
    pub last_calls: Duration,
    /// How long a body, or message, that is on its way when the shutdown begins, or comes after, may take; half of
    /// `drain_timeout` at most.
    pub last_bodies: Duration,
    /// How long requests in flight may take after the shutdown began.
    pub drain_timeout: Duration,
    /// Who is let in, and how connections are encrypted.
    pub access: AccessConfig,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        let loopback = |port| Some(SocketAddr::from(([127, 0, 0, 1], port)));
        ServerConfig {
            http: loopback(8000),
            grpc: loopback(8001),
            metrics: loopback(8002),
            server_name: "ripieno".to_owned(),
            max_body_bytes: 64 << 20,
            compress_above: 4 << 10,
            max_bytes_in_flight: 1 << 30,
            max_held_per_peer: None,
            max_connections: 4096,
            max_connections_per_peer: None,
            max_concurrent_streams: 1024,
            max_stream_in_flight: 256,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(300),
            ping_interval: Duration::from_secs(30),
            max_loads: 4,
            load_overrides: 0,
            loads_on: None,
            connections_on: Vec::new(),
            strict_readiness: false,
            error_profile: ErrorProfile::Ripieno,
            last_calls: Duration::from_millis(250),
            last_bodies: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(30),
            access: AccessConfig::default(),
        }
    }
}
