//! A client's stream, inside TLS if it is on, that tells its [`Connection`] how it fares, and is patient with clients that stop
//! sending.
//!
//! A client that has sent its request may close its side and still wants the answer. TCP tells this no different from a client
//! that is gone, whose work should be freed. So the end of input is kept back from hyper while an answer is owed, and an interim
//! answer is sent ("100 Continue", which clients skip): who is gone answers that with a reset, and then the connection fails.
//! HTTP/1.0 has no interim answers; there the work goes on, whether anybody waits for it or not.
//!
//! When the server closes while the client still sends, what comes is read and thrown away for a while: otherwise the kernel
//! would reset the connection, and the client might never see the answer that said why.

use super::connection::Connection;
use crate::access::Stream;
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
/// How often a client that has stopped sending is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const DISCARD_BYTES: usize = 16 << 10;

pub(crate) struct Socket {
    stream: Stream,
    connection: Arc<Connection>,
    /// Set once the client has stopped sending while an answer is owed: when to look next.
    ended: Option<Pin<Box<Sleep>>>,
    /// Set while the last body is unread, although all has come: until when its call may take it.
    grace: Option<Pin<Box<Sleep>>>,
    /// What is left of the interim answer; none before it was begun.
    interim: Option<&'static [u8]>,
    /// Whether hyper has written since it last flushed, so that nothing may be put in between.
    unflushed: bool,
    /// What may still be thrown away after the server closed, and for how long.
    linger: Linger,
}

struct Linger {
    bytes: usize,
    time: Duration,
    until: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(stream: Stream, connection: Arc<Connection>, config: &ServerConfig) -> Socket {
        let linger = Linger { bytes: config.max_body_bytes, time: config.body_timeout, until: None };
        Socket { stream, connection, ended: None, grace: None, interim: None, unflushed: false, linger }
    }

    /// The client sends no more: the end of the connection, or of the client's requests only?
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
            let sleep = self.ended.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK_EVERY)));
            ready!(sleep.as_mut().poll(context));
            self.ended = Some(Box::pin(tokio::time::sleep(LOOK_EVERY)));
        }
    }

    /// hyper looks for the end as soon as it has passed on the last byte of a body, before the call has taken that. A body that
    /// stays unread is not whole.
    fn poll_grace(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.connection.has_unread_body() {
            return Poll::Ready(());
        }
        let grace = self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK_EVERY)));
        grace.as_mut().poll(context)
    }

    /// Writes what is left of the interim answer.
    fn poll_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.interim.filter(|rest| !rest.is_empty()) {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
            self.interim = Some(&rest[written..]);
        }
        Poll::Ready(Ok(()))
    }

    fn note<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.connection.set_blocked(written.is_pending());
        self.unflushed = true;
        written
    }

    /// Throws away what comes, until the client has seen the end, or has had time enough.
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

/// What the system says of the TCP connection, once it is broken.
fn take_error(stream: &Stream) -> io::Result<Option<io::Error>> {
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
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(context))?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.unflushed = false;
        // TLS takes some bytes before the kernel does, so that a client that reads nothing may show here only.
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
