//! Reservation of a request after decoding.

use crate::limits::budget::{Reservation, hold};
use crate::problem::Problem;
use ripieno_wire::InferRequest;
use std::sync::Arc;

/// Shrinks the reservation to the decoded tensors and ties it to them. Tensors that are slices of
/// the message hold the message's own reservation.
pub(crate) fn hold_inputs(mut request: InferRequest, mut room: Reservation) -> Result<InferRequest, Problem> {
    let made = || request.inputs.iter().filter(|input| !input.is_slice);
    // Tensors are never larger than the reservation for decoding them.
    room.resize(made().map(|input| input.data.len()).sum())?;
    let room = Arc::new(room);
    for input in request.inputs.iter_mut().filter(|input| !input.is_slice) {
        input.data = hold(std::mem::take(&mut input.data), room.clone());
    }
    Ok(request)
}
