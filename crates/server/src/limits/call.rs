//! Tracking of a call on its connection, from its head to the last byte of its response.

use super::budget::Reservation;
use super::connection::{ClientConnection, Unsent};
use bytes::Bytes;
use hyper::Version;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Guard of a call that is being handled, and then of its response.
pub(crate) struct CallGuard {
    connection: Arc<ClientConnection>,
    handled: bool,
    _room: Reservation,
}

impl CallGuard {
    pub(crate) fn begin(
        connection: &Arc<ClientConnection>,
        room: Reservation,
        version: Version,
        has_body: bool,
    ) -> CallGuard {
        connection.begin(version, has_body);
        CallGuard { connection: connection.clone(), handled: false, _room: room }
    }

    fn handled(&mut self) {
        if !std::mem::replace(&mut self.handled, true) {
            self.connection.handled();
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.handled();
        self.connection.end();
    }
}

/// Body of a response. The peer has a deadline to accept data before the first frame and between
/// frames, but not while the server has nothing to send.
pub(crate) struct AnswerBody<B> {
    body: Option<B>,
    unsent: Option<Unsent>,
    call: Option<CallGuard>,
}

impl<B> AnswerBody<B> {
    /// Creates an empty body, for a call without room in the budget.
    pub(crate) fn empty() -> AnswerBody<B> {
        AnswerBody { body: None, unsent: None, call: None }
    }
}

impl<B: Body> AnswerBody<B> {
    pub(crate) fn new(body: B, mut call: CallGuard) -> AnswerBody<B> {
        call.handled();
        let unsent = (!body.is_end_stream()).then(|| call.connection.unsent(0));
        AnswerBody { body: Some(body), unsent, call: Some(call) }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnswerBody<B> {
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
