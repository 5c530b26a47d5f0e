//! Connections to nodes of etcd, in the clear or over TLS.

use super::super::Unreachable;
use crate::credentials;
use crate::handover::store::etcd_access::EtcdTls;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

/// Longest time for a connection over TLS.
const TLS_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns a channel to a node, which connects at the first call.
pub(super) fn channel(node: &str, tls: Option<&EtcdTls>, timeout: Duration) -> Result<Channel, Unreachable> {
    let unusable = |cause: String| Unreachable(format!("{node}: {cause}"));
    let endpoint = Endpoint::from_shared(node.to_owned()).map_err(|error| unusable(error.to_string()))?;
    match (endpoint.uri().scheme_str(), tls) {
        (Some("http"), None) => Ok(endpoint.connect_timeout(timeout).tcp_nodelay(true).connect_lazy()),
        (Some("https"), Some(tls)) => {
            // Files that cannot be used are reported at the start.
            tls.config().map_err(unusable)?;
            let tls = tls.clone();
            Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| connect(tls.clone(), uri))))
        }
        (Some("https"), None) => Err(unusable("https needs the authorities of etcd: --etcd-ca FILE".to_owned())),
        (_, Some(_)) => Err(unusable("--etcd-ca and --etcd-cert are for https:// addresses".to_owned())),
        _ => Err(unusable("write http://HOST:2379 or https://HOST:2379".to_owned())),
    }
}

async fn connect(tls: EtcdTls, uri: Uri) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let config = tls.config().map_err(io::Error::other)?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(2379);
    let open = async {
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no TLS connection in time");
    tokio::time::timeout(TLS_TIMEOUT, open).await.map_err(late)?.map(TokioIo::new)
}

impl EtcdTls {
    fn config(&self) -> Result<ClientConfig, String> {
        let roots = credentials::authorities(&self.authority, &credentials::read(&self.authority)?)?;
        let builder = ClientConfig::builder_with_provider(credentials::provider());
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = credentials::certificates(certificate, &credentials::read(certificate)?)?;
                let private = credentials::private_key(key, &credentials::read(key)?)?;
                builder.with_client_auth_cert(chain, private).map_err(|error| {
                    format!("{} and {} do not go together: {error}", certificate.display(), key.display())
                })?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}
