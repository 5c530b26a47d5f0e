//! The roles of a cluster on the command line: `ripieno frontend`, `ripieno scheduler`, `ripieno
//! backend`.
//!
//! Each is a part of `serve`, wired to the others by `ripieno-cluster` (docs/internals/adr/0025). A
//! frontend is the HTTP and gRPC server of a remote engine, a scheduler an engine with only
//! metrics. A backend is a repository whose host is a device of a remote scheduler.

mod auto_plan;
pub(crate) mod backend;
mod backend_models;
mod engines;
pub(crate) mod frontend;
mod model;
mod probes;
pub(crate) mod scheduler;
mod security;

use anyhow::anyhow;
pub(crate) use security::{EpochArgs, EtcdArgs, PeerArgs};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

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

/// Pause between two looks at an engine.
const ENGINE_CHECK: Duration = Duration::from_millis(100);

/// Returns the error of a process whose engine has crashed, once it has: what is left of it refuses
/// all requests, so that the process ends, and whatever supervises it starts another one.
pub(crate) async fn engine_crash(is_alive: impl Fn() -> bool) -> anyhow::Error {
    while is_alive() {
        tokio::time::sleep(ENGINE_CHECK).await;
    }
    anyhow!("the scheduler has crashed, as the log says; this process ends, start it again (please report the fault)")
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn a_crash_of_the_engine_is_noticed() {
        let looks = Cell::new(0);
        let error = engine_crash(|| looks.replace(looks.get() + 1) < 3).await;
        assert_eq!(looks.get(), 4);
        assert!(error.to_string().contains("start it again"));
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
