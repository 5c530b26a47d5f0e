//! Server reflection (v1 and v1alpha), which describes services and messages to clients such as
//! grpcurl.
//!
//! A library handles it. Its calls are streams of short questions that tonic reads without limits;
//! this module limits the questions of a call in size and time, and reserves memory for the call.

use super::{SMALL_BYTES, calls, status};
use crate::limits::budget::Reservation;
use crate::state::ServerState;
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use ripieno_wire::proto::DESCRIPTORS;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::service::Routes;
use tonic_reflection::server::Builder;
use tower::Service as _;

/// Maximum size of all questions of a call; describing all services takes thirty questions.
const MAX_CALL_BYTES: usize = SMALL_BYTES;
/// Maximum size of a question, the name of a file or message.
const MAX_QUESTION_BYTES: usize = 4 << 10;
/// Maximum duration of a call.
const MAX_CALL_TIME: Duration = Duration::from_secs(60);

/// Adds both versions to tonic's routes.
pub(super) fn add(routes: Routes) -> Routes {
    let builder = || Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    let v1 = builder().build_v1().expect("the descriptions were compiled by crates/wire/codegen");
    let v1alpha = builder().build_v1alpha().expect("the descriptions were compiled by crates/wire/codegen");
    routes
        .add_service(v1.max_decoding_message_size(MAX_QUESTION_BYTES))
        .add_service(v1alpha.max_decoding_message_size(MAX_QUESTION_BYTES))
}

pub(super) fn is_asked(path: &str) -> bool {
    path.starts_with("/grpc.reflection.")
}

pub(super) async fn answer(state: &Arc<ServerState>, mut routes: Routes, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let room = match state.budget_of(head.extensions.get()).reserve(MAX_CALL_BYTES) {
        Ok(room) => room,
        Err(problem) => return calls::failed(status(problem)),
    };
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(pass_on(state.clone(), body, send, room));
    let Ok(answer) = routes.call(Request::from_parts(head, StreamBody::new(ReceiverStream::new(receive)))).await;
    answer
}

/// Forwards questions until they end or exceed a limit, or the server shuts down. The call then
/// ends as if the client had sent no more questions.
async fn pass_on(
    state: Arc<ServerState>,
    mut body: Incoming,
    send: mpsc::Sender<Result<Frame<Bytes>, hyper::Error>>,
    _room: Reservation,
) {
    let all = async {
        let mut left = MAX_CALL_BYTES;
        while let Some(frame) = body.frame().await {
            let bytes = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
            if bytes > left || send.send(frame).await.is_err() {
                return;
            }
            left -= bytes;
        }
    };
    tokio::select! {
        _ = tokio::time::timeout(MAX_CALL_TIME, all) => {}
        () = send.closed() => {}
        () = state.until_draining() => {}
    }
}
