//! Calls about shared memory regions.

use super::models::parse;
use super::path::RegionsCall as Call;
use super::{HttpAnswer, json as answer, reply};
use crate::access::caller_of;
use crate::call::regions::RegionRange;
use crate::problem::Problem;
use crate::protocol::not_offered;
use crate::state::ServerState;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use ripieno_wire::json::{RegionBody, RegisterBody};

pub(super) async fn system(
    state: &ServerState,
    call: Call,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let owner = caller_of(request.extensions()).owner()?;
    match call {
        Call::Status(name) => {
            let found = state.regions.status(owner, name.as_deref())?;
            let body = |(name, region): (String, RegionRange)| RegionBody {
                name,
                key: region.key,
                offset: region.offset,
                byte_size: region.byte_size,
            };
            Ok(answer(StatusCode::OK, &found.into_iter().map(body).collect::<Vec<_>>()))
        }
        Call::Register(name) => {
            let RegisterBody { key, offset, byte_size } = parse(state, request).await?;
            state.regions.register(owner, name, RegionRange { key, offset, byte_size })?;
            Ok(done())
        }
        Call::Unregister(name) => {
            state.regions.unregister(owner, name.as_deref());
            Ok(done())
        }
    }
}

/// Handles calls about CUDA regions, which do not exist. Listing or unregistering all of them
/// succeeds, as clients that clean up expect.
pub(super) fn cuda(call: Call) -> Result<HttpAnswer, Problem> {
    match call {
        Call::Status(None) => Ok(answer(StatusCode::OK, &[(); 0])),
        Call::Unregister(None) => Ok(done()),
        _ => Err(not_offered::cuda_regions()),
    }
}

fn done() -> HttpAnswer {
    reply(StatusCode::OK, "application/json", Bytes::new())
}
