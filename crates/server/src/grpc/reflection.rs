//! Server reflection: which services and messages there are, for grpcurl and the like, in both versions that clients speak.
//!
//! A library answers. Its calls are streams of short questions, which tonic reads without our bounds; so here the questions of a
//! call are bounded in number and time, and what a call may take is reserved while it lasts.

use super::{SMALL_BYTES, calls, status};
use crate::bounds::budget::Reservation;
use crate::state::State;
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

/// All questions of one call; the descriptions of everything that is offered take thirty.
const MOST_BYTES: usize = SMALL_BYTES;
/// The longest question: the name of a file or message.
const QUESTION_BYTES: usize = 4 << 10;
/// How long a call may go on.
const LONGEST: Duration = Duration::from_secs(60);

/// Adds both versions to the calls that tonic answers.
pub(super) fn add(routes: Routes) -> Routes {
    let builder = || Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    let v1 = builder().build_v1().expect("the descriptions were compiled by crates/wire/codegen");
    let v1alpha = builder().build_v1alpha().expect("the descriptions were compiled by crates/wire/codegen");
    routes
        .add_service(v1.max_decoding_message_size(QUESTION_BYTES))
        .add_service(v1alpha.max_decoding_message_size(QUESTION_BYTES))
}

pub(super) fn is_asked(path: &str) -> bool {
    path.starts_with("/grpc.reflection.")
}

pub(super) async fn answer(state: &Arc<State>, mut routes: Routes, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let room = match state.budget_of(head.extensions.get()).reserve(MOST_BYTES) {
        Ok(room) => room,
        Err(problem) => return calls::failed(status(problem)),
    };
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(pass_on(state.clone(), body, send, room));
    let Ok(answer) = routes.call(Request::from_parts(head, StreamBody::new(ReceiverStream::new(receive)))).await;
    answer
}

/// Passes questions on until there are no more, or too many, or the call has gone on for too long, or the server goes down. The
/// call then ends as if its client had asked no more.
async fn pass_on(
    state: Arc<State>,
    mut body: Incoming,
    send: mpsc::Sender<Result<Frame<Bytes>, hyper::Error>>,
    _room: Reservation,
) {
    let all = async {
        let mut left = MOST_BYTES;
        while let Some(frame) = body.frame().await {
            let bytes = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
            if bytes > left || send.send(frame).await.is_err() {
                return;
            }
            left -= bytes;
        }
    };
    tokio::select! {
        _ = tokio::time::timeout(LONGEST, all) => {}
        () = send.closed() => {}
        () = state.drained() => {}
    }
}
