//! Answers on their way to a client, which has a bounded time to take them.

use crate::bounds::budget::{Reservation, hold};
use crate::bounds::connection::Connection;
use crate::problem::Problem;
use bytes::Bytes;
use hyper::Request;
use std::sync::Arc;

/// The connection that a call came on; each has one, but for tests of handlers alone.
pub(super) type Caller = Option<Arc<Connection>>;

/// Who waits for the answer.
pub(super) fn caller<B>(request: &Request<B>) -> Caller {
    request.extensions().get::<Arc<Connection>>().cloned()
}

/// An encoded answer with its share of the budget, until its last byte is sent.
pub(super) fn bytes(caller: &Caller, mut encoded: Vec<u8>, mut room: Reservation) -> Result<Bytes, Problem> {
    // The longest texts are the exception, and what they left free is no longer needed.
    encoded.shrink_to_fit();
    room.resize(encoded.len())?;
    let unsent = caller.as_ref().map(|connection| connection.unsent(encoded.len()));
    Ok(hold(encoded, (room, unsent)))
}
