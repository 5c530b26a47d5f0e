//! Encoded responses on their way to a client, which has limited time to read them.

use crate::limits::budget::{Reservation, hold};
use crate::limits::connection::ClientConnection;
use crate::problem::Problem;
use bytes::Bytes;
use hyper::Request;
use std::sync::Arc;

/// Connection of a call; `None` only in tests of handlers.
pub(super) type CallConnection = Option<Arc<ClientConnection>>;

/// Returns the connection of a request.
pub(super) fn connection_of<B>(request: &Request<B>) -> CallConnection {
    request.extensions().get::<Arc<ClientConnection>>().cloned()
}

/// Returns an encoded response with its reservation until its last byte is sent.
pub(super) fn bytes(caller: &CallConnection, mut encoded: Vec<u8>, mut room: Reservation) -> Result<Bytes, Problem> {
    // Few responses reach the estimated maximum, so the rest of the buffer is freed.
    encoded.shrink_to_fit();
    room.resize(encoded.len())?;
    let unsent = caller.as_ref().map(|connection| connection.unsent(encoded.len()));
    Ok(hold(encoded, (room, unsent)))
}
