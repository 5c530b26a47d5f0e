//! Start of a connection: the TLS handshake, and the identity of the peer.

use super::Access;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Request, Response};
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// Properties of a listener that its connections need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerInfo {
    /// Address of the listener.
    pub(crate) bind: SocketAddr,
    /// Whether this is the metrics listener.
    pub(crate) is_metrics: bool,
}

/// Properties of a connection; every request carries them as an extension.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) bind: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// SHA-256 of the client's certificate, if client certificates are enabled.
    pub(crate) certificate: Option<[u8; 32]>,
}

/// A connection's byte stream, decrypted.
pub(crate) type ClientStream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A service that attaches the connection's properties to each request.
#[derive(Clone)]
pub(crate) struct WithConnectionInfo<S> {
    service: S,
    connection: Arc<ConnectionInfo>,
}

impl Access {
    /// Performs the TLS handshake if TLS is enabled. Returns `None`, with a log line, if it fails
    /// or takes longer than `patience`.
    pub(crate) async fn handshake<S>(
        &self,
        listener: ListenerInfo,
        stream: TcpStream,
        service: S,
        patience: Duration,
    ) -> Option<(ClientStream, WithConnectionInfo<S>)> {
        let peer = stream.peer_addr().ok()?;
        let acceptor = self.tls.as_ref().and_then(|tls| tls.acceptor(listener.is_metrics));
        let (stream, certificate) = match acceptor {
            None => (Either::Left(stream), None),
            Some(acceptor) => match tokio::time::timeout(patience, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    let certificate = chain.and_then(|chain| chain.first()).map(|first| Sha256::digest(first).into());
                    (Either::Right(Box::new(stream)), certificate)
                }
                Ok(Err(error)) => {
                    tracing::debug!("{peer}: no TLS: {error}");
                    return None;
                }
                Err(_) => {
                    tracing::debug!("{peer}: TLS did not begin within {patience:?}");
                    return None;
                }
            },
        };
        let connection = Arc::new(ConnectionInfo { bind: listener.bind, peer, certificate });
        Some((stream, WithConnectionInfo { service, connection }))
    }
}

impl<S, R> Service<Request<Incoming>> for WithConnectionInfo<S>
where
    S: Service<Request<Incoming>, Response = Response<R>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<Incoming>) -> S::Future {
        request.extensions_mut().insert(self.connection.clone());
        self.service.call(request)
    }
}
