//! `ripieno health`: the health of a server on this machine, for images that have no curl.

use crate::args::address::listening;
use anyhow::{Context, bail};
use clap::Args;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Most bytes of an answer that are read.
const MAX_ANSWER: u64 = 4096;

/// Ask a server of this machine for its health, on its metrics port.
///
/// Prints "live" or "ready" and exits with 0, or with 1 and the reason. Behind TLS the metrics port
/// must be plain (--tls-plain-metrics).
#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// Address of the server's metrics port.
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:8002", env = "RIPIENO_METRICS", hide_env = true, value_parser = listening)]
    address: SocketAddr,

    /// Ask whether it is ready, and not only alive.
    #[arg(long)]
    ready: bool,

    /// Longest time for the answer, in seconds.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout_s: u64,
}

pub(crate) fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let word = if args.ready { "ready" } else { "live" };
    let address = reachable(args.address);
    let status = ask(address, word, Duration::from_secs(args.timeout_s)).with_context(|| address.to_string())?;
    match status.as_str() {
        "200" => crate::output::print(word),
        _ => bail!("{address} is not {word}: status {status}"),
    }
}

/// Returns the address at which a listener on all addresses is reached.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip().is_unspecified() {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()),
        false => address,
    }
}

/// Returns the status of the answer.
fn ask(address: SocketAddr, word: &str, timeout: Duration) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let call = format!("GET /v2/health/{word} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(call.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let head = String::from_utf8_lossy(&answer);
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split_whitespace().nth(1));
    status.map(str::to_owned).context("the answer is not HTTP; is this the metrics port, and is it plain?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answered(answer: &'static str, word: &str) -> anyhow::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut call = [0; 256];
            let read = stream.read(&mut call).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&call[..read]).into_owned()
        });
        let status = ask(address, word, Duration::from_secs(20));
        assert!(server.join().unwrap().starts_with(&format!("GET /v2/health/{word} HTTP/1.1\r\n")));
        status
    }

    #[test]
    fn the_status_is_what_the_server_says() {
        assert_eq!(answered("HTTP/1.1 200 OK\r\n\r\n{}", "live").unwrap(), "200");
        assert_eq!(answered("HTTP/1.1 503 Service Unavailable\r\n\r\n", "ready").unwrap(), "503");
        assert!(answered("\u{15}\u{3}", "live").unwrap_err().to_string().contains("is it plain"));
        assert_eq!(reachable("0.0.0.0:8002".parse().unwrap()).to_string(), "127.0.0.1:8002");
    }
}
