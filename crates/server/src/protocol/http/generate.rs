//! `POST …/generate` and `…/generate_stream`: inputs by name; the response in one body or as
//! server-sent events.
//!
//! A failure before the first part is a regular error with a status. A later one is an event with
//! the key `error`, because the status has been sent. The stream ends with an event whose
//! `triton_final_response` is true, or with the error.

use super::path::ModelTarget;
use super::send::CallConnection;
use super::{HttpAnswer, body, reply, send};
use crate::access::caller_of;
use crate::call::decoded;
use crate::call::infer::{InferCall, Inferred, delivered, infer};
use crate::call::stream::{AnswerPart, AnswerParts};
use crate::problem::{Problem, ProblemKind};
use crate::protocol::slo;
use crate::state::{PARSE_INLINE_BYTES, ServerState};
use crate::trace;
use bytes::Bytes;
use http_body_util::{Either, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use ripieno_repository::registry::ServedEntry;
use ripieno_wire::json::{self, ErrorBody, InputShape};
use ripieno_wire::{InferRequest, WireError};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;

/// Maximum events that wait for the network; further ones wait as steps.
const MAX_UNSENT: usize = 16;

/// A body of server-sent events.
pub(super) type ServerSentEvents = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

pub(super) async fn generate(
    state: &ServerState,
    target: ModelTarget,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let call = read(state, &target, request).await?;
    let caller = send::connection_of(request);
    let inferred = infer(state, state.budget_of(caller.as_ref()), call).await?;
    let (entry, late) = (inferred.entry.clone(), inferred.late);
    delivered(&entry, late, encode(&caller, inferred))
}

fn encode(caller: &CallConnection, mut inferred: Inferred) -> Result<HttpAnswer, Problem> {
    let answered = Instant::now();
    inferred.make_room(json::encoded_size(&inferred.response))?;
    let Inferred { response, entry, room, .. } = inferred;
    let body = json::encode_generate(&response)?;
    drop(response);
    entry.stats.encoding.add(answered.elapsed());
    Ok(reply(StatusCode::OK, "application/json", send::bytes(caller, body, room)?))
}

pub(super) async fn generate_stream(
    state: &Arc<ServerState>,
    target: ModelTarget,
    request: &mut Request<Incoming>,
) -> Result<HttpAnswer, Problem> {
    let call = read(state, &target, request).await?;
    let caller = send::connection_of(request);
    let mut parts = AnswerParts::begin(state, state.budget_of(caller.as_ref()), call).await?;
    let first =
        parts.next(state).await.ok_or_else(|| Problem::new(ProblemKind::Internal, "the request was lost"))??;
    let (send, receive) = mpsc::channel(MAX_UNSENT);
    let state = state.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = send_all(&state, &caller, parts, first, &send) => {}
            () = send.closed() => {}
            problem = state.until_dismissing() => {
                // Final event, if there is room for it.
                let _ = send.try_send(Ok(Frame::data(event(&error_body(problem.message)).into())));
            }
        }
    });
    let mut answer = Response::new(Either::Right(StreamBody::new(ReceiverStream::new(receive))));
    let event_stream = HeaderValue::from_static("text/event-stream; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, event_stream);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(answer)
}

/// Sends all parts. Dropping this future, when the client is gone, withdraws the request.
async fn send_all(
    state: &ServerState,
    caller: &CallConnection,
    mut parts: AnswerParts,
    first: AnswerPart,
    send: &Sender<Result<Frame<Bytes>, Infallible>>,
) {
    let mut part = Some(Ok(first));
    while let Some(next) = part {
        let encoded: Result<Bytes, Problem> = next.and_then(|AnswerPart { response, .. }| {
            let begun = Instant::now();
            let room = state.budget_of(caller.as_ref()).reserve(2 * json::encoded_size(&response))?;
            let encoded = event(&json::encode_generate(&response)?);
            parts.entry().stats.encoding.add(begun.elapsed());
            send::bytes(caller, encoded, room)
        });
        let encoded = parts.delivered(encoded);
        let failed = encoded.is_err();
        let encoded = encoded.unwrap_or_else(|problem| event(&error_body(problem.message)).into());
        if send.send(Ok(Frame::data(encoded))).await.is_err() || failed {
            return;
        }
        part = parts.next(state).await;
    }
}

fn event(body: &[u8]) -> Vec<u8> {
    [b"data: ", body, b"\n\n"].concat()
}

fn error_body(error: String) -> Vec<u8> {
    serde_json::to_vec(&ErrorBody { error }).expect("a string into memory always serialises")
}

async fn read(
    state: &ServerState,
    target: &ModelTarget,
    request: &mut Request<Incoming>,
) -> Result<InferCall, Problem> {
    let slo = slo::from_headers(request.headers())?;
    // The lookup precedes reading the body, so that a call for an unknown model fails without the
    // transfer.
    let entry = state.registry.get(&target.name, &target.version)?;
    let bytes = body::read(state, request).await?;
    let received = Instant::now();
    // The additional body length covers single values, which are copied into an array.
    let caller = send::connection_of(request);
    let room = state.budget_of(caller.as_ref()).reserve(json::decoded_size(&bytes) + bytes.len())?;
    let (version, length) = (target.version.clone(), bytes.len());
    let work = move || parse(&entry, &version, &bytes);
    let parsed = if length <= PARSE_INLINE_BYTES { work() } else { state.run_cpu_bound(work).await? };
    let parsed = decoded::hold_inputs(parsed?, room)?;
    Ok(InferCall {
        request: parsed,
        received,
        timeout: None,
        slo,
        caller: caller_of(request.extensions()),
        trace: trace::from_headers(request.headers()),
        position: None,
    })
}

fn parse(entry: &ServedEntry, version: &str, body: &[u8]) -> Result<InferRequest, WireError> {
    let shape = |spec: &ripieno_model::TensorSpec| (spec.name.clone(), spec.datatype, entry.shape(spec).len());
    let shapes: Vec<_> = entry.inputs.iter().map(shape).collect();
    let inputs: Vec<InputShape<'_>> =
        shapes.iter().map(|(name, datatype, rank)| InputShape { name, datatype: *datatype, rank: *rank }).collect();
    json::parse_generate(&entry.name, version, body, &inputs)
}
