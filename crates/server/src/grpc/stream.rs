//! ModelStreamInfer: many requests and answers on one call.
//!
//! Messages are worked on side by side, up to a bound, and answered as they are done, with their ids: order would make
//! every answer wait for the slowest before it, and batching thrives on requests that are in flight together. Beyond the
//! bound the stream is not read, so that back-pressure reaches the client through HTTP/2. A stream without requests ends, as a
//! connection without calls does.
//!
//! A model whose outputs grow step by step answers one request with many messages, as Triton's decoupled models do: one for
//! each step, in order. The last one is marked `triton_final_response`. It is empty only if nothing that the client asked for
//! is left by then, and like Triton's empty ones goes out to those alone who set `triton_enable_empty_final_response`.

use super::frames::{self, Frames, Messages, trailers};
use super::{status, timeout};
use crate::access::Caller;
use crate::bounds::connection::Connection;
use crate::compression::Encoding;
use crate::infer::Asked;
use crate::problem::{Kind, Problem};
use crate::sequences::Order;
use crate::slo;
use crate::state::State;
use crate::stream::{Part, Parts};
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

/// Answers that may wait for the network.
const UNSENT: usize = 16;

type Outgoing = Sender<Result<Frame<Bytes>, Infallible>>;

/// How the stream ends, if it does after a message's answers.
type Ends = Option<Status>;

pub(super) fn start(state: Arc<State>, call: Request<Incoming>, encoding: Encoding) -> Result<Frames, Problem> {
    let (head, body) = call.into_parts();
    let (limit, slo) = (timeout::of(&head.headers)?, slo::of(&head.headers)?);
    let deadline = limit.map(|limit| (Instant::now(), limit));
    let connection = head.extensions.get::<Arc<Connection>>().cloned();
    let incoming = Messages::new(&state, &head.headers, body, connection.clone())?;
    let (send, receive) = mpsc::channel(UNSENT);
    // Errors as messages by default; a client may ask for a real status, which ends the stream.
    let ends_on_error = head.headers.get("triton_grpc_error").is_some_and(|value| value == "true");
    // Any of its messages may name regions.
    let caller = state.access.sharer(&head.uri, &head.headers, &head.extensions);
    let order = Arc::default();
    let stream = Stream { state, send, connection, encoding, ends_on_error, deadline, slo, caller, order };
    tokio::spawn(stream.run(incoming));
    Ok(ReceiverStream::new(receive))
}

struct Stream {
    state: Arc<State>,
    send: Outgoing,
    connection: Option<Arc<Connection>>,
    /// How its answers are compressed.
    encoding: Encoding,
    ends_on_error: bool,
    /// The limit on the whole call, and when it began.
    deadline: Option<(Instant, Duration)>,
    /// What a gateway gives each request.
    slo: Option<Duration>,
    caller: Caller,
    /// Of the messages that have come.
    order: Arc<Order>,
}

impl Stream {
    async fn run(self, incoming: Messages) {
        let ended = tokio::select! {
            ended = self.answer_all(incoming) => ended,
            problem = self.state.dismissed() => status(problem),
        };
        // The client may be gone; then there is nobody to tell.
        let _ = self.send.send(Ok(Frame::trailers(trailers(&ended)))).await;
    }

    /// Dropping the tasks, when this returns early, withdraws their requests.
    async fn answer_all(&self, incoming: Messages) -> Status {
        let mut tasks: JoinSet<Ends> = JoinSet::new();
        // Kept between the turns of the loop: part of a message may have come.
        let begun = incoming.begun();
        let mut reading = Some(Box::pin(next(self.state.clone(), incoming)));
        // Room for what the client may send while this is not reading.
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
                    // The client is gone, sends what no one can read, or more than there is room for.
                    Err(problem) => Some(status(problem)),
                },
                Some(Ok(ends)) = tasks.join_next() => ends,
                () = idle, if reading.is_some() && tasks.is_empty() => {
                    let seconds = self.state.config.idle_timeout.as_secs_f64();
                    let why = format!("no request came for {seconds} s (--idle-timeout-s); open another stream");
                    (!begun.load(Relaxed)).then(|| status(Problem::new(Kind::TooSlow, why)))
                }
                () = self.send.closed() => Some(Status::cancelled("the client has gone")),
                () = self.state.drained(), if reading.is_some() => {
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

    fn begin(&self, tasks: &mut JoinSet<Ends>, message: Bytes) {
        let received = Instant::now();
        let timeout = self.deadline.map(|(began, limit)| limit.saturating_sub(received - began));
        let (state, send, ends_on_error) = (self.state.clone(), self.send.clone(), self.ends_on_error);
        let (connection, slo, caller) = (self.connection.clone(), self.slo, self.caller);
        let encoding = self.encoding;
        let place = Some(self.order.place());
        tasks.spawn(async move {
            let budget = state.budget_of(connection.as_ref());
            let (id, request) = frames::decode(&state, budget, message).await;
            let answered = async {
                let asked = Asked { request: request?, received, timeout, slo, caller, place };
                answer(&state, asked, &send, connection.as_ref(), encoding).await
            };
            match answered.await {
                Ok(()) => None,
                Err(problem) if ends_on_error => Some(status(problem.under(state.config.error_profile))),
                Err(problem) => {
                    let response = ModelInferResponse { id, ..ModelInferResponse::default() };
                    let error_message = problem.message;
                    let failure = ModelStreamInferResponse { error_message, infer_response: Some(response) };
                    // Small, and sent even if there is room for nothing else.
                    let room = budget.enter();
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

type Next = (Messages, Result<Option<Bytes>, Problem>);

async fn next(state: Arc<State>, mut incoming: Messages) -> Next {
    let message = incoming.next(&state).await;
    (incoming, message)
}

async fn when_read<F: Future<Output = Next>>(reading: Option<&mut Pin<Box<F>>>) -> Next {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

/// Answers one message, in as many parts as its answer has.
async fn answer(
    state: &State,
    asked: Asked,
    send: &Outgoing,
    connection: Option<&Arc<Connection>>,
    encoding: Encoding,
) -> Result<(), Problem> {
    let wants_empty =
        asked.request.parameters.get("triton_enable_empty_final_response").and_then(|value| value.as_bool());
    let budget = state.budget_of(connection);
    let mut parts = Parts::begin(state, budget, asked).await?;
    while let Some(part) = parts.next(state).await {
        let Part { response, last } = part?;
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
            // The client has gone; nobody waits for the rest.
            return Ok(());
        }
    }
    Ok(())
}
