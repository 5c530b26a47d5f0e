//! ModelInfer and ModelStreamInfer, which carry tensors, and RepositoryModelLoad, which may carry
//! files, handled as raw HTTP/2 calls, so that all their bytes are counted.

use super::frames::{self, Messages, trailers};
use super::{status, stream, timeout};
use crate::call::infer::{InferCall, Inferred, delivered, infer};
use crate::call::overrides;
use crate::call::regions::request::caller;
use crate::limits::connection::ClientConnection;
use crate::limits::loads::RepositoryChange;
use crate::observe::access_log::LoggedInference;
use crate::problem::Problem;
use crate::protocol::compression::Encoding;
use crate::protocol::slo;
use crate::state::ServerState;
use crate::trace;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response};
use prost::Message;
use ripieno_wire::grpc;
use ripieno_wire::proto::inference::{RepositoryModelLoadRequest, RepositoryModelLoadResponse};
use std::sync::Arc;
use std::time::Instant;
use tonic::Status;
use tonic::body::Body;

pub(super) const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
pub(super) const MODEL_STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

pub(super) const MODEL_LOAD: &str = "/inference.GRPCInferenceService/RepositoryModelLoad";

/// Compression that clients may use.
const ENCODINGS: HeaderValue = HeaderValue::from_static("gzip,deflate,identity");

/// Handles ModelInfer.
pub(super) async fn model_infer(state: Arc<ServerState>, request: Request<Incoming>) -> Response<Body> {
    let (profile, encoding) = (state.config.error_profile, frames::answers_in(request.headers()));
    let answered = tokio::select! {
        answered = unary(&state, request, encoding) => answered,
        problem = state.until_dismissing() => Err(problem),
    };
    match answered {
        Ok((message, logged)) => {
            let end = std::future::ready(Some(Ok(trailers(&Status::ok("")))));
            let mut answer = head(Body::new(Full::new(message).with_trailers(end)), encoding);
            if let Some(logged) = logged {
                answer.extensions_mut().insert(logged);
            }
            answer
        }
        Err(problem) => failed(status(problem.under(profile))),
    }
}

async fn unary(
    state: &ServerState,
    request: Request<Incoming>,
    encoding: Encoding,
) -> Result<(Bytes, Option<LoggedInference>), Problem> {
    let (parts, body) = request.into_parts();
    let (timeout, slo) = (timeout::from_headers(&parts.headers)?, slo::from_headers(&parts.headers)?);
    let connection = parts.extensions.get::<Arc<ClientConnection>>().cloned();
    let message = Messages::new(state, &parts.headers, body, connection.clone())?.only(state).await?;
    let received = Instant::now();
    let budget = state.budget_of(connection.as_ref());
    let (_, request) = frames::decode(state, budget, message).await;
    let request = request?;
    let caller = caller(state, &request, &parts.uri, &parts.headers, &parts.extensions);
    let trace = trace::from_headers(&parts.headers);
    let call = InferCall { request, received, timeout, slo, caller, trace, position: None };
    let inferred = infer(state, budget, call).await?;
    let (entry, late, logged) = (inferred.entry.clone(), inferred.late, inferred.logged(state));
    let message = delivered(&entry, late, encode(connection.as_ref(), inferred))?;
    Ok((frames::compressed(state, connection.as_ref(), encoding, message).await, logged))
}

fn encode(connection: Option<&Arc<ClientConnection>>, mut inferred: Inferred) -> Result<Bytes, Problem> {
    let answered = Instant::now();
    // Estimated size of names and shapes besides the data.
    let beside = 4096 + 256 * inferred.response.outputs.len();
    let data: usize = inferred.response.outputs.iter().map(|output| output.data.len()).sum();
    inferred.make_room(data + beside)?;
    let Inferred { response, entry, room, .. } = inferred;
    let message = grpc::encode_infer(response);
    let encoded = frames::encode(&message, room, connection)?;
    entry.stats.encoding.add(answered.elapsed());
    Ok(encoded)
}

/// Handles RepositoryModelLoad, including its upload.
pub(super) async fn model_load(state: &ServerState, request: Request<Incoming>) -> Response<Body> {
    let loaded = tokio::select! {
        loaded = load(state, request) => loaded,
        problem = state.until_dismissing() => Err(problem),
    };
    match loaded {
        Ok(message) => {
            let end = std::future::ready(Some(Ok(trailers(&Status::ok("")))));
            head(Body::new(Full::new(message).with_trailers(end)), Encoding::Identity)
        }
        Err(problem) => failed(status(problem)),
    }
}

async fn load(state: &ServerState, request: Request<Incoming>) -> Result<Bytes, Problem> {
    let (parts, body) = request.into_parts();
    let connection = parts.extensions.get::<Arc<ClientConnection>>().cloned();
    let message = Messages::new(state, &parts.headers, body, connection.clone())?.only(state).await?;
    let budget = state.budget_of(connection.as_ref());
    let _room = budget.reserve(grpc::decoded_load_size(&message)?)?;
    let decoded = RepositoryModelLoadRequest::decode(message);
    let RepositoryModelLoadRequest { model_name, parameters, .. } =
        decoded.map_err(|error| Problem::invalid(format!("the message is no request: {error}")))?;
    let upload = overrides::from_message(parameters)?;
    overrides::check_allowed(state, &upload)?;
    state.loads.apply(model_name, RepositoryChange::Load { upload }).await?.map_err(Problem::invalid)?;
    frames::encode(&RepositoryModelLoadResponse {}, budget.reserve(0)?, connection.as_ref())
}

/// Handles ModelStreamInfer.
pub(super) fn model_stream_infer(state: Arc<ServerState>, request: Request<Incoming>) -> Response<Body> {
    let encoding = frames::answers_in(request.headers());
    match stream::start(state, request, encoding) {
        Ok(frames) => head(Body::new(StreamBody::new(frames)), encoding),
        Err(problem) => failed(status(problem)),
    }
}

/// Builds the response head. The encoding names what may be used; each message states whether it is
/// compressed.
fn head(body: Body, encoding: Encoding) -> Response<Body> {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    answer.headers_mut().insert("grpc-accept-encoding", ENCODINGS);
    if encoding != Encoding::Identity {
        answer.headers_mut().insert(&frames::ENCODING, HeaderValue::from_static(encoding.name()));
    }
    answer
}

pub(super) fn failed(status: Status) -> Response<Body> {
    let mut answer = head(Body::empty(), Encoding::Identity);
    answer.headers_mut().extend(trailers(&status));
    answer
}
