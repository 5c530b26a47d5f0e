//! HTTP/REST front of the server: one match from paths to calls, and one place that maps failures
//! to statuses.
//!
//! The protocol has few, similar paths and requires a JSON body for every error, including unknown
//! paths. A match over the path segments is simpler than a router with its own error handling.

pub(crate) mod body;
mod devices;
mod generate;
mod infer;
mod models;
mod openapi;
mod path;
mod regions;
mod send;
mod text;

use crate::problem::{Problem, ProblemKind};
use crate::protocol::compression::Encoding;
use crate::state::ServerState;
use crate::{observe::recording, protocol::compression, protocol::describe, protocol::not_offered, trace};
use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Either, Full, StreamBody};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode, Version};
use path::{ModelTarget, RestCall};
use ripieno_wire::json::{ErrorBody, LiveBody, ReadyBody};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

type HttpAnswer = Response<Either<Full<Bytes>, generate::ServerSentEvents>>;

/// Handles a call; failures become responses.
pub(crate) async fn handle(state: Arc<ServerState>, mut request: Request<Incoming>) -> Result<HttpAnswer, Infallible> {
    let trace = trace::from_headers(request.headers());
    let logged = state.access_log.as_ref().and_then(|log| log.begin(&request));
    let answered = answer(&state, &mut request);
    let mut answer = match &trace {
        Some(trace) => answered.instrument(trace.span()).await,
        None => answered.await,
    };
    if let Some(trace) = trace {
        trace.add_to_answer(&mut answer);
    }
    state.call_errors.on_status(answer.status().as_u16());
    if let (Some(log), Some(call)) = (&state.access_log, logged) {
        log.end(call, &answer);
    }
    Ok(answer)
}

async fn answer(state: &Arc<ServerState>, request: &mut Request<Incoming>) -> HttpAnswer {
    let is_infer = request.uri().path().ends_with("/infer");
    let answered = tokio::select! {
        // `biased`: a finished response takes precedence over the shutdown.
        biased;
        answered = dispatch(state, request) => answered,
        problem = state.until_dismissing() => Err(problem),
    };
    let mut answer = answered.unwrap_or_else(|problem| {
        let problem = problem.under(state.config.error_profile);
        tracing::debug!(status = problem.kind.http_status(), infer = is_infer, "{}", problem.message);
        let mut answer = problem_answer(&problem);
        if text::is_text(request.uri().path()) {
            *answer.body_mut() = Either::Left(Full::new(text::error_body(&problem)));
        }
        answer
    });
    answer = compressed(state, request, answer).await;
    // An unread body blocks the connection's next request, and shutdown ends the connection.
    let connection = send::connection_of(request);
    let has_rest = connection.as_ref().is_some_and(|connection| connection.has_unread_body());
    let goes = state.is_draining() && request.version() < Version::HTTP_2;
    if has_rest || (goes && connection.is_none_or(|connection| connection.ends_with_answer())) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

async fn dispatch(state: &Arc<ServerState>, request: &mut Request<Incoming>) -> Result<HttpAnswer, Problem> {
    let Some(call) = path::parse(request.uri().path()) else {
        return Err(no_path(state, request.uri().path()));
    };
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    if let Some(expected) = call.method().filter(|expected| method != expected) {
        return Ok(wrong_method(request.method(), &expected, request.uri().path()));
    }
    let caller = state.access.authorize(call.permission(), request)?;
    request.extensions_mut().insert(caller);
    match call {
        RestCall::OpenApi => Ok(json(StatusCode::OK, &openapi::document())),
        RestCall::Server => Ok(json(StatusCode::OK, &describe::server_metadata(state))),
        RestCall::Live => Ok(json(StatusCode::OK, &LiveBody { live: true })),
        RestCall::Ready => {
            let ready = state.is_ready();
            Ok(json(ok_if(ready), &ReadyBody { ready }))
        }
        RestCall::Status => Ok(json(StatusCode::OK, &crate::ui::status::of(state).await)),
        RestCall::ModelReady(ModelTarget { name, version }) => models::ready(state, name, &version),
        RestCall::Metadata(ModelTarget { name, version }) => models::metadata(state, &name, &version),
        RestCall::Config(ModelTarget { name, version }) => models::config(state, &name, &version),
        RestCall::Statistics(ModelTarget { name, version }) => models::statistics(state, &name, &version),
        RestCall::Infer(target) => infer::infer(state, target, request).await,
        RestCall::Generate(target) => generate::generate(state, target, request).await,
        RestCall::GenerateStream(target) => generate::generate_stream(state, target, request).await,
        RestCall::Index => models::index(state, request).await,
        RestCall::Load(name) => models::load(state, name, request).await,
        RestCall::Unload(name) => models::unload(state, name, request).await,
        RestCall::Devices => Ok(devices::list(state)),
        RestCall::ChangeDevices(change) => devices::change(state, change).await,
        RestCall::DumpRecording => recording::stream(state).map(dumped),
        RestCall::Regions(call) => regions::system(state, call, request).await,
        RestCall::CudaRegions(call) => regions::cuda(call),
        RestCall::TextModels => Ok(text::models(state)),
        RestCall::Embeddings => text::embeddings(state, request).await,
        RestCall::Classify => text::classify(state, request).await,
        RestCall::Rerank => text::rerank(state, request).await,
        RestCall::EncoderEmbed => text::encoders::embed(state, request).await,
        RestCall::EncoderRerank => text::encoders::rerank(state, request).await,
        RestCall::EncoderPredict => text::encoders::predict(state, request).await,
        RestCall::TraceSettings => Err(not_offered::trace_settings()),
        RestCall::LogSettings => Err(not_offered::log_settings()),
    }
}

/// Returns the error for a path that is not offered, with the port that has it.
fn no_path(state: &ServerState, path: &str) -> Problem {
    let message = match state.config.metrics.map(|metrics| metrics.port()) {
        Some(port) if ["/", "/metrics", "/ui"].contains(&path) => {
            format!("'{path}' is no path here: the page /ui and /metrics are on the metrics port (--metrics), {port}")
        }
        _ => format!("'{path}' is no path of this server; see GET /v2"),
    };
    Problem::new(ProblemKind::NotFound, message)
}

/// Compresses the response as the client prefers. Event streams are not compressed, because each
/// event must be readable when it arrives.
async fn compressed(state: &ServerState, request: &Request<Incoming>, answer: HttpAnswer) -> HttpAnswer {
    let encoding = compression::accepted(request.headers());
    if encoding == Encoding::Identity || request.method() == Method::HEAD {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let whole = match body {
        Either::Left(whole) => whole,
        events => return Response::from_parts(head, events),
    };
    let Ok(plain) = whole.collect().await.map(Collected::to_bytes);
    let connection = send::connection_of(request);
    let budget = state.budget_of(connection.as_ref());
    let smaller = compression::compress(state, budget, encoding, &plain, 0).await;
    let smaller = smaller.and_then(|(smaller, room)| send::bytes(&connection, smaller, room).ok());
    if smaller.is_some() {
        head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
        head.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    Response::from_parts(head, Either::Left(Full::new(smaller.unwrap_or(plain))))
}

/// Returns the answer with the pieces of a recording.
fn dumped(pieces: Receiver<recording::BodyPiece>) -> HttpAnswer {
    let mut answer = Response::new(Either::Right(StreamBody::new(ReceiverStream::new(pieces))));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
    answer
}

fn ok_if(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn wrong_method(got: &Method, expected: &Method, path: &str) -> HttpAnswer {
    let problem = Problem::new(ProblemKind::WrongMethod, format!("{got} {path}: use {expected}"));
    let mut answer = problem_answer(&problem);
    if let Ok(expected) = HeaderValue::from_str(expected.as_str()) {
        answer.headers_mut().insert(ALLOW, expected);
    }
    answer
}

fn problem_answer(problem: &Problem) -> HttpAnswer {
    refusal(problem).map(Either::Left)
}

/// Builds the response of a failure; also used on the metrics port.
pub(crate) fn refusal(problem: &Problem) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(problem.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = Response::new(Full::new(encode(&ErrorBody { error: problem.message.clone() })));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if problem.kind == ProblemKind::Unauthenticated {
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"ripieno\""));
    }
    if let Some(seconds) = problem.retry_after_s() {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

fn json(status: StatusCode, body: &impl Serialize) -> HttpAnswer {
    reply(status, "application/json", encode(body))
}

fn encode(body: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(body).expect("strings and numbers into memory always serialise"))
}

fn reply(status: StatusCode, content_type: &'static str, body: Bytes) -> HttpAnswer {
    let mut answer = Response::new(Either::Left(Full::new(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
