//! `ripieno health`: the health of a server on this machine, for images that have no curl.

use crate::args::address::listening;
use anyhow::{Context, bail};
use clap::Args;
use hyper::Method;
use ripieno_bench::target::call::call_with;
use ripieno_bench::target::tls::ClientTlsArgs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Most bytes of an answer that are read.
const MAX_ANSWER: u64 = 4096;

/// Ask a server of this machine for its health, on its metrics port.
///
/// Prints "live" or "ready" and exits with 0, or with 1 and the reason. A port behind TLS is asked
/// over TLS: a loopback address with any certificate, another one with a certificate of --ca.
/// Where clients need certificates, show one, or leave the port plain (--tls-plain-metrics).
#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// Address of the server's metrics port.
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:8002", env = "RIPIENO_METRICS", hide_env = true, value_parser = listening)]
    address: SocketAddr,

    /// Ask whether it is ready, and not only alive.
    #[arg(long)]
    ready: bool,

    #[command(flatten)]
    tls: ClientTlsArgs,

    /// Longest time for the answer, in seconds.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout_s: u64,
}

pub(crate) fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let word = if args.ready { "ready" } else { "live" };
    let address = reachable(args.address);
    let timeout = Duration::from_secs(args.timeout_s);
    let asked = match ask(address, word, timeout) {
        // A port that speaks TLS closes a plain connection, or answers with an alert.
        Ok(None) => ask_encrypted(address, word, timeout, &args.tls),
        asked => asked.map(Option::unwrap_or_default),
    };
    let status = asked.with_context(|| address.to_string())?;
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

/// Returns the status of the answer over TLS.
fn ask_encrypted(address: SocketAddr, word: &str, timeout: Duration, tls: &ClientTlsArgs) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (url, path) = (format!("https://{address}"), format!("/v2/health/{word}"));
    let trusts_any = address.ip().is_loopback();
    let asked = async { tokio::time::timeout(timeout, call_with(Method::GET, &url, &path, tls, trusts_any)).await };
    let answer = runtime.block_on(asked).context("no answer over TLS in time")?;
    Ok(answer.context("the answer is not HTTP; is this the metrics port?")?.status().as_u16().to_string())
}

/// Returns the status of the answer over a plain connection; `None` if it is not HTTP.
fn ask(address: SocketAddr, word: &str, timeout: Duration) -> anyhow::Result<Option<String>> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let call = format!("GET /v2/health/{word} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(call.as_bytes())?;
    let mut answer = Vec::new();
    if let Err(error) = stream.take(MAX_ANSWER).read_to_end(&mut answer)
        && error.kind() != io::ErrorKind::ConnectionReset
    {
        return Err(error.into());
    }
    let head = String::from_utf8_lossy(&answer);
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split_whitespace().nth(1));
    Ok(status.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answered(answer: &'static str, word: &str) -> anyhow::Result<Option<String>> {
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
        let of = |answer, word| answered(answer, word).unwrap();
        assert_eq!(of("HTTP/1.1 200 OK\r\n\r\n{}", "live").as_deref(), Some("200"));
        assert_eq!(of("HTTP/1.1 503 Service Unavailable\r\n\r\n", "ready").as_deref(), Some("503"));
        assert_eq!(of("\u{15}\u{3}", "live"), None, "an alert of TLS");
        assert_eq!(reachable("0.0.0.0:8002".parse().unwrap()).to_string(), "127.0.0.1:8002");
    }
}
