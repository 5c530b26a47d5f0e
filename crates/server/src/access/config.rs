//! Access control settings of the server.

use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Access control. By default every client may infer, and only this machine may load and unload
/// models.
#[derive(Clone, Debug)]
pub struct AccessConfig {
    /// Source of the tokens; `None` admits every client.
    pub tokens: Option<TokenSource>,
    /// Listeners on which models may be loaded and unloaded.
    pub admin: Admin,
    /// Listeners on which clients may place tensors in this machine's shared memory.
    pub shared_memory: SharedMemory,
    /// Host names that clients may use for the server in calls that change models, besides
    /// localhost and its own address.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may change models, such as `https://ops.example.com`.
    pub allowed_origins: Vec<String>,
    /// Whether liveness and readiness also require a token.
    pub guard_health: bool,
    /// Encrypts HTTP, gRPC and metrics; `None` leaves them unencrypted.
    pub tls: Option<TlsFiles>,
    /// Certificate of this role of a cluster towards the others, whose end is watched.
    pub peer_certificate: Option<PathBuf>,
    /// Interval at which tokens and certificates are checked for changes.
    pub reload_every: Duration,
}

/// Source of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// A file of `[[token]]` entries, reloaded when it changes.
    File(PathBuf),
    /// An environment variable with the content of such a file.
    Environment(String),
}

/// Listeners on which models may be loaded and unloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admin {
    /// Loopback listeners.
    #[default]
    Auto,
    /// All listeners.
    On,
    /// None.
    Off,
}

/// Listeners on which clients may place tensors in this machine's shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedMemory {
    /// None.
    #[default]
    Off,
    /// Loopback listeners.
    Local,
    /// All listeners.
    On,
}

/// PEM files of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// Authorities of client certificates; if set, clients without a certificate are refused.
    pub client_authorities: Option<PathBuf>,
    /// Whether metrics stay unencrypted, for scrapers and probes without a certificate.
    pub plain_metrics: bool,
}

/// Error for tokens, certificates or an access log that cannot be used.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct AccessError(pub(crate) String);

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
            peer_certificate: None,
            reload_every: Duration::from_secs(1),
        }
    }
}
