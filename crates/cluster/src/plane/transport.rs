//! The byte streams between machines: a trait, and TCP. TLS over it is in [`super::tls`].
//!
//! One thread reads a stream while another writes to it, or an event loop does both; any thread may
//! close it for both. So all methods take shared references.

use rustix::net::SendFlags;
use std::fmt::{self, Display};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longest time that a write may block.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time to wake a listener that is being closed.
const WAKE_TIMEOUT: Duration = Duration::from_millis(100);

/// Connects machines.
pub trait Transport: Send + Sync {
    /// Connects to an address given as text, within a time.
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>>;

    /// Listens on an address; port 0 takes a free one.
    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>>;
}

/// Returns the error of a read with a timeout, which says in words that the peer was silent: the
/// system calls it a resource that is temporarily unavailable.
pub(super) fn silence(error: io::Error, what: &str, waited: Duration) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent(what, waited),
        _ => error,
    }
}

/// Returns the error of a peer that was silent for this time.
pub(super) fn silent(what: &str, waited: Duration) -> io::Error {
    let text = format!("the other side sent {what} for {} s", waited.as_secs_f64());
    io::Error::new(io::ErrorKind::TimedOut, text)
}

/// An address in messages; of a peer that left before it was asked for, none is known.
pub(crate) struct PeerAddress(pub(crate) Option<SocketAddr>);

impl Display for PeerAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(to),
            None => to.write_str("an unknown address"),
        }
    }
}

/// A listening socket.
pub trait Listener: Send + Sync {
    /// Returns the local address.
    fn address(&self) -> SocketAddr;

    /// Waits for the next connection; `None` once the listener is closed.
    fn accept(&self) -> io::Result<Option<Arc<dyn ByteStream>>>;

    /// Accepts no further connection.
    fn close(&self);
}

/// An ordered stream of bytes in both directions.
pub trait ByteStream: Send + Sync {
    /// Waits at most `silence` for bytes; returns 0 once the peer has closed.
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize>;

    /// Sends all bytes.
    fn write_all(&self, bytes: &[u8]) -> io::Result<()>;

    /// Sends as many bytes as the socket takes without waiting, while no other thread writes.
    /// Returns their number. A stream that needs a thread takes none.
    fn write_now(&self, _bytes: &[u8]) -> io::Result<usize> {
        Ok(0)
    }

    /// Closes the stream and wakes all threads that wait on it.
    fn close(&self);

    /// Returns the address of the peer.
    fn peer(&self) -> Option<SocketAddr>;

    /// Returns whether the bytes are encrypted on the way.
    fn encrypts(&self) -> bool {
        false
    }

    /// Prepares the stream for an event loop, and returns the socket to poll. From then on only
    /// [`ByteStream::try_read`] and [`ByteStream::try_write`] are used. Fails if the stream needs a
    /// thread.
    fn set_polled(&self) -> io::Result<RawFd> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this stream cannot be polled"))
    }

    /// Reads bytes that have arrived: none once the peer has closed. The error `WouldBlock` means
    /// that there are none now.
    fn try_read(&self, _into: &mut [u8]) -> io::Result<ReadBytes> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes as many bytes as can be sent without waiting, and returns their number; the error
    /// `WouldBlock` means that none can. The stream may hold bytes that it has taken: a call
    /// without bytes returns 0 once all are sent.
    fn try_write(&self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The bytes that a read without waiting has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBytes {
    /// Number of bytes.
    pub number: usize,
    /// False if no further bytes had arrived; an event tells of later ones.
    pub more: bool,
}

/// TCP without Nagle's algorithm.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Transport for Tcp {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn ByteStream>> {
        Ok(plain(connect_tcp(address, within)?))
    }

    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        Ok(BoundListener::bind(address, Box::new(|stream| Ok(plain(stream))))?)
    }
}

fn plain(stream: TcpStream) -> Arc<dyn ByteStream> {
    let peer = stream.peer_addr().ok();
    Arc::new(TcpByteStream { stream, peer, silence_ns: AtomicU64::new(0) })
}

/// Connects a socket to an address given as text.
pub(super) fn connect_tcp(address: &str, within: Duration) -> io::Result<TcpStream> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("{address} is no address"));
    let mut last = unknown();
    for socket in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, within) {
            Ok(stream) => return with_options(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn with_options(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    Ok(stream)
}

/// Makes a stream of an accepted socket.
type WrapSocket = Box<dyn Fn(TcpStream) -> io::Result<Arc<dyn ByteStream>> + Send + Sync>;

/// A listening socket whose connections are wrapped.
pub(super) struct BoundListener {
    listener: TcpListener,
    address: SocketAddr,
    closed: AtomicBool,
    wrap: WrapSocket,
}

impl BoundListener {
    pub(super) fn bind(address: SocketAddr, wrap: WrapSocket) -> io::Result<Arc<BoundListener>> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        Ok(Arc::new(BoundListener { listener, address, closed: AtomicBool::new(false), wrap }))
    }
}

impl Listener for BoundListener {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn accept(&self) -> io::Result<Option<Arc<dyn ByteStream>>> {
        let accepted = self.listener.accept();
        if self.closed.load(Ordering::SeqCst) {
            return Ok(None);
        }
        (self.wrap)(with_options(accepted?.0)?).map(Some)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        // Wakes the thread that waits in `accept`.
        drop(TcpStream::connect_timeout(&SocketAddr::new(ip, self.address.port()), WAKE_TIMEOUT));
    }
}

struct TcpByteStream {
    stream: TcpStream,
    /// Address of the peer, which the socket forgets when the peer leaves.
    peer: Option<SocketAddr>,
    /// The read timeout that the socket has, so that it is set only when it changes.
    silence_ns: AtomicU64,
}

impl ByteStream for TcpByteStream {
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize> {
        let silence_ns = silence.as_nanos() as u64;
        if self.silence_ns.swap(silence_ns, Ordering::Relaxed) != silence_ns {
            self.stream.set_read_timeout(Some(silence))?;
        }
        (&self.stream).read(into)
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(bytes)
    }

    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn close(&self) {
        // The peer may have closed it already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    fn set_polled(&self) -> io::Result<RawFd> {
        self.stream.set_nonblocking(true)?;
        Ok(self.stream.as_raw_fd())
    }

    fn try_read(&self, into: &mut [u8]) -> io::Result<ReadBytes> {
        let number = (&self.stream).read(into)?;
        Ok(ReadBytes { number, more: number == into.len() })
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() { Ok(0) } else { (&self.stream).write(bytes) }
    }
}
