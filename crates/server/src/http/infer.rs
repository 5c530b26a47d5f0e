//! `POST …/infer`.

use super::body::{self, Received};
use super::path::Target;
use super::{Answer, reply};
use crate::access::client_of;
use crate::infer::{Inferred, infer as run};
use crate::problem::{Kind, Problem};
use crate::state::State;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode};
use ripieno_wire::{InferRequest, json};
use std::sync::Arc;
use std::time::Instant;

const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Bodies whose JSON is longer are parsed where that holds up nobody: at some 200 MB/s, this many bytes take 1 ms.
pub(super) const PARSE_INLINE_BYTES: usize = 256 << 10;

pub(super) async fn infer(state: &Arc<State>, target: Target, request: Request<Incoming>) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    let json_length = json_length(&head.headers)?;
    // Before the body is read: a call for a model that is not there should not cost its transfer.
    state.registry.get(&target.name, &target.version)?;
    let Received { bytes, .. } = &body::read(state, &head.headers, body).await?;
    let received = Instant::now();
    let mut request = parse(target, bytes, json_length).await?;
    request.client = client_of(&head.extensions);
    let Inferred { response, entry } = run(state, request, received, None).await?;
    let answered = Instant::now();
    let encoded = json::encode_infer(&response)?;
    entry.stats.encoding.add(answered.elapsed());
    let body = Bytes::from(encoded.body);
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

async fn parse(target: Target, body: &Bytes, json_length: Option<usize>) -> Result<InferRequest, Problem> {
    let Target { name, version } = target;
    if json_length.unwrap_or(body.len()) <= PARSE_INLINE_BYTES {
        return Ok(json::parse_infer(&name, &version, body, json_length)?);
    }
    let body = body.clone();
    let parsed = tokio::task::spawn_blocking(move || json::parse_infer(&name, &version, &body, json_length)).await;
    Ok(parsed.map_err(|error| Problem::new(Kind::Internal, format!("parsing failed: {error}")))??)
}
