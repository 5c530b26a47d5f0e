//! What strangers may take of a server that serves: flags of `serve`.

use clap::Args;
use ripieno_server::ServerConfig;
use std::time::Duration;

#[derive(Args, Debug)]
pub(crate) struct BoundArgs {
    /// The most memory of all requests, from their first byte, and of their answers, until they are sent, in MiB; beyond it
    /// requests are refused with 429. The process takes this, the models, a tenth more and its read buffers.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max_held_mib: u32,

    /// The most of that for the calls of one address (of one /64 network in IPv6), in MiB [default: half of --max-held-mib, and
    /// all of it for loopback].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    max_held_mib_per_peer: Option<u32>,

    /// Answers longer than this are compressed for clients that ask for it (Accept-Encoding: gzip or deflate over HTTP; calls that are
    /// compressed themselves over gRPC), in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    compress_above: usize,

    /// The most connections per port; when all are taken, the longest idle one is closed for a new one.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// The most connections per port of one address (of one /64 network in IPv6) [default: a quarter of --max-connections,
    /// and all of them for loopback].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_peer: Option<u32>,

    /// The most calls at once on one HTTP/2 connection.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_concurrent_streams: u32,

    /// The most loads and unloads by calls at once; one model has one at a time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    max_loads: u32,

    /// Let load calls bring a configuration (config) and files (file:VERSION/NAME) along, as Triton's clients do, and keep so many MiB of
    /// files on the disk for that; whoever may load then has this server run models of his own. 0: refuse them.
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    load_overrides: u32,

    /// How long the first request of a connection, and the head of each in HTTP/1, may take to come, in seconds.
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    header_timeout_s: u64,

    /// How long the body or message of a request may take to come, in seconds.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    body_timeout_s: u64,

    /// How long a client may take nothing of what is sent to it, in seconds; an answer has this and a second for every 256 KiB.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    write_timeout_s: u64,

    /// How long a connection without calls, or a stream without requests, is kept, in seconds.
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_timeout_s: u64,
}

impl BoundArgs {
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
