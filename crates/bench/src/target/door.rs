//! How a server is reached: in the clear or inside TLS, with a token or without; the same for both protocols.
//!
//! Secrets come from files or the environment, where other users of the machine do not see them, and never stand in an error.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

use super::Address;

/// The variable that may hold a token.
const TOKEN: &str = "RIPIENO_TOKEN";
/// The variable that names a file of authorities, to OpenSSL and whoever does as it does.
const AUTHORITIES: &str = "SSL_CERT_FILE";
/// Where systems keep the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Whom to trust, and who we are.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DoorArgs {
    /// Over https:// and grpcs://, trust servers that have a certificate of these authorities (PEM) [default: what
    /// SSL_CERT_FILE names, or else the system's].
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Show the server this certificate, with its chain (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Send the token in this file with every request. Without it, the variable RIPIENO_TOKEN may hold one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// How a server is reached. The default is in the clear, without a token.
#[derive(Clone, Default)]
pub struct Door {
    tls: Option<Arc<ClientConfig>>,
    /// `Bearer` and the token.
    authorization: Option<HeaderValue>,
}

impl Door {
    /// Reads the files.
    pub fn open(args: &DoorArgs, address: &Address) -> anyhow::Result<Door> {
        let given = args.ca.is_some() || args.cert.is_some();
        ensure!(
            address.encrypted || !given,
            "--ca, --cert and --key are for https:// and grpcs:// addresses; {} is reached in the clear",
            address.authority
        );
        let tls = address.encrypted.then(|| tls(args)).transpose()?.map(Arc::new);
        let token = match (&args.token_file, std::env::var(TOKEN)) {
            (Some(file), _) => Some((format!("--token-file {}", file.display()), read_token(file)?)),
            (None, Ok(token)) => Some((TOKEN.to_owned(), token)),
            (None, Err(_)) => None,
        };
        let authorization = token.map(|(place, token)| bearer(&place, &token)).transpose()?;
        Ok(Door { tls, authorization })
    }

    /// What a request says of who sends it.
    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Makes connections that speak `protocol`, if the server lets clients choose.
    pub(super) fn connector(&self, protocol: &[u8]) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_secs(5)));
        tcp.enforce_http(false);
        let tls = self.tls.as_ref().map(|config| {
            let mut config = ClientConfig::clone(config);
            config.alpn_protocols = vec![protocol.to_vec()];
            TlsConnector::from(Arc::new(config))
        });
        Connector { tcp, tls }
    }
}

fn read_token(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("--token-file {}", file.display()))
}

fn bearer(place: &str, token: &str) -> anyhow::Result<HeaderValue> {
    let token = token.trim();
    ensure!(!token.is_empty(), "{place} holds no token");
    // The error of a header would be no secret, but its cause in a token is all there is to say.
    let value = HeaderValue::from_str(&format!("Bearer {token}")).ok();
    let mut value = value.with_context(|| format!("{place}: a token has no line breaks or control characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn tls(args: &DoorArgs) -> anyhow::Result<ClientConfig> {
    let file = match &args.ca {
        Some(file) => file.clone(),
        None => authorities().context("no authorities are known to this system; name them with --ca FILE")?,
    };
    let shown = format!("--ca {}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&file).context(shown.clone())? {
        // Some that systems trust are too old to be understood; a file of which none is, is a mistake.
        let _ = roots.add(certificate);
    }
    ensure!(!roots.is_empty(), "{shown}: holds no certificate of an authority that can be used");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let (Some(cert), Some(key)) = (&args.cert, &args.key) else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(cert).with_context(|| format!("--cert {}", cert.display()))?;
    let private = PrivateKeyDer::from_pem_file(key).with_context(|| format!("--key {}", key.display()))?;
    let fits = || format!("--cert {} and --key {} do not fit each other", cert.display(), key.display());
    builder.with_client_auth_cert(chain, private).with_context(fits)
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
    ensure!(!found.is_empty(), "holds no certificate");
    Ok(found)
}

fn authorities() -> Option<PathBuf> {
    let named = std::env::var_os(AUTHORITIES).map(PathBuf::from);
    named.or_else(|| SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|file| file.is_file()))
}

/// Makes connections for hyper's client and for tonic's.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: Option<TlsConnector>,
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (connecting, tls) = (self.tcp.call(uri), self.tls.clone());
        Box::pin(async move {
            let stream = connecting.await?;
            let Some(tls) = tls else { return Ok(Stream::Plain(stream)) };
            let stream = tls.connect(ServerName::try_from(host)?, stream.into_inner()).await?;
            Ok(Stream::Encrypted(Box::new(TokioIo::new(stream))))
        })
    }
}

/// A connection.
pub(super) enum Stream {
    Plain(TokioIo<TcpStream>),
    Encrypted(Box<TokioIo<TlsStream<TcpStream>>>),
}

/// Passes a call on to whichever stream it is.
macro_rules! either {
    ($stream:expr, $call:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).$call($($argument),*),
            Stream::Encrypted(stream) => Pin::new(stream.as_mut()).$call($($argument),*),
        }
    };
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut TaskContext<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_read(cx, buffer))
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut TaskContext<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, poll_write(cx, data))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self, poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line_and_stays_out_of_errors() {
        let value = bearer("T", " secret-token\n").unwrap();
        assert!(value == "Bearer secret-token" && value.is_sensitive());
        for wrong in ["", " \n", "secret\ntoken"] {
            let error = format!("{:#}", bearer("T", wrong).unwrap_err());
            assert!(error.starts_with("T") && !error.contains("secret"), "{error}");
        }
    }
}
