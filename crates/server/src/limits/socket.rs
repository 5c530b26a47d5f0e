//! A client's byte stream (inside TLS if enabled) that reports its progress to its
//! [`ClientConnection`] and tolerates half-closed clients.
//!
//! A client may close its sending side after its request and still expect the response. TCP does
//! not distinguish this from a client that is gone, whose work should be cancelled. While a
//! response is pending, the end of input is therefore withheld from hyper, and an interim response
//! is sent ("100 Continue", which clients skip): a client that is gone answers with a reset, which
//! fails the connection. HTTP/1.0 has no interim responses; there the work continues in any case.
//!
//! When the server closes while the client still sends, incoming data is read and discarded for a
//! while. Otherwise the kernel would reset the connection, and the client might not see the
//! response.

use super::connection::ClientConnection;
use crate::access::ClientStream;
use crate::config::ServerConfig;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::either::Either;

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Interval at which a half-closed client is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const DISCARD_BYTES: usize = 16 << 10;

pub(crate) struct Socket {
    stream: ClientStream,
    connection: Arc<ClientConnection>,
    /// Timer of the next check, set once the client has stopped sending while a response is
    /// pending.
    ended: Option<Pin<Box<Sleep>>>,
    /// Timer set when all input has arrived but the last body is unread: the time that its call has
    /// to read it.
    grace: Option<Pin<Box<Sleep>>>,
    /// Unsent rest of the interim response; `None` before it was started.
    interim: Option<&'static [u8]>,
    /// Whether hyper has written since its last flush, so that no interim response may be inserted.
    unflushed: bool,
    /// Limits on discarding input after the server has closed.
    linger: Linger,
}

struct Linger {
    bytes: usize,
    time: Duration,
    until: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(stream: ClientStream, connection: Arc<ClientConnection>, config: &ServerConfig) -> Socket {
        let linger = Linger { bytes: config.max_body_bytes, time: config.body_timeout, until: None };
        Socket { stream, connection, ended: None, grace: None, interim: None, unflushed: false, linger }
    }

    /// Handles the end of input: of the connection, or of the client's requests only.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.connection.owes_answers(context.waker()) {
                return self.poll_grace(context).map(Ok);
            }
            self.grace = None;
            if let Some(error) = take_error(&self.stream)? {
                return Poll::Ready(Err(error));
            }
            if self.interim.is_none() && !self.unflushed && self.connection.may_have_interim() {
                self.interim = Some(INTERIM);
            }
            if let Poll::Ready(Err(error)) = self.poll_interim(context) {
                return Poll::Ready(Err(error));
            }
            let sleep = self.ended.get_or_insert_with(|| Box::pin(tokio::time::sleep(POLL_INTERVAL)));
            ready!(sleep.as_mut().poll(context));
            self.ended = Some(Box::pin(tokio::time::sleep(POLL_INTERVAL)));
        }
    }

    /// Waits until the call has read its body, because hyper checks for the end of input right
    /// after passing on the last byte. A body that stays unread is incomplete.
    fn poll_grace(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.connection.has_unread_body() {
            return Poll::Ready(());
        }
        let grace = self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(POLL_INTERVAL)));
        grace.as_mut().poll(context)
    }

    /// Writes the rest of the interim response.
    fn poll_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.interim.filter(|rest| !rest.is_empty()) {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
            self.interim = Some(&rest[written..]);
        }
        Poll::Ready(Ok(()))
    }

    fn record_write<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.connection.set_blocked(written.is_pending());
        self.unflushed = true;
        written
    }

    /// Discards input until the client has closed or a limit is reached.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Linger { bytes, time, until } = &mut self.linger;
        let until = until.get_or_insert_with(|| Box::pin(tokio::time::sleep(*time)));
        if until.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut discarded = [0; DISCARD_BYTES];
        while *bytes > 0 {
            let mut buffer = ReadBuf::new(&mut discarded);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => *bytes = bytes.saturating_sub(buffer.filled().len()),
                _ => return Poll::Ready(()),
            }
        }
        Poll::Ready(())
    }
}

/// Returns the error of the TCP connection, if it has failed.
fn take_error(stream: &ClientStream) -> io::Result<Option<io::Error>> {
    match stream {
        Either::Left(clear) => clear.take_error(),
        Either::Right(encrypted) => encrypted.get_ref().0.take_error(),
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended.is_none() {
            let before = buffer.filled().len();
            let read = Pin::new(&mut self.stream).poll_read(context, buffer);
            let has_more = buffer.filled().len() > before || buffer.remaining() == 0;
            self.connection.set_took_all(!has_more);
            ready!(read)?;
            if has_more {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_end(context)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(context))?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(context))?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.unflushed = false;
        // TLS buffers some bytes before the kernel does, so a client that reads nothing may show
        // only here.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.connection.set_blocked(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.until.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            if !self.connection.has_unread_body() {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_linger(context).map(Ok)
    }
}
