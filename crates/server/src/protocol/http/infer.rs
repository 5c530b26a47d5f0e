//! `POST …/infer`.

use super::path::ModelTarget;
use super::{HttpAnswer, body, reply, send};
use crate::call::decoded;
use crate::call::infer::{InferCall, Inferred, delivered, infer as run};
use crate::call::regions::request::caller;
use crate::limits::budget::MemoryBudget;
use crate::problem::Problem;
use crate::protocol::slo;
use crate::state::{PARSE_INLINE_BYTES, ServerState};
use crate::trace;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode};
use ripieno_wire::{InferRequest, json};
use std::sync::Arc;
use std::time::Instant;

const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

pub(super) async fn infer(
    state: &Arc<ServerState>,
    target: ModelTarget,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let (json_length, slo) = (json_length(request.headers())?, slo::from_headers(request.headers())?);
    // The lookup precedes reading the body, so that a call for an unknown model fails without the
    // transfer.
    let model = state.registry.get(&target.name, &target.version)?.id;
    let bytes = body::read_for(state, model, request).await?;
    let received = Instant::now();
    let connection = send::connection_of(request);
    let budget = state.budget_of(connection.as_ref());
    let parsed = parse(state, budget, target, bytes, json_length).await?;
    let caller = caller(state, &parsed, request.uri(), request.headers(), request.extensions());
    let trace = trace::from_headers(request.headers());
    let call = InferCall { request: parsed, received, timeout: None, slo, caller, trace, position: None };
    let inferred = run(state, budget, call).await?;
    let (entry, late, logged) = (inferred.entry.clone(), inferred.late, inferred.logged(state));
    let mut answer = delivered(&entry, late, encode(state, &connection, inferred).await)?;
    if let Some(logged) = logged {
        answer.extensions_mut().insert(logged);
    }
    Ok(answer)
}

async fn encode(
    state: &ServerState,
    connection: &send::CallConnection,
    mut inferred: Inferred,
) -> Result<HttpAnswer, Problem> {
    let answered = Instant::now();
    let size = json::encoded_size(&inferred.response);
    inferred.make_room(size)?;
    let Inferred { response, entry, room, .. } = inferred;
    let work = move || json::encode_infer(&response);
    let encoded = if size <= PARSE_INLINE_BYTES { work() } else { state.run_cpu_bound(work).await? }?;
    entry.stats.encoding.add(answered.elapsed());
    let body = send::bytes(connection, encoded.body, room)?;
    let Some(json_length) = encoded.json_length else { return Ok(reply(StatusCode::OK, "application/json", body)) };
    let mut answer = reply(StatusCode::OK, "application/octet-stream", body);
    answer.headers_mut().insert(JSON_LENGTH, HeaderValue::from(json_length));
    Ok(answer)
}

fn json_length(headers: &HeaderMap) -> Result<Option<usize>, Problem> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|value| value.trim().parse().ok());
    length.map(Some).ok_or_else(|| {
        Problem::invalid(format!(
            "Inference-Header-Content-Length is {value:?}; it must be the number of bytes of JSON"
        ))
    })
}

async fn parse(
    state: &ServerState,
    budget: &Arc<MemoryBudget>,
    target: ModelTarget,
    body: Bytes,
    json_length: Option<usize>,
) -> Result<InferRequest, Problem> {
    let ModelTarget { name, version } = target;
    let length = json_length.unwrap_or(body.len()).min(body.len());
    let room = budget.reserve(json::decoded_size(&body[..length]))?;
    let work = move || Ok(json::parse_infer(name, version, &body, json_length)?);
    let parsed: Result<InferRequest, Problem> =
        if length <= PARSE_INLINE_BYTES { work() } else { state.run_cpu_bound(work).await? };
    decoded::hold_inputs(parsed?, room)
}
