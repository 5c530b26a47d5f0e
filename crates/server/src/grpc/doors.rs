//! Which gRPC call needs what, decided before a message is read.

use super::status;
use crate::access::Need;
use crate::state::State;
use hyper::body::Incoming;
use hyper::{Request, Response};
use std::convert::Infallible;
use std::sync::Arc;
use tonic::service::Routes;
use tower::Service;

/// Answers one call, if its caller may make it.
pub(crate) async fn handle(
    state: Arc<State>,
    mut routes: Routes,
    mut request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    match state.access.admit(need(request.uri().path()), &request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            routes.call(request).await
        }
        Err(problem) => Ok(status(problem).into_http()),
    }
}

/// What is not served needs as much as a description: stock clients try shared memory and expect to hear that it is not
/// implemented. A test holds every call of the protocol against this.
fn need(path: &str) -> Need {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, method) {
        ("grpc.health.v1.Health", _) => Need::Health,
        (_, "ServerLive" | "ServerReady") => Need::Health,
        (_, "ModelInfer" | "ModelStreamInfer") => Need::Infer,
        (_, "RepositoryModelLoad" | "RepositoryModelUnload") => Need::Admin,
        _ => Need::Describe,
    }
}
