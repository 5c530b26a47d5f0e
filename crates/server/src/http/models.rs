//! The calls about models: their state, metadata, configuration and statistics, and the repository.

use super::{Answer, body, json as answer, ok_if, reply, send};
use crate::bounds::loads::Change;
use crate::describe;
use crate::problem::Problem;
use crate::state::State;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use ripieno_wire::Parameter;
use ripieno_wire::json::{self, IndexBody, IndexRowBody, LoadBody, ModelReadyBody};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) fn ready(state: &State, name: String, version: &str) -> Result<Answer, Problem> {
    let ready = state.is_model_ready(&name, version)?;
    Ok(answer(ok_if(ready), &ModelReadyBody { name, ready }))
}

pub(super) fn metadata(state: &State, name: &str, version: &str) -> Result<Answer, Problem> {
    let entry = state.registry.get(name, version)?;
    Ok(answer(StatusCode::OK, &describe::metadata_body(describe::metadata(state, &entry))))
}

pub(super) fn config(state: &State, name: &str, version: &str) -> Result<Answer, Problem> {
    let entry = state.registry.get(name, version)?;
    Ok(answer(StatusCode::OK, &describe::config_json(&describe::config(&entry))))
}

pub(super) fn statistics(state: &State, name: &str, version: &str) -> Result<Answer, Problem> {
    let entries = state.entries(name, version)?;
    let rows: Vec<Value> =
        entries.iter().map(|entry| describe::statistics_json(&describe::statistics(state, entry))).collect();
    Ok(answer(StatusCode::OK, &serde_json::json!({"model_stats": rows})))
}

pub(super) async fn index(state: &State, request: &mut Request<Incoming>) -> Result<Answer, Problem> {
    let IndexBody { ready } = parse(state, request).await?;
    let rows = state.loads.look(|repository| repository.index()).await?;
    let rows = rows.into_iter().filter(|row| !ready || row.state == "READY");
    let rows: Vec<IndexRowBody> = rows
        .map(|row| IndexRowBody { name: row.name, version: row.version, state: row.state, reason: row.reason })
        .collect();
    Ok(answer(StatusCode::OK, &rows))
}

pub(super) async fn load(state: &State, name: String, request: &mut Request<Incoming>) -> Result<Answer, Problem> {
    let LoadBody { parameters } = parse(state, request).await?;
    let config = config_parameter(parameters.0)?;
    let loaded = state.loads.change(name, Change::Load { config }).await?;
    loaded.map_err(Problem::invalid)?;
    Ok(reply(StatusCode::OK, "application/json", Bytes::new()))
}

pub(super) async fn unload(state: &State, name: String, request: &mut Request<Incoming>) -> Result<Answer, Problem> {
    // unload_dependents says nothing here: no model depends on another.
    let LoadBody { .. } = parse(state, request).await?;
    state.unload(name).await?;
    Ok(reply(StatusCode::OK, "application/json", Bytes::new()))
}

/// The configuration that a load call carries. Files are refused: what a server runs comes from its own disk.
pub(crate) fn config_parameter(
    parameters: impl IntoIterator<Item = (String, Parameter)>,
) -> Result<Option<String>, Problem> {
    let mut config = None;
    for (name, value) in parameters {
        match (name.as_str(), value) {
            ("config", Parameter::Text(text)) => config = Some(text),
            ("config", other) => {
                return Err(Problem::invalid(format!("parameter config is {other}; it must be a string")));
            }
            (file, _) if file.starts_with("file:") => {
                return Err(Problem::invalid(format!(
                    "parameter {file}: models are not taken over the network; put the file into the repository"
                )));
            }
            _ => {}
        }
    }
    Ok(config)
}

/// These bodies may be left out.
pub(super) async fn parse<T: DeserializeOwned + Default>(
    state: &State,
    request: &mut Request<Incoming>,
) -> Result<T, Problem> {
    let received = body::read(state, request).await?;
    if received.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    // Small calls: their parameters alone are kept, and are bounded in number.
    let caller = send::caller(request);
    let _decoded = state.budget_of(caller.as_ref()).reserve(json::decoded_size(&received))?;
    serde_json::from_slice(&received).map_err(|error| Problem::invalid(format!("the body is not valid: {error}")))
}
