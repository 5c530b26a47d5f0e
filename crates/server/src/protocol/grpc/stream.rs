//! ModelStreamInfer: many requests and responses on one call.
//!
//! Messages are handled concurrently up to a limit, and answered as they finish, identified by
//! their ids: keeping their order would delay responses behind slower ones, and batching benefits
//! from concurrent requests. At the limit the stream is not read, so that HTTP/2 applies
//! backpressure to the client. A stream without requests ends after a timeout, like a connection
//! without calls.
//!
//! A model whose outputs grow step by step answers a request with one message per step, in order,
//! as Triton's decoupled models do. The last one is marked `triton_final_response`. It is empty
//! only if no requested output is left; an empty one is sent only to clients that set
//! `triton_enable_empty_final_response`, as in Triton.

use super::frames::{self, Frames, Messages, trailers};
use super::{status, timeout};
use crate::access::Caller;
use crate::call::infer::InferCall;
use crate::call::sequences::MessageOrder;
use crate::call::stream::{AnswerPart, AnswerParts};
use crate::limits::connection::ClientConnection;
use crate::problem::{Problem, ProblemKind};
use crate::protocol::compression::Encoding;
use crate::protocol::slo;
use crate::state::ServerState;
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Frame, Incoming};
use prost::Message;
use ripieno_wire::grpc;
use ripieno_wire::proto::inference::{ModelInferResponse, ModelStreamInferResponse};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Maximum responses that wait for the network.
const MAX_UNSENT: usize = 16;

type Outgoing = Sender<Result<Frame<Bytes>, Infallible>>;

/// Status that ends the stream after a message, if any.
type StreamEnd = Option<Status>;

pub(super) fn start(state: Arc<ServerState>, call: Request<Incoming>, encoding: Encoding) -> Result<Frames, Problem> {
    let (head, body) = call.into_parts();
    let (limit, slo) = (timeout::from_headers(&head.headers)?, slo::from_headers(&head.headers)?);
    let deadline = limit.map(|limit| (Instant::now(), limit));
    let connection = head.extensions.get::<Arc<ClientConnection>>().cloned();
    let incoming = Messages::new(&state, &head.headers, body, connection.clone())?;
    let (send, receive) = mpsc::channel(MAX_UNSENT);
    // Errors are sent as messages by default; a client may request a status instead, which ends the
    // stream.
    let ends_on_error = head.headers.get("triton_grpc_error").is_some_and(|value| value == "true");
    // Any message may use shared memory regions.
    let caller = state.access.region_caller(&head.uri, &head.headers, &head.extensions);
    let order = Arc::default();
    let stream = InferStream { state, send, connection, encoding, ends_on_error, deadline, slo, caller, order };
    tokio::spawn(stream.run(incoming));
    Ok(ReceiverStream::new(receive))
}

struct InferStream {
    state: Arc<ServerState>,
    send: Outgoing,
    connection: Option<Arc<ClientConnection>>,
    /// Compression of responses.
    encoding: Encoding,
    ends_on_error: bool,
    /// Start and time limit of the whole call.
    deadline: Option<(Instant, Duration)>,
    /// Latency target per request, set by a gateway.
    slo: Option<Duration>,
    caller: Caller,
    /// Order in which the messages arrived.
    order: Arc<MessageOrder>,
}

impl InferStream {
    async fn run(self, incoming: Messages) {
        let ended = tokio::select! {
            ended = self.answer_all(incoming) => ended,
            problem = self.state.until_dismissing() => status(problem),
        };
        // The client may be gone.
        let _ = self.send.send(Ok(Frame::trailers(trailers(&ended)))).await;
    }

    /// Handles all messages. Returning early drops the tasks, which withdraws their requests.
    async fn answer_all(&self, incoming: Messages) -> Status {
        let mut tasks: JoinSet<StreamEnd> = JoinSet::new();
        // The read future persists across loop iterations, because part of a message may have
        // arrived.
        let begun = incoming.begun();
        let mut reading = Some(Box::pin(next(self.state.clone(), incoming)));
        // Reservation for data that the client may send while the stream is not read.
        let mut window = None;
        while reading.is_some() || !tasks.is_empty() {
            let may_read = reading.is_some() && tasks.len() < self.state.config.max_stream_in_flight.max(1);
            window = match (&self.connection, window) {
                (Some(connection), None) if reading.is_some() && !may_read => match connection.pause() {
                    Ok(room) => Some(room),
                    Err(problem) => return status(problem),
                },
                (_, held) => held.filter(|_| !may_read),
            };
            let idle = tokio::time::sleep(self.state.config.idle_timeout);
            let ends = tokio::select! {
                (incoming, message) = when_read(reading.as_mut()), if may_read => match message {
                    Ok(Some(message)) => {
                        self.begin(&mut tasks, message);
                        reading = Some(Box::pin(next(self.state.clone(), incoming)));
                        None
                    }
                    Ok(None) => {
                        reading = None;
                        None
                    }
                    // The client is gone, or its message is malformed or exceeds the budget.
                    Err(problem) => Some(status(problem)),
                },
                Some(Ok(ends)) = tasks.join_next() => ends,
                () = idle, if reading.is_some() && tasks.is_empty() => {
                    let seconds = self.state.config.idle_timeout.as_secs_f64();
                    let why = format!("no request came for {seconds} s (--idle-timeout-s); open another stream");
                    (!begun.load(Relaxed)).then(|| status(Problem::new(ProblemKind::TooSlow, why)))
                }
                () = self.send.closed() => Some(Status::cancelled("the client has gone")),
                () = self.state.until_draining(), if reading.is_some() => {
                    reading = None;
                    None
                }
            };
            if let Some(ended) = ends {
                return ended;
            }
        }
        Status::ok("")
    }

    fn begin(&self, tasks: &mut JoinSet<StreamEnd>, message: Bytes) {
        let received = Instant::now();
        let timeout = self.deadline.map(|(began, limit)| limit.saturating_sub(received - began));
        let (state, send, ends_on_error) = (self.state.clone(), self.send.clone(), self.ends_on_error);
        let (connection, slo, caller) = (self.connection.clone(), self.slo, self.caller);
        let encoding = self.encoding;
        let position = Some(self.order.next_position());
        tasks.spawn(async move {
            let budget = state.budget_of(connection.as_ref());
            let (id, request) = frames::decode(&state, budget, message).await;
            let answered = async {
                let call = InferCall { request: request?, received, timeout, slo, caller, trace: None, position };
                answer(&state, call, &send, connection.as_ref(), encoding).await
            };
            match answered.await {
                Ok(()) => None,
                Err(problem) if ends_on_error => Some(status(problem.under(state.config.error_profile))),
                Err(problem) => {
                    state.call_errors.on_status(problem.kind.http_status());
                    let response = ModelInferResponse { id, ..ModelInferResponse::default() };
                    let error_message = problem.message;
                    let failure = ModelStreamInferResponse { error_message, infer_response: Some(response) };
                    // The message is small, and is sent even if the budget is exhausted.
                    let room = budget.reserve_call();
                    let message = room.map(|room| frames::encode(&failure, room, connection.as_ref()));
                    match message {
                        Some(Ok(message)) => {
                            let _ = send.send(Ok(Frame::data(message))).await;
                            None
                        }
                        Some(Err(problem)) => Some(status(problem)),
                        None => Some(Status::resource_exhausted("the server is full; retry later")),
                    }
                }
            }
        });
    }
}

type NextMessage = (Messages, Result<Option<Bytes>, Problem>);

async fn next(state: Arc<ServerState>, mut incoming: Messages) -> NextMessage {
    let message = incoming.next(&state).await;
    (incoming, message)
}

async fn when_read<F: Future<Output = NextMessage>>(reading: Option<&mut Pin<Box<F>>>) -> NextMessage {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

/// Answers one message, with one or more responses.
async fn answer(
    state: &ServerState,
    call: InferCall,
    send: &Outgoing,
    connection: Option<&Arc<ClientConnection>>,
    encoding: Encoding,
) -> Result<(), Problem> {
    let wants_empty =
        call.request.parameters.get("triton_enable_empty_final_response").and_then(|value| value.as_bool());
    let budget = state.budget_of(connection);
    let mut parts = AnswerParts::begin(state, budget, call).await?;
    while let Some(part) = parts.next(state).await {
        let AnswerPart { response, last } = part?;
        if last && response.outputs.is_empty() && wants_empty != Some(true) {
            continue;
        }
        let begun = Instant::now();
        let message = grpc::encode_infer(response);
        let message = ModelStreamInferResponse { error_message: String::new(), infer_response: Some(message) };
        let room = budget.reserve(message.encoded_len());
        let message = parts.delivered(room.and_then(|room| frames::encode(&message, room, connection)))?;
        parts.entry().stats.encoding.add(begun.elapsed());
        let message = frames::compressed(state, connection, encoding, message).await;
        if send.send(Ok(Frame::data(message))).await.is_err() {
            // The client is gone.
            return Ok(());
        }
    }
    Ok(())
}
