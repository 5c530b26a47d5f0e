//! `POST …/generate` and `…/generate_stream`: inputs by name, and the answer at once or as server-sent events.
//!
//! A failure before the first part is an ordinary error with its status; a later one is an event with the key `error`,
//! since the status has been sent. The stream ends with the event whose `triton_final_response` is true, or with the error.

use super::path::Target;
use super::send::Caller;
use super::{Answer, body, reply, send};
use crate::access::caller_of;
use crate::check::wire_datatype;
use crate::decoded;
use crate::infer::{Asked, Inferred, delivered, infer};
use crate::problem::{Kind, Problem};
use crate::slo;
use crate::state::{PARSE_INLINE_BYTES, State};
use crate::stream::{Part, Parts};
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

/// Events that wait for the network; further ones wait as steps.
const UNSENT: usize = 16;

/// A body of server-sent events.
pub(super) type Events = StreamBody<ReceiverStream<Result<Frame<Bytes>, Infallible>>>;

pub(super) async fn generate(
    state: &State,
    target: Target,
    request: &mut Request<Incoming>,
) -> Result<Answer, Problem> {
    let asked = read(state, &target, request).await?;
    let caller = send::caller(request);
    let inferred = infer(state, state.budget_of(caller.as_ref()), asked).await?;
    let (entry, late) = (inferred.entry.clone(), inferred.late);
    delivered(&entry, late, encode(&caller, inferred))
}

fn encode(caller: &Caller, mut inferred: Inferred) -> Result<Answer, Problem> {
    let answered = Instant::now();
    inferred.make_room(json::encoded_size(&inferred.response))?;
    let Inferred { response, entry, room, .. } = inferred;
    let body = json::encode_generate(&response)?;
    drop(response);
    entry.stats.encoding.add(answered.elapsed());
    Ok(reply(StatusCode::OK, "application/json", send::bytes(caller, body, room)?))
}

pub(super) async fn generate_stream(
    state: &Arc<State>,
    target: Target,
    request: &mut Request<Incoming>,
) -> Result<Answer, Problem> {
    let asked = read(state, &target, request).await?;
    let caller = send::caller(request);
    let mut parts = Parts::begin(state, state.budget_of(caller.as_ref()), asked).await?;
    let first = parts.next(state).await.ok_or_else(|| Problem::new(Kind::Internal, "the request was lost"))??;
    let (send, receive) = mpsc::channel(UNSENT);
    let state = state.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = send_all(&state, &caller, parts, first, &send) => {}
            () = send.closed() => {}
            problem = state.dismissed() => {
                // The last word, if there is room for it.
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

/// Dropping this, when the client has gone, drops the parts, which withdraws the request.
async fn send_all(
    state: &State,
    caller: &Caller,
    mut parts: Parts,
    first: Part,
    send: &Sender<Result<Frame<Bytes>, Infallible>>,
) {
    let mut part = Some(Ok(first));
    while let Some(next) = part {
        let encoded: Result<Bytes, Problem> = next.and_then(|Part { response, .. }| {
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

async fn read(state: &State, target: &Target, request: &mut Request<Incoming>) -> Result<Asked, Problem> {
    let slo = slo::of(request.headers())?;
    // Before the body is read: a call for a model that is not there should not cost its transfer.
    let entry = state.registry.get(&target.name, &target.version)?;
    let bytes = body::read(state, request).await?;
    let received = Instant::now();
    // Beside the tensors: a value that is no array is put into one, and read from there.
    let caller = send::caller(request);
    let room = state.budget_of(caller.as_ref()).reserve(json::decoded_size(&bytes) + bytes.len())?;
    let (version, length) = (target.version.clone(), bytes.len());
    let work = move || parse(&entry, &version, &bytes);
    let parsed = if length <= PARSE_INLINE_BYTES { work() } else { state.work(work).await? };
    let parsed = decoded::keep(parsed?, room)?;
    Ok(Asked { request: parsed, received, timeout: None, slo, caller: caller_of(request.extensions()), place: None })
}

fn parse(entry: &ServedEntry, version: &str, body: &[u8]) -> Result<InferRequest, WireError> {
    let shape =
        |spec: &ripieno_model::TensorSpec| (spec.name.clone(), wire_datatype(spec.datatype), entry.shape(spec).len());
    let shapes: Vec<_> = entry.inputs.iter().map(shape).collect();
    let inputs: Vec<InputShape<'_>> =
        shapes.iter().map(|(name, datatype, rank)| InputShape { name, datatype: *datatype, rank: *rank }).collect();
    json::parse_generate(&entry.name, version, body, &inputs)
}
