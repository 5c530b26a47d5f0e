//! Calls about models (state, metadata, configuration, statistics) and the repository.

use super::{HttpAnswer, body, json as answer, ok_if, reply, send};
use crate::limits::loads::RepositoryChange;
use crate::problem::Problem;
use crate::state::{PARSE_INLINE_BYTES, ServerState};
use crate::{call::overrides, protocol::describe};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use ripieno_wire::json::{self, IndexBody, IndexRowBody, LoadBody, ModelReadyBody};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) fn ready(state: &ServerState, name: String, version: &str) -> Result<HttpAnswer, Problem> {
    let ready = state.is_model_ready(&name, version)?;
    Ok(answer(ok_if(ready), &ModelReadyBody { name, ready }))
}

pub(super) fn metadata(state: &ServerState, name: &str, version: &str) -> Result<HttpAnswer, Problem> {
    let entry = state.registry.get(name, version)?;
    Ok(answer(StatusCode::OK, &describe::metadata_body(describe::metadata(state, &entry))))
}

pub(super) fn config(state: &ServerState, name: &str, version: &str) -> Result<HttpAnswer, Problem> {
    let entry = state.registry.get(name, version)?;
    Ok(answer(StatusCode::OK, &describe::config_json(&describe::config(&entry))))
}

pub(super) fn statistics(state: &ServerState, name: &str, version: &str) -> Result<HttpAnswer, Problem> {
    let entries = state.entries(name, version)?;
    let rows: Vec<Value> =
        entries.iter().map(|entry| describe::statistics_json(&describe::statistics(state, entry))).collect();
    Ok(answer(StatusCode::OK, &serde_json::json!({"model_stats": rows})))
}

pub(super) async fn index(state: &ServerState, request: &mut Request<Incoming>) -> Result<HttpAnswer, Problem> {
    let IndexBody { ready } = parse(state, request).await?;
    let rows = state.loads.read(|repository| repository.index()).await?;
    let rows = rows.into_iter().filter(|row| !ready || row.state == "READY");
    let rows: Vec<IndexRowBody> = rows
        .map(|row| IndexRowBody { name: row.name, version: row.version, state: row.state, reason: row.reason })
        .collect();
    Ok(answer(StatusCode::OK, &rows))
}

pub(super) async fn load(
    state: &ServerState,
    name: String,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let received = body::read(state, request).await?;
    let caller = send::connection_of(request);
    let budget = state.budget_of(caller.as_ref()).clone();
    let (room, length) = (budget.reserve(json::decoded_size(&received))?, received.len());
    let work = move || {
        let _room = room;
        let LoadBody { parameters } = read_body(&received)?;
        overrides::from_json(&budget, parameters.0)
    };
    let upload = if length <= PARSE_INLINE_BYTES { work() } else { state.run_cpu_bound(work).await? }?;
    overrides::check_allowed(state, &upload)?;
    let loaded = state.loads.apply(name, RepositoryChange::Load { upload }).await?;
    loaded.map_err(Problem::invalid)?;
    Ok(reply(StatusCode::OK, "application/json", Bytes::new()))
}

pub(super) async fn unload(
    state: &ServerState,
    name: String,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    // unload_dependents is ignored.
    let LoadBody { .. } = parse(state, request).await?;
    state.unload(name).await?;
    Ok(reply(StatusCode::OK, "application/json", Bytes::new()))
}

/// Parses an optional body.
pub(super) async fn parse<T: DeserializeOwned + Default>(
    state: &ServerState,
    request: &mut Request<Incoming>,
) -> Result<T, Problem> {
    let received = body::read(state, request).await?;
    // Only the bounded parameters of these small calls are kept.
    let caller = send::connection_of(request);
    let _decoded = state.budget_of(caller.as_ref()).reserve(json::decoded_size(&received))?;
    read_body(&received)
}

fn read_body<T: DeserializeOwned + Default>(received: &[u8]) -> Result<T, Problem> {
    if received.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(received).map_err(|error| Problem::invalid(format!("the body is not valid: {error}")))
}
