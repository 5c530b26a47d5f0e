//! Shared memory use of a request.

use super::RegionSlice;
use crate::access::{Caller, caller_of};
use crate::limits::budget::{MemoryBudget, hold};
use crate::problem::Problem;
use crate::state::{PARSE_INLINE_BYTES, ServerState};
use hyper::http::Extensions;
use hyper::{HeaderMap, Uri};
use ripieno_wire::{InferRequest, RequestedOutput};
use std::sync::Arc;

/// Returns the client of a request; its access to regions is checked only if the request uses some.
pub(crate) fn caller(
    state: &ServerState,
    request: &InferRequest,
    uri: &Uri,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Caller {
    if names_any(request) { state.access.region_caller(uri, headers, extensions) } else { caller_of(extensions) }
}

/// Returns true if any input or output of the request is in shared memory.
fn names_any(request: &InferRequest) -> bool {
    request.inputs.iter().any(|input| input.shared_memory.is_some())
        || request.outputs.iter().any(|output| output.shared_memory.is_some())
}

/// Copies inputs in shared memory into the request, and returns the target slice of each requested
/// output, by position.
pub(crate) async fn resolve(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    caller: &Caller,
    request: &mut InferRequest,
) -> Result<Vec<Option<RegionSlice>>, Problem> {
    if !names_any(request) {
        return Ok(Vec::new());
    }
    let owner = caller.owner()?;
    let mut left = state.config.max_body_bytes;
    for input in &mut request.inputs {
        let Some(shared_memory) = &input.shared_memory else { continue };
        let slice = state.regions.slice(owner, shared_memory)?;
        let size = usize::try_from(shared_memory.byte_size)
            .ok()
            .filter(|size| *size <= left)
            .ok_or_else(|| Problem::too_large(state.config.max_body_bytes))?;
        left -= size;
        slice.region.check(slice.start() + shared_memory.byte_size).map_err(|cause| {
            Problem::invalid(format!("input '{}', region '{}': {cause}", input.name, shared_memory.region))
        })?;
        let room = budget.reserve(size)?;
        let copy = move || {
            let mut bytes = vec![0; size];
            slice.read(&mut bytes).map(|()| bytes)
        };
        let bytes = if size <= PARSE_INLINE_BYTES { copy()? } else { state.run_cpu_bound(copy).await?? };
        input.fill(hold(bytes, room))?;
    }
    let slice = |output: &RequestedOutput| {
        output.shared_memory.as_ref().map(|shared_memory| state.regions.slice(owner, shared_memory)).transpose()
    };
    request.outputs.iter().map(slice).collect()
}
