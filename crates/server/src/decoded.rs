//! What is left reserved of a request once it has been decoded.

use crate::bounds::budget::{Reservation, hold};
use crate::problem::Problem;
use ripieno_wire::InferRequest;
use std::sync::Arc;

/// Gives back what decoding took beyond its results, and ties the rest to the tensors that were made. Tensors that are slices
/// of the message hold that, and with it its own reservation.
pub(crate) fn keep(mut request: InferRequest, mut room: Reservation) -> Result<InferRequest, Problem> {
    let made = || request.inputs.iter().filter(|input| !input.is_slice);
    // Tensors are never larger than what was reserved to make them.
    room.resize(made().map(|input| input.data.len()).sum())?;
    let room = Arc::new(room);
    for input in request.inputs.iter_mut().filter(|input| !input.is_slice) {
        input.data = hold(std::mem::take(&mut input.data), room.clone());
    }
    Ok(request)
}
