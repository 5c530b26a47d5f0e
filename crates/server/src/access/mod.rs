//! Authentication and authorisation of calls, and the client that a request is attributed to.
//!
//! One function, [`Access::authorize`], guards every call of every protocol. It knows only the
//! [`Permission`] that a call needs, so that HTTP, gRPC and metrics cannot disagree. Without
//! tokens, every client may infer, and calls that change the server are restricted to this machine.
//! With tokens, every call except health checks needs one.
//!
//! No secret leaves this module through logs, errors or `Debug`.

mod clients;
mod config;
mod connection;
#[cfg(test)]
mod fixture;
mod reload;
mod sites;
#[cfg(test)]
mod tests;
mod tls;
mod tokens;

pub use config::{AccessConfig, AccessError, Admin, SharedMemory, TlsFiles, TokenSource};
pub(crate) use connection::{ClientStream, ConnectionInfo, FailedHandshakes, ListenerInfo};

use crate::problem::{Problem, ProblemKind};
use clients::{ClientKey, ClientNumbers};
use hyper::header::{AUTHORIZATION, HeaderName};
use hyper::http::Extensions;
use hyper::{HeaderMap, Request, Uri};
use reload::Reloading;
use sha2::{Digest, Sha256};
use sites::Sites;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tls::Tls;
use tokens::{AccessToken, AccessTokens, Scope, Scopes};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Headers that identify the client: our own, and the headers of inference gateways.
static CLIENT_ID_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-client-id"),
    HeaderName::from_static("x-llm-d-inference-fairness-id"),
    HeaderName::from_static("x-gateway-inference-fairness-id"),
];

/// Permission that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Health checks; open unless the configuration guards them.
    Health,
    /// Reading metadata and statistics of models.
    Describe,
    /// Running models.
    Infer,
    /// Placing tensors in shared memory.
    Regions,
    /// Changing the server.
    Admin,
    /// Reading the metrics.
    Metrics,
}

impl Permission {
    /// Returns the scopes of which a token must have at least one.
    fn scopes(self) -> Scopes {
        match self {
            Permission::Health => Scopes::of(&[Scope::Infer, Scope::Admin, Scope::Metrics]),
            Permission::Describe => Scopes::of(&[Scope::Infer, Scope::Admin]),
            Permission::Infer | Permission::Regions => Scopes::of(&[Scope::Infer]),
            Permission::Admin => Scopes::of(&[Scope::Admin]),
            Permission::Metrics => Scopes::of(&[Scope::Metrics]),
        }
    }
}

/// The client of an authorised request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Client number for sharing devices between clients; 0 if clients need not be told apart.
    pub(crate) client: u16,
    /// Whether the client sent a valid token, or none is required.
    pub(crate) known: bool,
    /// Owner of the shared memory regions that the client may use; `None` if it may use none, or
    /// this was not checked.
    owner: Option<RegionOwner>,
}

/// Owner of a shared memory region: a hashed token name or certificate. Clients without either
/// share one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RegionOwner([u8; 32]);

impl Caller {
    /// Returns the owner of the regions that this client may use.
    pub(crate) fn owner(&self) -> Result<RegionOwner, Problem> {
        self.owner.ok_or_else(|| {
            Problem::new(
                ProblemKind::NotOffered,
                "shared memory is not open to this caller; send the tensors in the request, or have the server's operator \
                 open it (--shared-memory, docs/guide/security.md)",
            )
        })
    }
}

/// Access rules of a server, with the state that they need.
pub(crate) struct Access {
    config: AccessConfig,
    tokens: Option<Reloading<AccessTokens>>,
    tls: Option<Tls>,
    /// End of the certificate towards other roles, in seconds since the Unix epoch.
    peer_expiry_s: Option<Reloading<Option<u64>>>,
    sites: Sites,
    clients: ClientNumbers,
    pub(crate) failed_handshakes: FailedHandshakes,
}

impl Access {
    /// Loads tokens and certificates. An unusable one is an error, because the server must not
    /// start with less protection than configured.
    pub(crate) fn open(config: AccessConfig) -> Result<Access, AccessError> {
        let tokens = config.tokens.as_ref().map(AccessTokens::open).transpose().map_err(AccessError)?;
        let tls = config.tls.as_ref().map(Tls::open).transpose().map_err(AccessError)?;
        let peer = config
            .peer_certificate
            .as_ref()
            .map(|file| Reloading::open("the certificate between the roles", vec![file.clone()], tls::chain_expiry_s));
        let peer_expiry_s = peer.transpose().map_err(AccessError)?;
        let sites = Sites::new(&config.allowed_hosts, &config.allowed_origins);
        Ok(Access {
            config,
            tokens,
            tls,
            peer_expiry_s,
            sites,
            clients: ClientNumbers::default(),
            failed_handshakes: FailedHandshakes::default(),
        })
    }

    /// Logs a warning for each listener that is open to other machines.
    pub(crate) fn warn_about_open_listeners(&self, listeners: &[(&str, Option<SocketAddr>)]) {
        for (purpose, address) in listeners.iter().filter_map(|(purpose, address)| Some((purpose, (*address)?))) {
            if address.ip().to_canonical().is_loopback() {
                continue;
            }
            if self.tokens.is_none() {
                tracing::warn!(
                    "{purpose} on {address}: any client that reaches it is served; --tokens asks for tokens"
                );
            } else if self.tls.as_ref().is_none_or(|tls| !tls.covers(*purpose == "metrics")) {
                tracing::warn!(
                    "{purpose} on {address}: tokens travel unencrypted; --tls-cert and --tls-key change that"
                );
            }
            if self.config.admin == Admin::On && *purpose != "metrics" {
                let who = if self.tokens.is_some() {
                    "any client with a token for admin"
                } else {
                    "any client that reaches it"
                };
                tracing::warn!("{purpose} on {address}: --admin on: {who} can change models and devices");
            }
            if self.config.shared_memory == SharedMemory::On && *purpose != "metrics" {
                tracing::warn!(
                    "{purpose} on {address}: --shared-memory on: any client that may infer reads and writes this machine's shared memory"
                );
            }
        }
    }

    /// Authorises a call, or returns the reason for the refusal.
    pub(crate) fn authorize<B>(&self, permission: Permission, request: &Request<B>) -> Result<Caller, Problem> {
        self.authorize_head(permission, request.uri(), request.headers(), request.extensions())
    }

    fn authorize_head(
        &self,
        permission: Permission,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Caller, Problem> {
        let connection = extensions.get::<Arc<ConnectionInfo>>().map(|connection| &**connection);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.authorize_at(permission, uri, headers, connection, now)
    }

    /// Returns the client of an authorised call, with access to shared memory regions if it may use
    /// them. Called only for requests with tensors in regions, because checking the host and origin
    /// costs more than the rest of authorisation.
    pub(crate) fn region_caller(&self, uri: &Uri, headers: &HeaderMap, extensions: &Extensions) -> Caller {
        self.authorize_head(Permission::Regions, uri, headers, extensions).unwrap_or_else(|_| caller_of(extensions))
    }

    fn authorize_at(
        &self,
        permission: Permission,
        uri: &Uri,
        headers: &HeaderMap,
        connection: Option<&ConnectionInfo>,
        now_s: u64,
    ) -> Result<Caller, Problem> {
        let optional = permission == Permission::Health && !self.config.guard_health;
        let token = match self.token(permission, headers, now_s) {
            Err(_) if optional => return Ok(Caller::default()),
            token => token?,
        };
        if permission == Permission::Admin {
            self.authorize_admin(uri, headers, connection)?;
        }
        let name = token.as_ref().map(|token| token.name.as_str());
        let key = self.client(name, headers, connection);
        let shares = permission == Permission::Regions && self.may_share_memory(uri, headers, connection);
        let owner = shares.then(|| owner(name, connection));
        if permission == Permission::Admin {
            let peer = connection.map(|connection| connection.peer.to_string());
            tracing::info!(peer, token = name, "{}: an operator's call", uri.path());
        }
        let caller = Caller { client: key.map_or(0, |key| self.clients.number(key)), known: true, owner };
        if permission == Permission::Regions {
            caller.owner()?;
        }
        Ok(caller)
    }

    /// Returns the token of a call; `None` if tokens are disabled.
    fn token(
        &self,
        permission: Permission,
        headers: &HeaderMap,
        now_s: u64,
    ) -> Result<Option<Arc<AccessToken>>, Problem> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let refuse = |message: &str| Problem::new(ProblemKind::Unauthenticated, message);
        let Some(shown) = presented_token(headers) else {
            return Err(refuse("a token is needed: send Authorization: Bearer TOKEN, or x-api-key: TOKEN"));
        };
        let found = tokens.current().find(shown);
        let token = found.ok_or_else(|| refuse("the token is not known to this server"))?;
        if token.expires_s.is_some_and(|expires| expires <= now_s) {
            return Err(refuse("the token has expired; ask the server's operator for another one"));
        }
        if !token.scopes.intersects(permission.scopes()) {
            let message = format!("the token lacks the scope for this call: {}", permission.scopes());
            return Err(Problem::new(ProblemKind::Forbidden, message));
        }
        Ok(Some(token))
    }

    fn authorize_admin(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        connection: Option<&ConnectionInfo>,
    ) -> Result<(), Problem> {
        let bind = connection.map(|connection| connection.bind);
        let is_local = bind.is_some_and(|bind| bind.ip().to_canonical().is_loopback());
        let refuse = |message: &str| Err(Problem::new(ProblemKind::Forbidden, message));
        match self.config.admin {
            Admin::Off => {
                return refuse("neither models nor devices of this server are changed by calls (--admin off)");
            }
            Admin::Auto if !is_local => {
                return refuse(
                    "models and devices are changed by calls only where the server listens on a loopback address; its \
                     operator can open that with --admin on",
                );
            }
            Admin::Auto | Admin::On => {}
        }
        self.sites.check(bind, uri, headers).map_err(|message| Problem::new(ProblemKind::Forbidden, message))
    }

    /// Returns true if the client may use shared memory. Clients on other machines and web pages
    /// must not access this machine's memory.
    fn may_share_memory(&self, uri: &Uri, headers: &HeaderMap, connection: Option<&ConnectionInfo>) -> bool {
        let bind = connection.map(|connection| connection.bind);
        let is_open = match self.config.shared_memory {
            SharedMemory::Off => false,
            SharedMemory::Local => bind.is_some_and(|bind| bind.ip().to_canonical().is_loopback()),
            SharedMemory::On => true,
        };
        is_open && self.sites.check(bind, uri, headers).is_ok()
    }

    /// Returns the client's identity. Values that the client chooses freely count only if there are
    /// no tokens and no certificates.
    fn client<'a>(
        &self,
        token: Option<&'a str>,
        headers: &'a HeaderMap,
        connection: Option<&'a ConnectionInfo>,
    ) -> Option<ClientKey> {
        if let Some(name) = token {
            return Some(ClientKey::token(name));
        }
        if let Some(certificate) = connection.and_then(|connection| connection.certificate) {
            return Some(ClientKey::Certificate(certificate));
        }
        let header = CLIENT_ID_HEADERS.iter().find_map(|name| headers.get(name).filter(|id| !id.is_empty()));
        let by_header = header.map(|id| ClientKey::header(id.as_bytes()));
        by_header.or_else(|| connection.map(|connection| ClientKey::peer(connection.peer.ip())))
    }

    /// Returns the interval for checking files for changes; `None` if there are no files.
    pub(crate) fn refresh_every(&self) -> Option<std::time::Duration> {
        let has_files = self.tokens.is_some() || self.tls.is_some() || self.peer_expiry_s.is_some();
        has_files.then_some(self.config.reload_every)
    }

    /// Returns the name of the client that has this number now: its token, the identity that it
    /// sends, or its address.
    pub(crate) fn client_name(&self, number: u16) -> Option<String> {
        self.clients.name(number)
    }

    /// Returns the time at which the server's certificate ends, in seconds since the Unix epoch;
    /// `None` without TLS.
    pub(crate) fn certificate_expiry_s(&self) -> Option<u64> {
        self.tls.as_ref()?.expiry_s()
    }

    /// Returns the time at which the certificate towards other roles ends; `None` without one.
    pub(crate) fn peer_certificate_expiry_s(&self) -> Option<u64> {
        *self.peer_expiry_s.as_ref()?.current()
    }

    /// Reloads changed files; blocks.
    pub(crate) fn refresh(&self) {
        if let Some(tokens) = &self.tokens {
            tokens.refresh();
        }
        if let Some(tls) = &self.tls {
            tls.refresh();
        }
        if let Some(peer) = &self.peer_expiry_s {
            peer.refresh();
        }
    }
}

/// Returns the token of a call: `Authorization: Bearer`, or `x-api-key`.
fn presented_token(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    let key = || headers.get(API_KEY).map(|value| value.as_bytes().trim_ascii());
    bearer.or_else(key).filter(|token| !token.is_empty())
}

fn owner(token: Option<&str>, connection: Option<&ConnectionInfo>) -> RegionOwner {
    let certificate = connection.and_then(|connection| connection.certificate);
    RegionOwner(token.map(|name| Sha256::digest(name).into()).or(certificate).unwrap_or_default())
}

/// Returns the client of the call with these extensions.
pub(crate) fn caller_of(extensions: &Extensions) -> Caller {
    extensions.get::<Caller>().copied().unwrap_or_default()
}
