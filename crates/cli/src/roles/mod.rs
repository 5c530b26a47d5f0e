//! The roles of a cluster on the command line: `ripieno frontend`, `ripieno scheduler`, `ripieno backend`.
//!
//! Each is what `serve` has of it, wired to the others by `ripieno-cluster` (docs/adr/0025): a frontend is the front
//! end before an engine elsewhere, a scheduler an engine with metrics and nothing else in front, a backend a repository
//! whose host is a device at somebody's orders.

pub(crate) mod backend;
pub(crate) mod frontend;
mod model;
pub(crate) mod scheduler;

use std::net::SocketAddr;
use tokio::signal::unix::{SignalKind, signal};

/// Where a scheduler listens, if nobody says.
const SCHEDULER: &str = "127.0.0.1:8010";

/// Returns once an operator wants this to end.
async fn told_to_end() -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Reads HOST:PORT, which is looked up when it is connected to.
fn reachable(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(1..) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no address to connect to; write HOST:PORT, for example scheduler:8010")),
    }
}

/// What strangers must not reach.
fn warn_of_strangers(what: &str, address: SocketAddr) {
    if !address.ip().is_loopback() {
        tracing::warn!(
            "{what} on {address} takes whoever connects, unencrypted; keep it on a network that only the roles of this \
             cluster reach"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
