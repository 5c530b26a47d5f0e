//! ModelStreamInfer: many requests and answers on one call.
//!
//! Messages are worked on side by side, up to a bound, and answered as they are done, with their ids: order would make
//! every answer wait for the slowest before it, and batching thrives on requests that are in flight together. Beyond the
//! bound the stream is not read, so that back-pressure reaches the client through HTTP/2.
//!
//! A model whose outputs grow step by step answers one request with many messages, as Triton's decoupled models do: one for
//! each step, in order. The last one is marked `triton_final_response`. It is empty only if nothing that the client asked for
//! is left by then, and like Triton's empty ones goes out to those alone who set `triton_enable_empty_final_response`.

use super::{status, timeout};
use crate::access::client_of;
use crate::problem::Problem;
use crate::state::State;
use crate::stream::{Part, Parts};
use ripieno_wire::grpc;
use ripieno_wire::proto::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

/// Answers that may wait for the network.
const UNSENT: usize = 16;

type Outgoing = Sender<Result<ModelStreamInferResponse, Status>>;

/// Whether the stream goes on after a message's answers.
type GoesOn = bool;

pub(super) fn start(
    state: Arc<State>,
    call: Request<Streaming<ModelInferRequest>>,
) -> ReceiverStream<Result<ModelStreamInferResponse, Status>> {
    let (send, receive) = mpsc::channel(UNSENT);
    // Errors as messages by default; a client may ask for a real status, which ends the stream.
    let ends_on_error = call.metadata().get("triton_grpc_error").is_some_and(|value| value == "true");
    match timeout::of(call.metadata()) {
        Ok(limit) => {
            let deadline = limit.map(|limit| (Instant::now(), limit));
            let client = client_of(call.extensions());
            let stream = Stream { state, send, ends_on_error, deadline, client };
            tokio::spawn(stream.run(call.into_inner()));
        }
        Err(problem) => {
            // The channel is new and has room.
            let _ = send.try_send(Err(status(problem)));
        }
    }
    ReceiverStream::new(receive)
}

struct Stream {
    state: Arc<State>,
    send: Outgoing,
    ends_on_error: bool,
    /// The limit on the whole call, and when it began.
    deadline: Option<(Instant, Duration)>,
    client: u16,
}

impl Stream {
    /// Dropping the tasks, when this returns early, withdraws their requests.
    async fn run(self, mut incoming: Streaming<ModelInferRequest>) {
        let mut tasks: JoinSet<GoesOn> = JoinSet::new();
        let mut reading = true;
        while reading || !tasks.is_empty() {
            let may_read = reading && tasks.len() < self.state.config.max_stream_in_flight.max(1);
            let goes_on = tokio::select! {
                message = incoming.message(), if may_read => match message {
                    Ok(Some(message)) => {
                        self.begin(&mut tasks, message);
                        true
                    }
                    Ok(None) => {
                        reading = false;
                        true
                    }
                    Err(broken) => {
                        // The client is gone or sends what no one can read; there may be nobody to tell.
                        let _ = self.send.send(Err(broken)).await;
                        false
                    }
                },
                Some(Ok(goes_on)) = tasks.join_next() => goes_on,
                () = self.send.closed() => false,
                () = self.state.drained(), if reading => {
                    reading = false;
                    true
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    fn begin(&self, tasks: &mut JoinSet<GoesOn>, message: ModelInferRequest) {
        let received = Instant::now();
        let timeout = self.deadline.map(|(began, limit)| limit.saturating_sub(received - began));
        let (state, send, ends_on_error) = (self.state.clone(), self.send.clone(), self.ends_on_error);
        let client = self.client;
        tasks.spawn(async move {
            let id = message.id.clone();
            match answer(&state, message, received, timeout, client, &send).await {
                Ok(()) => true,
                Err(problem) if ends_on_error => {
                    // It ends either way.
                    let _ = send.send(Err(status(problem))).await;
                    false
                }
                Err(problem) => {
                    let response = ModelInferResponse { id, ..ModelInferResponse::default() };
                    let error_message = problem.message;
                    let failure = ModelStreamInferResponse { error_message, infer_response: Some(response) };
                    send.send(Ok(failure)).await.is_ok()
                }
            }
        });
    }
}

/// Answers one message, in as many parts as its answer has.
async fn answer(
    state: &State,
    message: ModelInferRequest,
    received: Instant,
    timeout: Option<Duration>,
    client: u16,
    send: &Outgoing,
) -> Result<(), Problem> {
    let _reserved = state.reserve(grpc::encoded_len(&message))?;
    let mut request = grpc::parse_infer(message)?;
    request.client = client;
    let wants_empty = request.parameters.get("triton_enable_empty_final_response").and_then(|value| value.as_bool());
    let mut parts = Parts::begin(state, request, received, timeout)?;
    while let Some(part) = parts.next().await {
        let Part { response, last } = part?;
        if last && response.outputs.is_empty() && wants_empty != Some(true) {
            continue;
        }
        let begun = Instant::now();
        let message = grpc::encode_infer(response);
        parts.entry().stats.encoding.add(begun.elapsed());
        let message = ModelStreamInferResponse { error_message: String::new(), infer_response: Some(message) };
        if send.send(Ok(message)).await.is_err() {
            // The client has gone; nobody waits for the rest.
            return Ok(());
        }
    }
    Ok(())
}
