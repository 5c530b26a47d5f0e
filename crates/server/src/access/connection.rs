//! The beginning of a connection: TLS if it is on, and who is at the other end.

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

/// A listener, as its connections need to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door {
    /// Where it listens.
    pub(crate) bind: SocketAddr,
    /// Whether it is that of the metrics.
    pub(crate) is_metrics: bool,
}

/// What is known of a connection; every request carries it as an extension.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) bind: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// The SHA-256 of the client's certificate, if it was asked for one.
    pub(crate) certificate: Option<[u8; 32]>,
}

/// The bytes of a connection, in the clear for us.
pub(crate) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A service whose requests say which connection they come from.
#[derive(Clone)]
pub(crate) struct Greeted<S> {
    service: S,
    connection: Arc<Connection>,
}

impl Access {
    /// Begins a connection; none, with a line in the log, if it does not get as far as a request within `patience`.
    pub(crate) async fn greet<S>(
        &self,
        door: Door,
        stream: TcpStream,
        service: S,
        patience: Duration,
    ) -> Option<(Stream, Greeted<S>)> {
        let peer = stream.peer_addr().ok()?;
        let acceptor = self.tls.as_ref().and_then(|tls| tls.acceptor(door.is_metrics));
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
        let connection = Arc::new(Connection { bind: door.bind, peer, certificate });
        Some((stream, Greeted { service, connection }))
    }
}

impl<S, R> Service<Request<Incoming>> for Greeted<S>
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
