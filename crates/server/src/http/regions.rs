//! The calls about shared memory.

use super::models::parse;
use super::path::Regions as Call;
use super::{Answer, json as answer, reply};
use crate::access::caller_of;
use crate::not_offered;
use crate::problem::Problem;
use crate::regions::Range;
use crate::state::State;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use ripieno_wire::json::{RegionBody, RegisterBody};

pub(super) async fn system(state: &State, call: Call, request: &mut Request<Incoming>) -> Result<Answer, Problem> {
    let owner = caller_of(request.extensions()).owner()?;
    match call {
        Call::Status(name) => {
            let found = state.regions.status(owner, name.as_deref())?;
            let body = |(name, region): (String, Range)| RegionBody {
                name,
                key: region.key,
                offset: region.offset,
                byte_size: region.byte_size,
            };
            Ok(answer(StatusCode::OK, &found.into_iter().map(body).collect::<Vec<_>>()))
        }
        Call::Register(name) => {
            let RegisterBody { key, offset, byte_size } = parse(state, request).await?;
            state.regions.register(owner, name, Range { key, offset, byte_size })?;
            Ok(done())
        }
        Call::Unregister(name) => {
            state.regions.unregister(owner, name.as_deref());
            Ok(done())
        }
    }
}

/// There are none, which clients that tidy up before and after their work are to hear as a success.
pub(super) fn cuda(call: Call) -> Result<Answer, Problem> {
    match call {
        Call::Status(None) => Ok(answer(StatusCode::OK, &[(); 0])),
        Call::Unregister(None) => Ok(done()),
        _ => Err(not_offered::cuda_regions()),
    }
}

fn done() -> Answer {
    reply(StatusCode::OK, "application/json", Bytes::new())
}
