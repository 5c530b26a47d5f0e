//! Resource limits against untrusted clients: flags of `serve`.

use clap::Args;
use ripieno_server::ServerConfig;
use std::time::Duration;

#[derive(Args, Debug)]
pub(crate) struct BoundArgs {
    /// Largest memory of all requests and answers that the server holds, in MiB. Beyond it requests
    /// are refused with 429. The process needs a tenth more, and memory for the models and its
    /// read buffers.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max_held_mib: u32,

    /// Largest share of that for the calls of one address (of one /64 network in IPv6), in MiB
    /// [default: half of --max-held-mib, and all of it for loopback].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max_held_mib_per_peer: Option<u32>,

    /// Size in bytes above which answers are compressed for clients that ask for it
    /// (Accept-Encoding: gzip or deflate over HTTP; calls that are compressed themselves over
    /// gRPC).
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    compress_above: usize,

    /// Largest number of connections per port; when all are taken, the longest idle one is closed
    /// for a new one.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// Largest number of connections per port of one address (of one /64 network in IPv6) [default:
    /// a quarter of --max-connections, and all of them for loopback].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_peer: Option<u32>,

    /// Largest number of concurrent calls on one HTTP/2 connection.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_concurrent_streams: u32,

    /// Largest number of concurrent loads and unloads by calls; one model has one at a time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    max_loads: u32,

    /// Let load calls bring a configuration (config) and files (file:VERSION/NAME), as Triton's
    /// clients do. The server keeps at most this many MiB of files on the disk for that. Any client
    /// that may load can then have this server run models of its own. 0: refuse them.
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    load_overrides: u32,

    /// Longest time for the first request of a connection, and for the head of each in HTTP/1, to
    /// arrive, in seconds.
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    header_timeout_s: u64,

    /// Longest time for the body or message of a request to arrive, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    body_timeout_s: u64,

    /// Longest time for which a client may read nothing of what is sent to it, in seconds; an
    /// answer has this and a second for every 256 KiB.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    write_timeout_s: u64,

    /// Time after which a connection without calls, or a stream without requests, is closed, in
    /// seconds.
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_timeout_s: u64,
}

impl BoundArgs {
    /// Returns true if load calls may bring models along.
    pub(crate) fn takes_uploads(&self) -> bool {
        self.load_overrides > 0
    }

    pub(crate) fn over(&self, config: ServerConfig) -> ServerConfig {
        ServerConfig {
            compress_above: self.compress_above,
            max_bytes_in_flight: (self.max_held_mib as usize) << 20,
            max_held_per_peer: self.max_held_mib_per_peer.map(|most| (most as usize) << 20),
            max_connections: self.max_connections as usize,
            max_connections_per_peer: self.max_connections_per_peer.map(|most| most as usize),
            max_concurrent_streams: self.max_concurrent_streams,
            max_loads: self.max_loads as usize,
            load_overrides: u64::from(self.load_overrides) << 20,
            header_timeout: Duration::from_secs(self.header_timeout_s),
            body_timeout: Duration::from_secs(self.body_timeout_s),
            write_timeout: Duration::from_secs(self.write_timeout_s),
            idle_timeout: Duration::from_secs(self.idle_timeout_s),
            ..config
        }
    }
}
