//! Mutual TLS between roles: TCP whose two ends show a certificate of one authority, with one name.
//!
//! Both sides check the other's chain and the name, so a certificate that the authority issued for
//! something else does not let its holder in. The name is the same in all roles: addresses of pods
//! change, and a certificate for each would have to follow them. TLS 1.3 only, and no session is
//! resumed, so that each connection is checked against the present files.
//!
//! rustls keeps the state of both directions in one value. The reading and the writing thread share
//! it under a lock that is never held while the network is waited for, apart from the handshake. A
//! second lock keeps encrypted records in order.

use super::transport::{BoundListener, ReadBytes, connect_tcp};
use super::{ByteStream, Listener, Transport};
use crate::credentials;
use parking_lot::Mutex;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::ServerName;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, InvalidMessage, ServerConfig, ServerConnection};
use std::fmt::Display;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest time of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval at which the files are compared with those in use, at new connections.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes that are encrypted together, and bytes that are received together.
const CHUNK: usize = 256 << 10;

/// The credentials of a role.
#[derive(Clone, Debug)]
pub struct PeerFiles {
    /// The role's certificate and its chain (PEM), for servers and clients.
    pub certificate: PathBuf,
    /// Private key of the certificate (PEM).
    pub key: PathBuf,
    /// The authorities of all roles' certificates (PEM).
    pub authority: PathBuf,
    /// The DNS name in every role's certificate.
    pub name: String,
}

/// TCP under mutual TLS.
pub struct MutualTls {
    files: PeerFiles,
    loaded: Arc<Mutex<LoadedFiles>>,
}

/// The files' contents, and the configurations that were made of them.
struct LoadedFiles {
    contents: [Vec<u8>; 3],
    checked: Instant,
    configs: PeerConfigs,
}

#[derive(Clone)]
struct PeerConfigs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: ServerName<'static>,
}

impl MutualTls {
    /// Reads the files; the error names the one that cannot be used. They are read again when they
    /// change.
    pub fn open(files: PeerFiles) -> Result<MutualTls, String> {
        let contents = files.read()?;
        let configs = files.configs(&contents)?;
        let loaded = LoadedFiles { contents, checked: Instant::now(), configs };
        Ok(MutualTls { files, loaded: Arc::new(Mutex::new(loaded)) })
    }
}

impl PeerFiles {
    fn read(&self) -> Result<[Vec<u8>; 3], String> {
        let read = |file| credentials::read(file);
        Ok([read(&self.certificate)?, read(&self.key)?, read(&self.authority)?])
    }

    fn configs(&self, [certificate, key, authority]: &[Vec<u8>; 3]) -> Result<PeerConfigs, String> {
        let own = || {
            let chain = credentials::certificates(&self.certificate, certificate)?;
            Ok::<_, String>((chain, credentials::private_key(&self.key, key)?))
        };
        let name = ServerName::try_from(self.name.clone()).map_err(|_| format!("{:?} is no DNS name", self.name))?;
        let roots = Arc::new(credentials::authorities(&self.authority, authority)?);
        let provider = credentials::provider();
        let unusable = |error: &dyn Display| format!("{}: {error}", self.authority.display());
        let apart =
            |error| format!("{} and {} do not go together: {error}", self.certificate.display(), self.key.display());
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let servers = servers.map_err(|error| unusable(&error))?;
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13]);
        let client = client.map_err(|error| unusable(&error))?.with_webpki_verifier(servers);
        let (chain, key) = own()?;
        let mut client = client.with_client_auth_cert(chain, key).map_err(apart)?;
        client.resumption = Resumption::disabled();
        let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let server = server.map_err(|error| unusable(&error))?;
        let server = server.with_client_cert_verifier(clients.map_err(|error| unusable(&error))?);
        let (chain, key) = own()?;
        let mut server = server.with_single_cert(chain, key).map_err(apart)?;
        server.send_tls13_tickets = 0;
        Ok(PeerConfigs { client: Arc::new(client), server: Arc::new(server), name })
    }

    /// Returns the configurations of the present files, or the last ones that could be used.
    fn current(&self, loaded: &Mutex<LoadedFiles>) -> PeerConfigs {
        let mut loaded = loaded.lock();
        if loaded.checked.elapsed() >= RELOAD_INTERVAL {
            loaded.checked = Instant::now();
            self.reload(&mut loaded);
        }
        loaded.configs.clone()
    }

    fn reload(&self, loaded: &mut LoadedFiles) {
        let read = self.read().and_then(|contents| {
            let changed = contents != loaded.contents;
            let configs = changed.then(|| self.configs(&contents)).transpose()?;
            Ok((contents, configs))
        });
        match read {
            Ok((contents, Some(configs))) => {
                (loaded.contents, loaded.configs) = (contents, configs);
                tracing::info!("the certificate between roles has changed; new connections use it");
            }
            Ok((_, None)) => {}
            Err(error) => tracing::warn!("the certificate between roles stays the earlier one: {error}"),
        }
    }
}

impl Transport for MutualTls {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>> {
        let PeerConfigs { client, name, .. } = self.files.current(&self.loaded);
        let connection = ClientConnection::new(client, name.clone()).map_err(io::Error::other)?;
        Ok(TlsByteStream::over(connect_tcp(address, within)?, connection.into(), name))
    }

    /// The handshake happens at the first read or write, so that a slow peer holds up its own
    /// thread and no other connection.
    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        let (files, loaded) = (self.files.clone(), Arc::clone(&self.loaded));
        let accept = move |stream| {
            let PeerConfigs { server, name, .. } = files.current(&loaded);
            let connection = ServerConnection::new(server).map_err(io::Error::other)?;
            Ok(TlsByteStream::over(stream, connection.into(), name))
        };
        Ok(BoundListener::bind(address, Box::new(accept))?)
    }
}

struct TlsByteStream {
    stream: TcpStream,
    /// Address of the peer, which the socket forgets when the peer leaves.
    peer: Option<SocketAddr>,
    /// The name that the peer's certificate must have.
    name: ServerName<'static>,
    connection: Mutex<Connection>,
    established: AtomicBool,
    /// Bytes that the reading thread has received and not decrypted.
    received: Mutex<ReceivedBytes>,
    /// Encrypted records that are being sent; the lock keeps them in order.
    sending: Mutex<EncryptedRecords>,
    /// The read timeout that the socket has.
    silence_ns: AtomicU64,
}

struct ReceivedBytes {
    bytes: Box<[u8]>,
    left: Range<usize>,
}

/// Encrypted records, and the number of bytes of them that are sent.
#[derive(Default)]
struct EncryptedRecords {
    bytes: Vec<u8>,
    sent: usize,
}

impl TlsByteStream {
    fn over(stream: TcpStream, mut connection: Connection, name: ServerName<'static>) -> Arc<dyn ByteStream> {
        // Writes are bounded by their chunks.
        connection.set_buffer_limit(None);
        let received = ReceivedBytes { bytes: vec![0; CHUNK].into(), left: 0..0 };
        Arc::new(TlsByteStream {
            peer: stream.peer_addr().ok(),
            stream,
            name,
            connection: Mutex::new(connection),
            established: AtomicBool::new(false),
            received: Mutex::new(received),
            sending: Mutex::default(),
            silence_ns: AtomicU64::new(0),
        })
    }

    /// Completes the handshake, once.
    fn establish(&self) -> io::Result<()> {
        if self.established.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut connection = self.connection.lock();
        if self.established.load(Ordering::Acquire) {
            return Ok(());
        }
        let until = Instant::now() + HANDSHAKE_TIMEOUT;
        while connection.is_handshaking() || connection.wants_write() {
            if connection.wants_write() {
                connection.write_tls(&mut &self.stream)?;
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "its TLS handshake takes too long"));
            }
            self.stream.set_read_timeout(Some(left))?;
            if connection.read_tls(&mut &self.stream)? == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "it closed during the TLS handshake"));
            }
            if let Err(error) = connection.process_new_packets() {
                // The peer learns why, if it still listens.
                let _ = connection.write_tls(&mut &self.stream);
                return Err(match error {
                    rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => refused(&NO_TLS),
                    error => refused(&error),
                });
            }
        }
        self.check_name(&connection)?;
        self.established.store(true, Ordering::Release);
        Ok(())
    }

    /// Checks the name in the peer's certificate: rustls does so for servers alone.
    fn check_name(&self, connection: &Connection) -> io::Result<()> {
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.ok_or_else(|| refused(&"it showed no certificate"))?;
        let parsed = ParsedCertificate::try_from(certificate).map_err(|error| refused(&error))?;
        verify_server_name(&parsed, &self.name).map_err(|error| refused(&error))
    }

    /// Decrypts as much of what has arrived as fits; `None` if nothing is there.
    fn decrypt(&self, received: &mut ReceivedBytes, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut connection = self.connection.lock();
        let mut filled = 0;
        while filled < into.len() {
            match connection.reader().read(&mut into[filled..]) {
                // The peer has ended the session.
                Ok(0) if filled == 0 => return Ok(Some(0)),
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if received.left.is_empty() => break,
                Err(_) => {
                    let mut rest = &received.bytes[received.left.clone()];
                    let taken = connection.read_tls(&mut rest)?;
                    if taken == 0 {
                        return Err(refused(&"its records do not fit"));
                    }
                    received.left.start += taken;
                    connection.process_new_packets().map_err(|error| refused(&error))?;
                }
            }
        }
        Ok((filled > 0).then_some(filled))
    }

    /// Reads and decrypts; `prepare` is called before each read of the socket.
    fn read_decrypted(&self, into: &mut [u8], prepare: impl Fn() -> io::Result<()>) -> io::Result<usize> {
        let mut received = self.received.lock();
        loop {
            if let Some(read) = self.decrypt(&mut received, into)? {
                return Ok(read);
            }
            prepare()?;
            let read = (&self.stream).read(&mut received.bytes)?;
            if read == 0 {
                return Ok(0);
            }
            received.left = 0..read;
        }
    }

    fn encrypt(&self, bytes: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        let mut connection = self.connection.lock();
        connection.writer().write_all(bytes)?;
        while connection.wants_write() {
            connection.write_tls(into)?;
        }
        Ok(())
    }
}

/// The fault of a peer that began without TLS.
const NO_TLS: &str = "the other side does not encrypt; give all roles --peer-cert, --peer-key and --peer-ca";

fn refused(cause: &dyn Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("TLS between roles: {cause}"))
}

impl ByteStream for TlsByteStream {
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize> {
        self.establish()?;
        self.read_decrypted(into, || {
            let silence_ns = silence.as_nanos() as u64;
            if self.silence_ns.swap(silence_ns, Ordering::Relaxed) != silence_ns {
                self.stream.set_read_timeout(Some(silence))?;
            }
            Ok(())
        })
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.establish()?;
        let EncryptedRecords { bytes: sending, .. } = &mut *self.sending.lock();
        for chunk in bytes.chunks(CHUNK) {
            self.encrypt(chunk, sending)?;
            let sent = (&self.stream).write_all(sending);
            sending.clear();
            sent?;
        }
        Ok(())
    }

    fn close(&self) {
        // The peer may have closed it already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    fn encrypts(&self) -> bool {
        true
    }

    /// Waits for the end of the handshake, which an event loop could not.
    fn set_polled(&self) -> io::Result<RawFd> {
        self.establish()?;
        self.stream.set_nonblocking(true)?;
        Ok(self.stream.as_raw_fd())
    }

    fn try_read(&self, into: &mut [u8]) -> io::Result<ReadBytes> {
        let number = self.read_decrypted(into, || Ok(()))?;
        Ok(ReadBytes { number, more: true })
    }

    /// Encrypts a chunk only once the records of the last one are sent: so what is taken and not
    /// sent is bounded.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sending = self.sending.lock();
        sending.send(&self.stream)?;
        let taken = &bytes[..bytes.len().min(CHUNK)];
        if !taken.is_empty() {
            self.encrypt(taken, &mut sending.bytes)?;
            match sending.send(&self.stream) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(taken.len())
    }
}

impl EncryptedRecords {
    /// Sends all bytes, or as many as go without waiting.
    fn send(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match stream.write(&self.bytes[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
