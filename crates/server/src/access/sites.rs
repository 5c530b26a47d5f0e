//! Protection against web pages that change the server, its models or its devices: only configured
//! origins may.
//!
//! A browser sends any page's POST to any address, including loopback, but states the page's origin
//! (Origin) and the host name used for this server (Host). Pages of other origins are refused. Host
//! names other than the server's own are refused too, because a name that its owner points at
//! 127.0.0.1 gives that owner's page the same origin (DNS rebinding).

use hyper::header::{HOST, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri};
use std::net::{IpAddr, SocketAddr};

/// Hosts and origins allowed besides the server's own names.
pub(super) struct Sites {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Sites {
    pub(super) fn new(hosts: &[String], origins: &[String]) -> Sites {
        let lower = |names: &[String], end: char| {
            names.iter().map(|name| name.trim_end_matches(end).to_ascii_lowercase()).collect()
        };
        Sites { hosts: lower(hosts, '.'), origins: lower(origins, '/') }
    }

    /// Admits a call unless it may come from a foreign page. `bind` is the address of the listener.
    pub(super) fn check(&self, bind: Option<SocketAddr>, uri: &Uri, headers: &HeaderMap) -> Result<(), String> {
        let parsed = headers.get_all(HOST).iter().map(|host| Authority::try_from(host.as_bytes()).ok());
        // HTTP/2 and proxies put the host into the request target.
        let called: Option<Vec<Authority>> = parsed.chain(uri.authority().map(|target| Some(target.clone()))).collect();
        let called = called.ok_or("the header Host is not valid")?;
        let Some(first) = called.first() else { return Err("the header Host is missing".to_owned()) };
        if let Some(strange) = called.iter().find(|name| !self.is_ours(name, bind)) {
            return Err(format!(
                "this server is not changed through the name '{}': use localhost or its address, or have its operator add \
                 --allow-host",
                strange.host()
            ));
        }
        for origin in headers.get_all(ORIGIN) {
            let origin = origin.to_str().unwrap_or("").to_ascii_lowercase();
            let same = origin.split_once("://").is_some_and(|(_, page)| page.eq_ignore_ascii_case(first.as_str()));
            if !same && !self.origins.contains(&origin) {
                return Err(format!(
                    "this server is not changed by pages of {origin:?}; its operator can allow that with --allow-origin"
                ));
            }
        }
        Ok(())
    }

    fn is_ours(&self, called: &Authority, bind: Option<SocketAddr>) -> bool {
        if called.as_str().contains('@') {
            // Browsers never send a user name here.
            return false;
        }
        let name = called.host().trim_end_matches('.').to_ascii_lowercase();
        if self.hosts.contains(&name) {
            return true;
        }
        let Some(bind) = bind.map(|bind| bind.ip().to_canonical()) else { return false };
        if !bind.is_loopback() {
            // Such a server may have names that it does not know; if names are configured, they are
            // complete.
            return self.hosts.is_empty();
        }
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name == "localhost" || address.is_ok_and(|address| address.to_canonical() == bind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(hosts: &[&str], origins: &[&str]) -> Sites {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Sites::new(&owned(hosts), &owned(origins))
    }

    fn check(sites: &Sites, bind: &str, target: &str, headers: &[(&str, &str)]) -> Result<(), String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(hyper::header::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        sites.check(Some(bind.parse().unwrap()), &target.parse().unwrap(), &map)
    }

    #[test]
    fn a_loopback_server_is_called_by_its_own_names_only() {
        let none = sites(&[], &[]);
        let called = |bind: &str, host: &str| check(&none, bind, "/", &[("host", host)]).is_ok();
        for host in ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:9000", "[::ffff:127.0.0.1]:1"]
        {
            assert!(called("127.0.0.1:8000", host), "{host}");
        }
        assert!(called("[::1]:8000", "[::1]:8000") && called("127.0.0.5:1", "127.0.0.5"));
        for host in
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "127.0.0.2", "[::1]"]
        {
            assert!(!called("127.0.0.1:8000", host), "{host}");
        }
        for host in ["", "a b", "evil.example@127.0.0.1:x"] {
            assert!(!called("127.0.0.1:8000", host), "{host}");
        }
        let bind = "127.0.0.1:8000";
        assert!(check(&none, bind, "/", &[]).unwrap_err().contains("missing"));
        assert!(check(&none, bind, "http://localhost:8000/", &[]).is_ok(), "HTTP/2 has it in the target");
        assert!(check(&none, bind, "http://localhost:8000/", &[("host", "evil.example")]).is_err());
        assert!(check(&none, bind, "http://evil.example/", &[("host", "localhost")]).is_err());
        assert!(check(&none, bind, "/", &[("host", "localhost"), ("host", "evil.example")]).is_err());
        let named = sites(&["Models.Example."], &[]);
        assert!(check(&named, bind, "/", &[("host", "models.example:80")]).is_ok());
        assert!(check(&named, bind, "/", &[("host", "localhost")]).is_ok());
    }

    #[test]
    fn other_servers_accept_any_name_unless_names_are_configured() {
        let none = sites(&[], &[]);
        assert!(check(&none, "0.0.0.0:8000", "/", &[("host", "models.example")]).is_ok());
        let named = sites(&["models.example"], &[]);
        assert!(check(&named, "0.0.0.0:8000", "/", &[("host", "models.example:8000")]).is_ok());
        assert!(check(&named, "0.0.0.0:8000", "/", &[("host", "evil.example")]).is_err());
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let none = sites(&[], &[]);
        let from = |sites: &Sites, origin: &str| {
            check(sites, "127.0.0.1:8000", "/", &[("host", "localhost:8000"), ("origin", origin)]).is_ok()
        };
        assert!(from(&none, "http://localhost:8000") && from(&none, "HTTP://LOCALHOST:8000"));
        for origin in ["http://localhost:3000", "http://evil.example", "null", "", "localhost:8000", "http://localhost"]
        {
            assert!(!from(&none, origin), "{origin}");
        }
        let ops = sites(&[], &["https://Ops.example/"]);
        assert!(from(&ops, "https://ops.example") && !from(&ops, "http://ops.example"));
        let two = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.example")];
        assert!(check(&none, "127.0.0.1:8000", "/", &two).is_err());
    }
}
