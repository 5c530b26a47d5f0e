//! Whom the server trusts with what.

use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Who is let in. By default everybody may infer, and only this machine may load and unload models.
#[derive(Clone, Debug)]
pub struct AccessConfig {
    /// Where the tokens come from; none lets everybody in.
    pub tokens: Option<TokenSource>,
    /// Where models may be loaded and unloaded from.
    pub admin: Admin,
    /// From where clients may name shared memory of this machine that tensors are in.
    pub shared_memory: SharedMemory,
    /// Names by which the server may be called when models are changed, beside localhost and its own address.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may change models, such as `https://ops.example.com`.
    pub allowed_origins: Vec<String>,
    /// Whether liveness and readiness need a token, too.
    pub guard_health: bool,
    /// Encrypts HTTP, gRPC and metrics; none leaves them in the clear.
    pub tls: Option<TlsFiles>,
    /// How often tokens and certificates are looked at for changes.
    pub reload_every: Duration,
}

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// A file of `[[token]]` entries, which is read again when it changes.
    File(PathBuf),
    /// An environment variable with such a file's text.
    Environment(String),
}

/// Where models may be loaded and unloaded from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admin {
    /// Through addresses that only this machine reaches.
    #[default]
    Auto,
    /// Through every address.
    On,
    /// Through none.
    Off,
}

/// From where clients may name shared memory of this machine that tensors are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedMemory {
    /// From nowhere.
    #[default]
    Off,
    /// Through addresses that only this machine reaches.
    Local,
    /// Through every address.
    On,
}

/// PEM files of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of client certificates; with them, whoever has no certificate is not let in.
    pub client_authorities: Option<PathBuf>,
    /// Whether the metrics stay in the clear, for scrapers and probes that have no certificate.
    pub plain_metrics: bool,
}

/// Tokens or certificates cannot be used.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct AccessError(pub(super) String);

impl Default for AccessConfig {
    fn default() -> AccessConfig {
        AccessConfig {
            tokens: None,
            admin: Admin::Auto,
            shared_memory: SharedMemory::Off,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            guard_health: false,
            tls: None,
            reload_every: Duration::from_secs(1),
        }
    }
}
