//! Who may do what, and for whom a request counts.
//!
//! One function, [`Access::admit`], stands between every call of every protocol and its work. It knows calls only by what
//! they [`Need`], so that HTTP, gRPC and metrics cannot disagree. Without tokens everybody may infer, and only calls that
//! change the server are kept to the machine itself; with tokens, whatever is not health needs one.
//!
//! Nothing of a secret leaves this module: not by a log, not by an error, not by `Debug`.

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
pub(crate) use connection::{Connection, Door, Stream};

use crate::problem::{Kind, Problem};
use clients::{ClientKey, Clients};
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
use tokens::{Scope, Scopes, Token, Tokens};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// By what a client may call itself: our own header, and those of inference gateways.
static CLIENT_IDS: [HeaderName; 3] = [
    HeaderName::from_static("x-client-id"),
    HeaderName::from_static("x-llm-d-inference-fairness-id"),
    HeaderName::from_static("x-gateway-inference-fairness-id"),
];

/// What a call needs of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing, unless the configuration guards health, too.
    Health,
    /// To know what is served, and how it does.
    Describe,
    /// To have models run.
    Infer,
    /// To say which shared memory tensors are in.
    Regions,
    /// To change the server.
    Admin,
    /// To read the metrics.
    Metrics,
}

impl Need {
    /// Any of these suffices.
    fn scopes(self) -> Scopes {
        match self {
            Need::Health => Scopes::of(&[Scope::Infer, Scope::Admin, Scope::Metrics]),
            Need::Describe => Scopes::of(&[Scope::Infer, Scope::Admin]),
            Need::Infer | Need::Regions => Scopes::of(&[Scope::Infer]),
            Need::Admin => Scopes::of(&[Scope::Admin]),
            Need::Metrics => Scopes::of(&[Scope::Metrics]),
        }
    }
}

/// Who sent a request that was let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// A small number for whoever shares devices between clients; 0 where nobody needs to be told apart.
    pub(crate) client: u16,
    /// Whether a token was shown, or none is wanted.
    pub(crate) known: bool,
    /// Whose regions of shared memory are his; none if he may use none, or was not asked for them.
    owner: Option<Owner>,
}

/// Who has registered a region of shared memory: a token's name or a certificate, hashed; all others are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner([u8; 32]);

impl Caller {
    /// Whose regions of shared memory this caller may use.
    pub(crate) fn owner(&self) -> Result<Owner, Problem> {
        self.owner.ok_or_else(|| {
            Problem::new(
                Kind::NotOffered,
                "shared memory is not open to this caller; send the tensors in the request, or have the server's operator \
                 open it (--shared-memory, docs/security.md)",
            )
        })
    }
}

/// The rules of a server, and what they need to be kept.
pub(crate) struct Access {
    config: AccessConfig,
    tokens: Option<Reloading<Tokens>>,
    tls: Option<Tls>,
    sites: Sites,
    clients: Clients,
}

impl Access {
    /// Reads tokens and certificates; fails if one cannot be used, since a server must not start more open than was asked.
    pub(crate) fn open(config: AccessConfig) -> Result<Access, AccessError> {
        let tokens = config.tokens.as_ref().map(Tokens::open).transpose().map_err(AccessError)?;
        let tls = config.tls.as_ref().map(Tls::open).transpose().map_err(AccessError)?;
        let sites = Sites::new(&config.allowed_hosts, &config.allowed_origins);
        Ok(Access { config, tokens, tls, sites, clients: Clients::default() })
    }

    /// Says what is open to other machines; once, when the server listens.
    pub(crate) fn announce(&self, doors: &[(&str, Option<SocketAddr>)]) {
        for (purpose, address) in doors.iter().filter_map(|(purpose, address)| Some((purpose, (*address)?))) {
            if address.ip().to_canonical().is_loopback() {
                continue;
            }
            if self.tokens.is_none() {
                tracing::warn!("{purpose} on {address}: whoever reaches it is served; --tokens asks for tokens");
            } else if self.tls.as_ref().is_none_or(|tls| !tls.covers(*purpose == "metrics")) {
                tracing::warn!(
                    "{purpose} on {address}: tokens travel unencrypted; --tls-cert and --tls-key change that"
                );
            }
            if self.config.admin == Admin::On && *purpose != "metrics" {
                let who = if self.tokens.is_some() { "whoever has a token for admin" } else { "whoever reaches it" };
                tracing::warn!("{purpose} on {address}: --admin on: {who} can change models and devices");
            }
            if self.config.shared_memory == SharedMemory::On && *purpose != "metrics" {
                tracing::warn!(
                    "{purpose} on {address}: --shared-memory on: whoever may infer reads and writes this machine's shared memory"
                );
            }
        }
    }

    /// Lets a call in, or says why not.
    pub(crate) fn admit<B>(&self, need: Need, request: &Request<B>) -> Result<Caller, Problem> {
        self.admit_head(need, request.uri(), request.headers(), request.extensions())
    }

    fn admit_head(
        &self,
        need: Need,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Caller, Problem> {
        let connection = extensions.get::<Arc<Connection>>().map(|connection| &**connection);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.decide(need, uri, headers, connection, now)
    }

    /// Who made a call that was let in, with his regions of shared memory, if he may use some. Asked only where tensors are in
    /// regions: which page or name a call came through takes longer to see than all else of its caller.
    pub(crate) fn sharer(&self, uri: &Uri, headers: &HeaderMap, extensions: &Extensions) -> Caller {
        self.admit_head(Need::Regions, uri, headers, extensions).unwrap_or_else(|_| caller_of(extensions))
    }

    fn decide(
        &self,
        need: Need,
        uri: &Uri,
        headers: &HeaderMap,
        connection: Option<&Connection>,
        now_s: u64,
    ) -> Result<Caller, Problem> {
        let optional = need == Need::Health && !self.config.guard_health;
        let token = match self.token(need, headers, now_s) {
            Err(_) if optional => return Ok(Caller::default()),
            token => token?,
        };
        if need == Need::Admin {
            self.admit_admin(uri, headers, connection)?;
        }
        let name = token.as_ref().map(|token| token.name.as_str());
        let key = self.client(name, headers, connection);
        let shares = need == Need::Regions && self.may_share_memory(uri, headers, connection);
        let owner = shares.then(|| owner(name, connection));
        let caller = Caller { client: key.map_or(0, |key| self.clients.number(key)), known: true, owner };
        if need == Need::Regions {
            caller.owner()?;
        }
        Ok(caller)
    }

    /// The token that a call shows; none where tokens are off.
    fn token(&self, need: Need, headers: &HeaderMap, now_s: u64) -> Result<Option<Arc<Token>>, Problem> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let refuse = |message: &str| Problem::new(Kind::Unauthenticated, message);
        let Some(shown) = shown_token(headers) else {
            return Err(refuse("a token is needed: send Authorization: Bearer TOKEN, or x-api-key: TOKEN"));
        };
        let found = tokens.current().find(shown);
        let token = found.ok_or_else(|| refuse("the token is not known to this server"))?;
        if token.expires_s.is_some_and(|expires| expires <= now_s) {
            return Err(refuse("the token has expired; ask the server's operator for another one"));
        }
        if !token.scopes.meet(need.scopes()) {
            let message = format!("the token lacks the scope for this call: {}", need.scopes());
            return Err(Problem::new(Kind::Forbidden, message));
        }
        Ok(Some(token))
    }

    fn admit_admin(&self, uri: &Uri, headers: &HeaderMap, connection: Option<&Connection>) -> Result<(), Problem> {
        let bind = connection.map(|connection| connection.bind);
        let is_local = bind.is_some_and(|bind| bind.ip().to_canonical().is_loopback());
        let refuse = |message: &str| Err(Problem::new(Kind::Forbidden, message));
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
        self.sites.check(bind, uri, headers).map_err(|message| Problem::new(Kind::Forbidden, message))
    }

    /// A caller on another machine would read and write memory of this one, and so would a web page.
    fn may_share_memory(&self, uri: &Uri, headers: &HeaderMap, connection: Option<&Connection>) -> bool {
        let bind = connection.map(|connection| connection.bind);
        let is_open = match self.config.shared_memory {
            SharedMemory::Off => false,
            SharedMemory::Local => bind.is_some_and(|bind| bind.ip().to_canonical().is_loopback()),
            SharedMemory::On => true,
        };
        is_open && self.sites.check(bind, uri, headers).is_ok()
    }

    /// By what a client is told apart: only what it cannot choose freely, unless everybody is trusted anyway.
    fn client<'a>(
        &self,
        token: Option<&'a str>,
        headers: &'a HeaderMap,
        connection: Option<&'a Connection>,
    ) -> Option<ClientKey> {
        if let Some(name) = token {
            return Some(ClientKey::token(name));
        }
        if let Some(certificate) = connection.and_then(|connection| connection.certificate) {
            return Some(ClientKey::Certificate(certificate));
        }
        let header = CLIENT_IDS.iter().find_map(|name| headers.get(name).filter(|id| !id.is_empty()));
        let by_header = header.map(|id| ClientKey::header(id.as_bytes()));
        by_header.or_else(|| connection.map(|connection| ClientKey::peer(connection.peer.ip())))
    }

    /// How often files that may change are to be looked at; none if there are none.
    pub(crate) fn refresh_every(&self) -> Option<std::time::Duration> {
        (self.tokens.is_some() || self.tls.is_some()).then_some(self.config.reload_every)
    }

    /// Reads again what changed on the disk; blocks.
    pub(crate) fn refresh(&self) {
        self.tokens.iter().for_each(Reloading::refresh);
        self.tls.iter().for_each(Tls::refresh);
    }
}

/// The token of a call: `Authorization: Bearer`, or `x-api-key`.
fn shown_token(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    let key = || headers.get(API_KEY).map(|value| value.as_bytes().trim_ascii());
    bearer.or_else(key).filter(|token| !token.is_empty())
}

fn owner(token: Option<&str>, connection: Option<&Connection>) -> Owner {
    let certificate = connection.and_then(|connection| connection.certificate);
    Owner(token.map(|name| Sha256::digest(name).into()).or(certificate).unwrap_or_default())
}

/// Who made the call that carries these extensions.
pub(crate) fn caller_of(extensions: &Extensions) -> Caller {
    extensions.get::<Caller>().copied().unwrap_or_default()
}
