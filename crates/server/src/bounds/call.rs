//! One call on a connection, from its head to the last byte of its answer.

use super::budget::Reservation;
use super::connection::{Connection, Unsent};
use bytes::Bytes;
use hyper::Version;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A call that is being handled, and then its answer that is being sent.
pub(crate) struct Call {
    connection: Arc<Connection>,
    handled: bool,
    _room: Reservation,
}

impl Call {
    pub(crate) fn begin(connection: &Arc<Connection>, room: Reservation, version: Version, has_body: bool) -> Call {
        connection.begin(version, has_body);
        Call { connection: connection.clone(), handled: false, _room: room }
    }

    fn handled(&mut self) {
        if !std::mem::replace(&mut self.handled, true) {
            self.connection.handled();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.handled();
        self.connection.end();
    }
}

/// The body of an answer. Until it is first asked for data, and between its pieces, the peer has a deadline to make room
/// for more; while the server itself has nothing to send, it has none.
pub(crate) struct Answer<B> {
    body: Option<B>,
    unsent: Option<Unsent>,
    call: Option<Call>,
}

impl<B> Answer<B> {
    /// No body, of a call for which there was no room.
    pub(crate) fn empty() -> Answer<B> {
        Answer { body: None, unsent: None, call: None }
    }
}

impl<B: Body> Answer<B> {
    pub(crate) fn new(body: B, mut call: Call) -> Answer<B> {
        call.handled();
        let unsent = (!body.is_end_stream()).then(|| call.connection.unsent(0));
        Answer { body: Some(body), unsent, call: Some(call) }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        self.unsent = match (&frame, &self.call) {
            (Poll::Ready(Some(_)), Some(call)) => Some(call.connection.unsent(0)),
            _ => None,
        };
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
