//! ModelStreamInfer: many requests and answers on one call.
//!
//! Messages are worked on side by side, up to a bound, and answered as they are done, with their ids: order would make
//! every answer wait for the slowest before it, and batching thrives on requests that are in flight together. Beyond the
//! bound the stream is not read, so that back-pressure reaches the client through HTTP/2.

use super::{answer, status, timeout};
use crate::problem::Problem;
use crate::state::State;
use ripieno_wire::proto::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use ripieno_wire::{Parameter, grpc};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

/// Answers that may wait for the network.
const UNSENT: usize = 16;

type Outgoing = Sender<Result<ModelStreamInferResponse, Status>>;

/// What one message leads to.
type Done = (String, Result<ModelInferResponse, Problem>);

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
            let stream = Stream { state, send, ends_on_error, deadline };
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
}

impl Stream {
    /// Dropping the tasks, when this returns early, withdraws their requests.
    async fn run(self, mut incoming: Streaming<ModelInferRequest>) {
        let mut tasks: JoinSet<Done> = JoinSet::new();
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
                Some(Ok(done)) = tasks.join_next() => self.finish(done).await,
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

    fn begin(&self, tasks: &mut JoinSet<Done>, message: ModelInferRequest) {
        let received = Instant::now();
        let timeout = self.deadline.map(|(began, limit)| limit.saturating_sub(received - began));
        let state = self.state.clone();
        tasks.spawn(async move {
            let id = message.id.clone();
            (id, answer(&state, message, received, timeout).await)
        });
    }

    /// Sends an answer; false if the stream ends with it.
    async fn finish(&self, (id, result): Done) -> bool {
        let message = match result {
            Ok(mut response) => {
                let last = grpc::parameter(Parameter::Bool(true));
                response.parameters.insert("triton_final_response".to_owned(), last);
                ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) }
            }
            Err(problem) if self.ends_on_error => {
                // It ends either way.
                let _ = self.send.send(Err(status(problem))).await;
                return false;
            }
            Err(problem) => {
                let response = ModelInferResponse { id, ..ModelInferResponse::default() };
                ModelStreamInferResponse { error_message: problem.message, infer_response: Some(response) }
            }
        };
        self.send.send(Ok(message)).await.is_ok()
    }
}
