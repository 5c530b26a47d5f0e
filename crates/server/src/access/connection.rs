//! Start of a connection: the TLS handshake, and the identity of the peer.

use super::Access;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Request, Response};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// Shortest time between two lines of the log about failed handshakes.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

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

/// TLS handshakes that failed: a certificate that the client does not trust, no TLS at all, a
/// missing client certificate.
#[derive(Default)]
pub(crate) struct FailedHandshakes {
    count: AtomicU64,
    /// Time of the last line in the log. Scanners of ports would fill it otherwise.
    logged: Mutex<Option<Instant>>,
}

impl FailedHandshakes {
    /// Returns the number of failed handshakes.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Counts a failure, and logs it if the last line is older than a second.
    fn report(&self, peer: SocketAddr, cause: &str) {
        self.count.fetch_add(1, Relaxed);
        let mut logged = self.logged.lock();
        if logged.is_none_or(|last| last.elapsed() > LOG_INTERVAL) {
            *logged = Some(Instant::now());
            tracing::warn!(%peer, "a TLS handshake failed: {cause}");
        }
    }
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
                    self.failed_handshakes.report(peer, &error.to_string());
                    return None;
                }
                Err(_) => {
                    self.failed_handshakes.report(peer, &format!("TLS did not begin within {patience:?}"));
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
