//! HTTP/REST: one match from paths to calls, one place where a failure becomes a status.
//!
//! The protocol has few paths, all alike, and demands a JSON body of every error, unknown paths included; a match over
//! the segments says that more plainly than a router with its own ideas about errors.

pub(crate) mod body;
mod devices;
mod generate;
mod infer;
mod models;
mod path;
mod regions;
mod send;
mod text;

use crate::compression::Encoding;
use crate::problem::{Kind, Problem};
use crate::state::State;
use crate::{compression, describe, not_offered, trace};
use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Either, Full};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode, Version};
use path::{Call, Target};
use ripieno_wire::json::{ErrorBody, LiveBody, ReadyBody};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use tracing::Instrument;

type Answer = Response<Either<Full<Bytes>, generate::Events>>;

/// Answers one call; never fails, because a failure is an answer too.
pub(crate) async fn handle(state: Arc<State>, mut request: Request<Incoming>) -> Result<Answer, Infallible> {
    let trace = trace::of(request.headers());
    let answered = answer(&state, &mut request);
    let mut answer = match &trace {
        Some(trace) => answered.instrument(trace.span()).await,
        None => answered.await,
    };
    trace.into_iter().for_each(|trace| trace.answer(&mut answer));
    Ok(answer)
}

async fn answer(state: &Arc<State>, request: &mut Request<Incoming>) -> Answer {
    let is_infer = request.uri().path().ends_with("/infer");
    let answered = tokio::select! {
        // First: who has an answer need not ask whether the server goes down.
        biased;
        answered = dispatch(state, request) => answered,
        problem = state.dismissed() => Err(problem),
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
    // The rest of a body is in the way of the next request, and so is the end of the server.
    let connection = send::caller(request);
    let has_rest = connection.as_ref().is_some_and(|connection| connection.has_unread_body());
    let goes = state.is_draining() && request.version() < Version::HTTP_2;
    if has_rest || (goes && connection.is_none_or(|connection| connection.ends_with_answer())) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

async fn dispatch(state: &Arc<State>, request: &mut Request<Incoming>) -> Result<Answer, Problem> {
    let Some(call) = path::parse(request.uri().path()) else {
        let message = format!("'{}' is no path of this server; see GET /v2", request.uri().path());
        return Err(Problem::new(Kind::NotFound, message));
    };
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    if let Some(wanted) = call.method().filter(|wanted| method != wanted) {
        return Ok(wrong_method(request.method(), &wanted, request.uri().path()));
    }
    let caller = state.access.admit(call.need(), request)?;
    request.extensions_mut().insert(caller);
    match call {
        Call::Server => Ok(json(StatusCode::OK, &describe::server_metadata(state))),
        Call::Live => Ok(json(StatusCode::OK, &LiveBody { live: true })),
        Call::Ready => {
            let ready = state.is_ready();
            Ok(json(ok_if(ready), &ReadyBody { ready }))
        }
        Call::ModelReady(Target { name, version }) => models::ready(state, name, &version),
        Call::Metadata(Target { name, version }) => models::metadata(state, &name, &version),
        Call::Config(Target { name, version }) => models::config(state, &name, &version),
        Call::Statistics(Target { name, version }) => models::statistics(state, &name, &version),
        Call::Infer(target) => infer::infer(state, target, request).await,
        Call::Generate(target) => generate::generate(state, target, request).await,
        Call::GenerateStream(target) => generate::generate_stream(state, target, request).await,
        Call::Index => models::index(state, request).await,
        Call::Load(name) => models::load(state, name, request).await,
        Call::Unload(name) => models::unload(state, name, request).await,
        Call::Devices => Ok(devices::list(state)),
        Call::ChangeDevices(change) => devices::change(state, change).await,
        Call::Regions(call) => regions::system(state, call, request).await,
        Call::CudaRegions(call) => regions::cuda(call),
        Call::TextModels => Ok(text::models(state)),
        Call::Embeddings => text::embeddings(state, request).await,
        Call::Classify => text::classify(state, request).await,
        Call::Rerank => text::rerank(state, request).await,
        Call::TraceSettings => Err(not_offered::trace_settings()),
        Call::LogSettings => Err(not_offered::log_settings()),
    }
}

/// The answer as its client likes it. Events are not compressed: each is to be read as it comes.
async fn compressed(state: &State, request: &Request<Incoming>, answer: Answer) -> Answer {
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
    let connection = send::caller(request);
    let budget = state.budget_of(connection.as_ref());
    let smaller = compression::compress(state, budget, encoding, &plain, 0).await;
    let smaller = smaller.and_then(|(smaller, room)| send::bytes(&connection, smaller, room).ok());
    if smaller.is_some() {
        head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
        head.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    Response::from_parts(head, Either::Left(Full::new(smaller.unwrap_or(plain))))
}

fn ok_if(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn wrong_method(got: &Method, wanted: &Method, path: &str) -> Answer {
    let problem = Problem::new(Kind::WrongMethod, format!("{got} {path}: use {wanted}"));
    let mut answer = problem_answer(&problem);
    if let Ok(wanted) = HeaderValue::from_str(wanted.as_str()) {
        answer.headers_mut().insert(ALLOW, wanted);
    }
    answer
}

fn problem_answer(problem: &Problem) -> Answer {
    refusal(problem).map(Either::Left)
}

/// A failure as an answer; also to those who ask for metrics.
pub(crate) fn refusal(problem: &Problem) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(problem.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = Response::new(Full::new(encode(&ErrorBody { error: problem.message.clone() })));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if problem.kind == Kind::Unauthenticated {
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"ripieno\""));
    }
    if let Some(seconds) = problem.retry_after_s() {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    reply(status, "application/json", encode(body))
}

fn encode(body: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(body).expect("strings and numbers into memory always serialise"))
}

fn reply(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
