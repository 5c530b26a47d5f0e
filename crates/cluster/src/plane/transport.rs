//! What carries bytes between machines: a trait, and TCP.
//!
//! One thread reads a stream while another writes to it, and whoever gives it up closes it for both, so all of it is
//! done through shared references.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a peer may take to take what is sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a listener that closes may take to hear of it.
const WAKE: Duration = Duration::from_millis(100);

/// Connects machines.
pub trait Transport: Send + Sync {
    /// Connects to an address as text, within a time.
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn Stream>>;

    /// Listens on an address; port 0 takes a free one.
    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>>;
}

/// Where others connect to.
pub trait Listener: Send + Sync {
    /// The address that it has.
    fn address(&self) -> SocketAddr;

    /// Waits for the next connection; none once it is closed.
    fn accept(&self) -> io::Result<Option<Arc<dyn Stream>>>;

    /// Takes no further connection.
    fn close(&self);
}

/// Bytes both ways, in order.
pub trait Stream: Send + Sync {
    /// Waits for bytes, `silence` at most; 0 once the other side has closed.
    fn read(&self, into: &mut [u8], silence: Duration) -> io::Result<usize>;

    /// Sends all of it.
    fn write_all(&self, bytes: &[u8]) -> io::Result<()>;

    /// Ends it, for threads that wait as well.
    fn close(&self);

    /// The other side.
    fn peer(&self) -> Option<SocketAddr>;
}

/// TCP that sends at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Transport for Tcp {
    fn connect(&self, address: &str, within: Duration) -> io::Result<Arc<dyn Stream>> {
        let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("{address} is no address"));
        let mut last = unknown();
        for socket in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&socket, within) {
                Ok(stream) => return stream_of(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        Ok(Arc::new(TcpDoor { listener, address, closed: AtomicBool::new(false) }))
    }
}

fn stream_of(stream: TcpStream) -> io::Result<Arc<dyn Stream>> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    Ok(Arc::new(TcpWire { stream, silence_ns: AtomicU64::new(0) }))
}

struct TcpDoor {
    listener: TcpListener,
    address: SocketAddr,
    closed: AtomicBool,
}

impl Listener for TcpDoor {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn accept(&self) -> io::Result<Option<Arc<dyn Stream>>> {
        let accepted = self.listener.accept();
        if self.closed.load(Ordering::SeqCst) {
            return Ok(None);
        }
        stream_of(accepted?.0).map(Some)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        // Wakes whoever waits for a connection.
        drop(TcpStream::connect_timeout(&SocketAddr::new(ip, self.address.port()), WAKE));
    }
}

struct TcpWire {
    stream: TcpStream,
    /// What the system has been told to wait for: it need not be told each time.
    silence_ns: AtomicU64,
}

impl Stream for TcpWire {
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

    fn close(&self) {
        // It may have been closed by the other side.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }
}
