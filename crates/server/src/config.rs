//! Settings of the server: listeners and limits.

use crate::access::AccessConfig;
use crate::problem::ErrorProfile;
use ripieno_report::ScalingRule;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Handle;

/// The access log's place and sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// The file; `None` for stderr.
    pub file: Option<PathBuf>,
    /// One call in this many is logged.
    pub one_in: u32,
}

/// Recordings that the server writes by itself.
#[derive(Clone, Debug)]
pub struct AutoDump {
    /// The folder for the files.
    pub folder: PathBuf,
    /// Share of the requests of the last ten seconds that are answered by their deadline; below it
    /// a recording is written.
    pub below: f64,
}

/// Spans of sampled calls.
#[derive(Clone, Debug)]
pub struct TelemetryConfig {
    /// Address of an OTLP collector over gRPC.
    pub endpoint: String,
    /// Share of the calls without a traced client that are sampled.
    pub ratio: f64,
    /// Name of the service.
    pub service: String,
}

/// Settings of the server; the defaults are safe on an untrusted network.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// HTTP address; `None` disables HTTP. Loopback by default.
    pub http: Option<SocketAddr>,
    /// gRPC address.
    pub grpc: Option<SocketAddr>,
    /// Metrics address.
    pub metrics: Option<SocketAddr>,
    /// Server name in the metadata; tests of some clients expect "triton".
    pub server_name: String,
    /// Commit of the program, and engine of its models.
    pub build: BuildInfo,
    /// Maximum request size in bytes, before and after decompression.
    pub max_body_bytes: usize,
    /// Size in bytes up to which responses are never compressed.
    pub compress_above: usize,
    /// Maximum bytes of all requests, from their first byte, and of their responses, until their
    /// last byte is sent; requests beyond are refused.
    pub max_bytes_in_flight: usize,
    /// Maximum bytes that the calls of one address (one /64 network in IPv6) may hold. `None`: half
    /// of the total, and no limit for loopback.
    pub max_held_per_peer: Option<usize>,
    /// Maximum connections per listener. When all are taken, the longest idle one is closed; if
    /// none is idle, new ones wait.
    pub max_connections: usize,
    /// Maximum connections of one address (one /64 network in IPv6). `None`: a quarter of the
    /// total, and no limit for loopback.
    pub max_connections_per_peer: Option<usize>,
    /// Maximum concurrent calls on one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Maximum messages of one ModelStreamInfer call in progress; beyond, the stream is not read.
    pub max_stream_in_flight: usize,
    /// Timeout of a connection's first request, and of the head of every HTTP/1 request.
    pub header_timeout: Duration,
    /// Timeout of a request body.
    pub body_timeout: Duration,
    /// Timeout for a client that accepts no data; large responses have more time in proportion to
    /// their size.
    pub write_timeout: Duration,
    /// Time after which a connection without calls, or a stream without requests, is closed.
    pub idle_timeout: Duration,
    /// Interval of HTTP/2 pings, and timeout of their replies.
    pub ping_interval: Duration,
    /// Maximum number of concurrent load and unload calls.
    pub max_loads: usize,
    /// Maximum total bytes of files that load calls may upload. 0 refuses uploads, including
    /// configurations.
    pub load_overrides: u64,
    /// Runtime that loads models for load calls. `None` uses the server's; engines then inherit the
    /// priority of its threads.
    pub loads_on: Option<Handle>,
    /// The rule by which the number of devices is advised.
    pub scaling: ScalingRule,
    /// Single-threaded runtimes that serve client connections; each connection stays on one. Empty
    /// uses the server's runtime.
    pub connections_on: Vec<Handle>,
    /// Whether a single model that failed to load makes the server not ready.
    pub strict_readiness: bool,
    /// Mapping of failures to statuses.
    pub error_profile: ErrorProfile,
    /// Time for which an HTTP/1 client with an open connection may still send requests after the
    /// shutdown began. The client cannot know of the shutdown before its next response, and a
    /// request sent into a closing connection is lost. At most half of `drain_timeout`.
    pub last_calls: Duration,
    /// Timeout of bodies and messages that are incomplete when the shutdown begins, or start after;
    /// at most half of `drain_timeout`.
    pub last_bodies: Duration,
    /// Timeout of requests in flight when the shutdown begins.
    pub drain_timeout: Duration,
    /// Recordings that are written when too few requests are in time. `None` writes none.
    pub auto_dump: Option<AutoDump>,
    /// Spans of calls; `None` sends none.
    pub telemetry: Option<TelemetryConfig>,
    /// Whether the metrics port has the page at /ui.
    pub ui: bool,
    /// Access control and encryption.
    pub access: AccessConfig,
    /// Log of calls; `None` for none.
    pub access_log: Option<AccessLogConfig>,
}

/// The commit that a program was built from, and the engine of its models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildInfo {
    /// The commit, or that it is a development build.
    pub commit: String,
    /// The engine of most models; empty if the process runs none.
    pub engine: String,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        let loopback = |port| Some(SocketAddr::from(([127, 0, 0, 1], port)));
        ServerConfig {
            http: loopback(8000),
            grpc: loopback(8001),
            metrics: loopback(8002),
            server_name: "ripieno".to_owned(),
            build: BuildInfo::default(),
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
            scaling: ScalingRule::PAPER,
            connections_on: Vec::new(),
            strict_readiness: false,
            error_profile: ErrorProfile::Ripieno,
            last_calls: Duration::from_millis(250),
            last_bodies: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(30),
            auto_dump: None,
            telemetry: None,
            ui: true,
            access: AccessConfig::default(),
            access_log: None,
        }
    }
}
