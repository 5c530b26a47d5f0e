//! Authentication and authorisation, from the command line to the server's settings.

use clap::{Args, ValueEnum};
use ripieno_server::{AccessConfig, Admin, SharedMemory, TlsFiles, TokenSource};
use std::path::PathBuf;

/// The environment variable that may hold the text of a token file.
const TOKENS_VARIABLE: &str = "RIPIENO_TOKENS";

/// TLS, tokens, and permission to load and unload models; docs/guide/security.md has commands to
/// copy.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Encrypt HTTP, gRPC and metrics with this certificate and its chain (PEM). Read again when
    /// the file changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Accept only clients with a certificate of these authorities (PEM): mutual TLS.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,

    /// Leave the metrics unencrypted and without client certificates.
    #[arg(long, requires = "tls_cert")]
    tls_plain_metrics: bool,

    /// Require tokens: a TOML file whose sections "token" have name, token or sha256, scopes
    /// (infer, admin, metrics) and expires. Read again when it changes. Without it, the variable
    /// RIPIENO_TOKENS may hold the same text.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,

    /// Require tokens on the health endpoints, too.
    #[arg(long)]
    guard_health: bool,

    /// Clients that may load and unload models. auto: if the server listens on a loopback address.
    #[arg(long, value_enum, default_value = "auto")]
    admin: AdminArg,

    /// Clients that may use this machine's shared memory for tensors, of those that may infer.
    /// local: if the server listens on a loopback address.
    #[arg(long, value_enum, default_value = "off")]
    shared_memory: SharedMemoryArg,

    /// A host name of this server for clients that load and unload models, besides localhost and
    /// its address; may be given several times.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// An origin whose web pages may load and unload models, scheme and host (see
    /// docs/guide/security.md); may be given several times.
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
}

/// Addresses at which models may be loaded and unloaded.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AdminArg {
    /// On addresses that only this machine reaches.
    Auto,
    /// Everywhere, with a warning.
    On,
    /// Nowhere.
    Off,
}

/// Addresses at which clients may use shared memory.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SharedMemoryArg {
    /// Nowhere.
    Off,
    /// On addresses that only this machine reaches.
    Local,
    /// Everywhere, with a warning.
    On,
}

impl AccessArgs {
    /// Returns the URL schemes of HTTP and of the metrics.
    pub(crate) fn scheme(&self) -> (&'static str, &'static str) {
        match (self.tls_cert.is_some(), self.tls_plain_metrics) {
            (false, _) => ("http", "http"),
            (true, true) => ("https", "http"),
            (true, false) => ("https", "https"),
        }
    }

    fn asks_for_tokens(&self) -> bool {
        self.tokens.is_some() || std::env::var_os(TOKENS_VARIABLE).is_some()
    }

    /// Returns the options of `ripieno bench` besides the address.
    pub(crate) fn bench_options(&self) -> String {
        let token = if self.asks_for_tokens() { " --token-file FILE" } else { "" };
        let certificate = self.tls_cert.as_ref().map_or(String::new(), |file| format!(" --ca {}", file.display()));
        format!("{certificate}{token}")
    }

    /// Returns curl's options besides the address.
    pub(crate) fn curl_options(&self) -> String {
        let token = if self.asks_for_tokens() { " -H \"Authorization: Bearer $TOKEN\"" } else { "" };
        let certificate = self.tls_cert.as_ref().map_or(String::new(), |file| format!(" --cacert {}", file.display()));
        format!("{certificate}{token}")
    }

    pub(crate) fn config(&self) -> AccessConfig {
        let variable =
            || std::env::var_os(TOKENS_VARIABLE).map(|_| TokenSource::Environment(TOKENS_VARIABLE.to_owned()));
        let tls = |(certificate, key)| TlsFiles {
            certificate,
            key,
            client_authorities: self.tls_client_ca.clone(),
            plain_metrics: self.tls_plain_metrics,
        };
        AccessConfig {
            tokens: self.tokens.clone().map(TokenSource::File).or_else(variable),
            admin: match self.admin {
                AdminArg::Auto => Admin::Auto,
                AdminArg::On => Admin::On,
                AdminArg::Off => Admin::Off,
            },
            shared_memory: match self.shared_memory {
                SharedMemoryArg::Off => SharedMemory::Off,
                SharedMemoryArg::Local => SharedMemory::Local,
                SharedMemoryArg::On => SharedMemory::On,
            },
            allowed_hosts: self.allow_host.clone(),
            allowed_origins: self.allow_origin.clone(),
            guard_health: self.guard_health,
            tls: self.tls_cert.clone().zip(self.tls_key.clone()).map(tls),
            ..AccessConfig::default()
        }
    }
}
