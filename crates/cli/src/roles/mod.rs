//! The roles of a cluster on the command line: `ripieno frontend`, `ripieno scheduler`, `ripieno
//! backend`.
//!
//! Each is a part of `serve`, wired to the others by `ripieno-cluster` (docs/internals/adr/0025): a
//! frontend is the HTTP and gRPC server of a remote engine, a scheduler an engine with only
//! metrics, a backend a repository whose host is a device of a remote scheduler.

pub(crate) mod backend;
pub(crate) mod frontend;
mod model;
mod probes;
pub(crate) mod scheduler;

use clap::Args;
use ripieno_cluster::handover::store::{EpochStore, EtcdStore, FileStore};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The store of the epoch.
#[derive(Args, Clone, Debug)]
pub(crate) struct EpochArgs {
    /// Store of the epoch, which decides the primary: file:PATH for schedulers of one machine, or
    /// etcd:URL,URL,... with the nodes of an etcd [default: this scheduler has no spare].
    #[arg(long, value_name = "STORE", value_parser = stored)]
    epoch: Option<Stored>,
}

/// A store of the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stored {
    File(PathBuf),
    Etcd(Vec<String>),
}

/// Longest time for a store to answer.
const STORE_TIMEOUT: Duration = Duration::from_millis(100);

impl EpochArgs {
    /// Opens the store, if there is one.
    fn store(&self) -> anyhow::Result<Option<Box<dyn EpochStore>>> {
        Ok(match &self.epoch {
            None => None,
            Some(Stored::File(path)) => Some(Box::new(FileStore::new(path))),
            Some(Stored::Etcd(nodes)) => Some(Box::new(EtcdStore::new(nodes, "/ripieno", STORE_TIMEOUT)?)),
        })
    }
}

fn stored(text: &str) -> Result<Stored, String> {
    match text.split_once(':') {
        Some(("file", path)) if !path.is_empty() => Ok(Stored::File(path.into())),
        Some(("etcd", nodes)) if !nodes.is_empty() => Ok(Stored::Etcd(nodes.split(',').map(str::to_owned).collect())),
        _ => Err(format!("{text:?} is no store of an epoch; write file:PATH, or etcd:http://HOST:2379,...")),
    }
}

/// Default address of a scheduler.
const SCHEDULER: &str = "127.0.0.1:8010";

/// Returns once an operator stops this process.
pub(crate) async fn shutdown_signal() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Parses HOST:PORT, which is resolved at each connection.
fn reachable(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(1..) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no address to connect to; write HOST:PORT, for example scheduler:8010")),
    }
}

/// Warns if a port that clients must not reach is not on loopback.
fn warn_if_public(what: &str, address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(
            "{what} on {address} accepts any connection, unencrypted; keep it on a network that only the roles of this \
             cluster reach"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_file_or_nodes_of_an_etcd() {
        assert_eq!(stored("file:/tmp/epoch"), Ok(Stored::File("/tmp/epoch".into())));
        let nodes = ["http://a:2379", "http://b:2379"].map(str::to_owned).to_vec();
        assert_eq!(stored("etcd:http://a:2379,http://b:2379"), Ok(Stored::Etcd(nodes)));
        for bad in ["", "file:", "etcd:", "/tmp/epoch", "http://a:2379"] {
            assert!(stored(bad).unwrap_err().contains("file:PATH"), "{bad}");
        }
    }

    #[test]
    fn an_address_to_connect_to_names_host_and_port() {
        for good in ["scheduler:8010", "127.0.0.1:1", "[::1]:8010"] {
            assert_eq!(reachable(good).as_deref(), Ok(good));
        }
        for bad in ["8010", ":8010", "scheduler", "scheduler:0", "scheduler:port", ""] {
            assert!(reachable(bad).unwrap_err().contains("HOST:PORT"), "{bad}");
        }
    }
}
