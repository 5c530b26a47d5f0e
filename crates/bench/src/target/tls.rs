//! The connections to a server: plain or TLS, with or without a token; the same for both protocols.
//!
//! Secrets come from files or the environment, where other users of the machine do not see them,
//! and never appear in errors.

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
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

use super::Address;

/// The variable that may hold a token.
const TOKEN_VARIABLE: &str = "RIPIENO_TOKEN";
/// The variable that names a file of certificate authorities, as for OpenSSL.
const AUTHORITIES_VARIABLE: &str = "SSL_CERT_FILE";
/// Files of the system's certificate authorities.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The trusted authorities and the client's credentials.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ClientTlsArgs {
    /// Certificate authorities to trust over https:// and grpcs:// (PEM) [default: the file in
    /// SSL_CERT_FILE, or else the system's].
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Client certificate with its chain (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// The client certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// File with the token that is sent with every request. Without it, the variable RIPIENO_TOKEN
    /// may hold one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// The TLS configuration and the token of a client. The default is plain, without a token.
#[derive(Clone, Default)]
pub struct ClientAuth {
    tls: Option<Arc<ClientConfig>>,
    /// `Bearer` and the token.
    authorization: Option<HeaderValue>,
}

impl ClientAuth {
    /// Reads the files.
    pub fn open(args: &ClientTlsArgs, address: &Address) -> anyhow::Result<ClientAuth> {
        ClientAuth::open_with(args, address, false)
    }

    /// Reads the files; with `trusts_any`, a client without `--ca` takes any certificate.
    pub(super) fn open_with(args: &ClientTlsArgs, address: &Address, trusts_any: bool) -> anyhow::Result<ClientAuth> {
        let given = args.ca.is_some() || args.cert.is_some();
        ensure!(
            address.encrypted || !given,
            "--ca, --cert and --key are for https:// and grpcs:// addresses; {} is reached in the clear",
            address.authority
        );
        let trusts_any = trusts_any && args.ca.is_none();
        let tls = address.encrypted.then(|| tls_config(args, trusts_any)).transpose()?.map(Arc::new);
        let token = match (&args.token_file, std::env::var(TOKEN_VARIABLE)) {
            (Some(file), _) => Some((format!("--token-file {}", file.display()), read_token(file)?)),
            (None, Ok(token)) => Some((TOKEN_VARIABLE.to_owned(), token)),
            (None, Err(_)) => None,
        };
        let authorization = token.map(|(place, token)| bearer(&place, &token)).transpose()?;
        Ok(ClientAuth { tls, authorization })
    }

    /// Returns a client of other servers than our own: the system's authorities, and no token.
    pub(super) fn public(encrypted: bool) -> anyhow::Result<ClientAuth> {
        let tls = encrypted.then(|| tls_config(&ClientTlsArgs::default(), false)).transpose()?.map(Arc::new);
        Ok(ClientAuth { tls, authorization: None })
    }

    /// Returns the value of the `authorization` header.
    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Returns a connector that offers `protocol` by ALPN.
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
    // The cause would be the only information in the header's error, and it may quote the token, so
    // it is dropped.
    let value = HeaderValue::from_str(&format!("Bearer {token}")).ok();
    let mut value = value.with_context(|| format!("{place}: a token has no line breaks or control characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn tls_config(args: &ClientTlsArgs, trusts_any: bool) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match trusts_any {
        true => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        false => builder.with_root_certificates(authorities_of(args)?),
    };
    let (Some(cert), Some(key)) = (&args.cert, &args.key) else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(cert).with_context(|| format!("--cert {}", cert.display()))?;
    let private = PrivateKeyDer::from_pem_file(key).with_context(|| format!("--key {}", key.display()))?;
    let fits = || format!("--cert {} and --key {} do not fit each other", cert.display(), key.display());
    builder.with_client_auth_cert(chain, private).with_context(fits)
}

/// Returns the authorities of `--ca`, or else of the system.
fn authorities_of(args: &ClientTlsArgs) -> anyhow::Result<RootCertStore> {
    let file = match &args.ca {
        Some(file) => file.clone(),
        None => authorities().context("no authorities are known to this system; name them with --ca FILE")?,
    };
    let shown = format!("--ca {}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&file).context(shown.clone())? {
        // Some certificates that systems trust are too old to be parsed; a file in which none can
        // be is a mistake.
        let _ = roots.add(certificate);
    }
    ensure!(!roots.is_empty(), "{shown}: holds no certificate of an authority that can be used");
    Ok(roots)
}

/// Takes any certificate whose key its owner has.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
    ensure!(!found.is_empty(), "holds no certificate");
    Ok(found)
}

fn authorities() -> Option<PathBuf> {
    let named = std::env::var_os(AUTHORITIES_VARIABLE).map(PathBuf::from);
    named.or_else(|| SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|file| file.is_file()))
}

/// Makes connections for hyper's client and for tonic's.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: Option<TlsConnector>,
}

impl Service<Uri> for Connector {
    type Response = ConnectorStream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<ConnectorStream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (connecting, tls) = (self.tcp.call(uri), self.tls.clone());
        Box::pin(async move {
            let stream = connecting.await?;
            let Some(tls) = tls else { return Ok(ConnectorStream::Plain(stream)) };
            let stream = tls.connect(ServerName::try_from(host)?, stream.into_inner()).await?;
            Ok(ConnectorStream::Encrypted(Box::new(TokioIo::new(stream))))
        })
    }
}

/// A connection.
pub(super) enum ConnectorStream {
    Plain(TokioIo<TcpStream>),
    Encrypted(Box<TokioIo<TlsStream<TcpStream>>>),
}

/// Forwards a call to the inner stream.
macro_rules! either {
    ($stream:expr, $call:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            ConnectorStream::Plain(stream) => Pin::new(stream).$call($($argument),*),
            ConnectorStream::Encrypted(stream) => Pin::new(stream.as_mut()).$call($($argument),*),
        }
    };
}

impl Read for ConnectorStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut TaskContext<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        either!(self, poll_read(cx, buffer))
    }
}

impl Write for ConnectorStream {
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
            ConnectorStream::Plain(stream) => stream.is_write_vectored(),
            ConnectorStream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }
}

impl Connection for ConnectorStream {
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
