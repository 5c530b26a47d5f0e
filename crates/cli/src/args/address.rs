//! Listening addresses as people write them: `8000`, `:8000`, `localhost:8000`, `127.0.0.1:8000`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// Parses an address to listen on. A port alone is on loopback, the default; `:PORT` is on every
/// address of the machine.
pub(crate) fn listening(text: &str) -> Result<SocketAddr, String> {
    let at = |host: Ipv4Addr, port: u16| SocketAddr::from((IpAddr::V4(host), port));
    if let Ok(port) = text.parse() {
        return Ok(at(Ipv4Addr::LOCALHOST, port));
    }
    if let Some(port) = text.strip_prefix(':') {
        return port.parse().map(|port| at(Ipv4Addr::UNSPECIFIED, port)).map_err(|_| usage(text));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let Some((host, port)) = text.rsplit_once(':') else { return Err(usage(text)) };
    // Only names are resolved, so that a mistyped number does not query a name server.
    let is_name = host.contains(|letter: char| letter.is_ascii_alphabetic()) && !host.contains([':', '[', '/', ' ']);
    if port.parse::<u16>().is_err() || !is_name {
        return Err(usage(text));
    }
    let found: Vec<SocketAddr> =
        text.to_socket_addrs().map_err(|error| format!("{host} is not known: {error}"))?.collect();
    let best = found.iter().find(|address| address.is_ipv4()).or(found.first());
    best.copied().ok_or_else(|| format!("{host} has no address"))
}

fn usage(text: &str) -> String {
    format!("{text:?} is no address; write 8000 (loopback), :8000 (every address), localhost:8000 or 127.0.0.1:8000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_addresses_in_many_ways() {
        let read = |text: &str| listening(text).map(|address| address.to_string());
        let expected = [
            ("8000", "127.0.0.1:8000"),
            (":8000", "0.0.0.0:8000"),
            ("localhost:8000", "127.0.0.1:8000"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:8000", "[::1]:8000"),
        ];
        for (text, address) in expected {
            assert_eq!(read(text).as_deref(), Ok(address), "{text}");
        }
        for wrong in
            ["", ":", "70000", ":70000", "localhost", "127.0.0.1", "1.2.3:80", "::1:80", "http://localhost:80", "a b:1"]
        {
            let error = read(wrong).unwrap_err();
            assert!(error.contains("write 8000 (loopback)"), "{wrong}: {error}");
        }
    }
}
