//! What a request has in shared memory.

use super::Spot;
use crate::access::{Caller, caller_of};
use crate::bounds::budget::{Budget, hold};
use crate::http::body::too_large;
use crate::problem::Problem;
use crate::state::{PARSE_INLINE_BYTES, State};
use hyper::http::Extensions;
use hyper::{HeaderMap, Uri};
use ripieno_wire::{InferRequest, RequestedOutput};
use std::sync::Arc;

/// Who made a request that came with this head, asked for regions only if it names some.
pub(crate) fn caller(
    state: &State,
    request: &InferRequest,
    uri: &Uri,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Caller {
    if names_any(request) { state.access.sharer(uri, headers, extensions) } else { caller_of(extensions) }
}

/// Whether tensors of a request are in regions of shared memory, or are to go there.
fn names_any(request: &InferRequest) -> bool {
    request.inputs.iter().any(|input| input.place.is_some())
        || request.outputs.iter().any(|output| output.place.is_some())
}

/// Copies the inputs that are in shared memory into the request, and finds where outputs are to go, by their place in the list of
/// those asked for.
pub(crate) async fn resolve(
    state: &State,
    budget: &Arc<Budget>,
    caller: &Caller,
    request: &mut InferRequest,
) -> Result<Vec<Option<Spot>>, Problem> {
    if !names_any(request) {
        return Ok(Vec::new());
    }
    let owner = caller.owner()?;
    let mut left = state.config.max_body_bytes;
    for input in &mut request.inputs {
        let Some(place) = &input.place else { continue };
        let spot = state.regions.spot(owner, place)?;
        let size =
            usize::try_from(place.byte_size).ok().filter(|size| *size <= left).ok_or_else(|| too_large(state))?;
        left -= size;
        spot.region
            .check(spot.start() + place.byte_size)
            .map_err(|cause| Problem::invalid(format!("input '{}', region '{}': {cause}", input.name, place.region)))?;
        let room = budget.reserve(size)?;
        let copy = move || {
            let mut bytes = vec![0; size];
            spot.read(&mut bytes).map(|()| bytes)
        };
        let bytes = if size <= PARSE_INLINE_BYTES { copy()? } else { state.work(copy).await?? };
        input.fill(hold(bytes, room))?;
    }
    let spot =
        |output: &RequestedOutput| output.place.as_ref().map(|place| state.regions.spot(owner, place)).transpose();
    request.outputs.iter().map(spot).collect()
}
