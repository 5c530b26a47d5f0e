//! `POST …/generate` and `…/generate_stream`: inputs by name, and the answer at once or as server-sent events.
//!
//! A failure before the first part is an ordinary error with its status; a later one is an event with the key `error`,
//! since the status has been sent. The stream ends with the event whose `triton_final_response` is true, or with the error.

use super::body;
use super::infer::PARSE_INLINE_BYTES;
use super::path::Target;
use super::{Answer, reply};
use crate::access::client_of;
use crate::check::wire_datatype;
use crate::infer::{Inferred, infer};
use crate::problem::{Kind, Problem};
use crate::registry::ServedEntry;
use crate::state::State;
use crate::stream::{Part, Parts};
use bytes::Bytes;
use http_body_util::{Either, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
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

pub(super) async fn generate(state: &State, target: Target, request: Request<Incoming>) -> Result<Answer, Problem> {
    let (request, received, _body) = read(state, &target, request).await?;
    let Inferred { response, entry } = infer(state, request, received, None).await?;
    let answered = Instant::now();
    let body = json::encode_generate(&response)?;
    entry.stats.encoding.add(answered.elapsed());
    Ok(reply(StatusCode::OK, "application/json", Bytes::from(body)))
}

pub(super) async fn generate_stream(
    state: &Arc<State>,
    target: Target,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    let (request, received, body) = read(state, &target, request).await?;
    let mut parts = Parts::begin(state, request, received, None)?;
    let first = parts.next().await.ok_or_else(|| Problem::new(Kind::Internal, "the request was lost"))??;
    let (send, receive) = mpsc::channel(UNSENT);
    tokio::spawn(async move {
        tokio::select! {
            () = send_all(parts, first, &send) => {}
            () = send.closed() => {}
        }
        drop(body);
    });
    let mut answer = Response::new(Either::Right(StreamBody::new(ReceiverStream::new(receive))));
    let event_stream = HeaderValue::from_static("text/event-stream; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, event_stream);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(answer)
}

/// Dropping this, when the client has gone, drops the parts, which withdraws the request.
async fn send_all(mut parts: Parts, first: Part, send: &Sender<Result<Frame<Bytes>, Infallible>>) {
    let mut part = Some(Ok(first));
    while let Some(next) = part {
        let event: Result<Vec<u8>, Problem> = next.and_then(|Part { response, .. }| {
            let begun = Instant::now();
            let encoded = json::encode_generate(&response)?;
            parts.entry().stats.encoding.add(begun.elapsed());
            Ok(encoded)
        });
        let failed = event.is_err();
        let event = event.unwrap_or_else(|problem| error_body(problem.message));
        let sent = send.send(Ok(Frame::data(Bytes::from([b"data: ", &event[..], b"\n\n"].concat())))).await;
        if failed || sent.is_err() {
            return;
        }
        part = parts.next().await;
    }
}

fn error_body(error: String) -> Vec<u8> {
    serde_json::to_vec(&ErrorBody { error }).expect("a string into memory always serialises")
}

/// The request, when its last byte had come, and the body's share of the server's budget.
async fn read(
    state: &State,
    target: &Target,
    request: Request<Incoming>,
) -> Result<(InferRequest, Instant, body::Received), Problem> {
    let (head, incoming) = request.into_parts();
    // Before the body is read: a call for a model that is not there should not cost its transfer.
    let entry = state.registry.get(&target.name, &target.version)?;
    let body = body::read(state, &head.headers, incoming).await?;
    let received = Instant::now();
    let (version, bytes) = (target.version.clone(), body.bytes.clone());
    let mut request = if bytes.len() <= PARSE_INLINE_BYTES {
        parse(&entry, &version, &bytes)?
    } else {
        let parsed = tokio::task::spawn_blocking(move || parse(&entry, &version, &bytes)).await;
        parsed.map_err(|error| Problem::new(Kind::Internal, format!("parsing failed: {error}")))??
    };
    request.client = client_of(&head.extensions);
    Ok((request, received, body))
}

fn parse(entry: &ServedEntry, version: &str, body: &[u8]) -> Result<InferRequest, WireError> {
    let shape =
        |spec: &ripieno_model::TensorSpec| (spec.name.clone(), wire_datatype(spec.datatype), entry.shape(spec).len());
    let shapes: Vec<_> = entry.inputs.iter().map(shape).collect();
    let inputs: Vec<InputShape<'_>> =
        shapes.iter().map(|(name, datatype, rank)| InputShape { name, datatype: *datatype, rank: *rank }).collect();
    json::parse_generate(&entry.name, version, body, &inputs)
}
