//! The standard gRPC health check, for load balancers and Kubernetes probes. The empty service name
//! means the whole server, any other the model with this name.

use crate::access::Caller;
use crate::limits::connection::ClientConnection;
use crate::state::ServerState;
use ripieno_wire::proto::health::health_check_response::ServingStatus;
use ripieno_wire::proto::health::{HealthCheckRequest, HealthCheckResponse, health_server};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Interval at which watched services are checked; model states change within seconds.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// Maximum concurrent watches, which need no token and last as long as their clients want.
const MAX_WATCHES: usize = 1024;

pub(super) struct Health {
    state: Arc<ServerState>,
    watches: Arc<Semaphore>,
}

impl Health {
    pub(super) fn new(state: Arc<ServerState>) -> Health {
        Health { state, watches: Arc::new(Semaphore::new(MAX_WATCHES)) }
    }
}

const WHOLE_SERVER: [&str; 2] = ["", "inference.GRPCInferenceService"];

fn serving(state: &ServerState, service: &str) -> ServingStatus {
    let ready =
        if WHOLE_SERVER.contains(&service) { Some(state.is_ready()) } else { state.is_model_ready(service, "").ok() };
    match ready {
        Some(true) => ServingStatus::Serving,
        Some(false) => ServingStatus::NotServing,
        None => ServingStatus::ServiceUnknown,
    }
}

/// Refuses checks of models without a token: probes may check the server, but not find out about
/// models.
fn may_ask<T>(call: &Request<T>, service: &str) -> Result<(), Status> {
    let known = call.extensions().get::<Caller>().is_some_and(|caller| caller.known);
    if known || WHOLE_SERVER.contains(&service) {
        return Ok(());
    }
    Err(Status::unauthenticated("a token is needed to ask about a model: send authorization: Bearer TOKEN"))
}

fn message(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn check(&self, call: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        may_ask(&call, &call.get_ref().service)?;
        let service = call.into_inner().service;
        match serving(&self.state, &service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found(format!("unknown service or model '{service}'"))),
            known => Ok(Response::new(message(known))),
        }
    }

    async fn watch(&self, call: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        may_ask(&call, &call.get_ref().service)?;
        let connection = call.extensions().get::<Arc<ClientConnection>>();
        let of_connection = connection.map(|connection| connection.watches.clone());
        let permits = [Some(self.watches.clone()), of_connection].into_iter().flatten();
        let permits: Result<Vec<_>, _> = permits.map(Semaphore::try_acquire_owned).collect();
        let permits = permits.map_err(|_| {
            Status::resource_exhausted("too many services are watched at a time; ask with Check, or watch fewer")
        })?;
        let (state, service) = (self.state.clone(), call.into_inner().service);
        let (send, receive) = mpsc::channel(1);
        tokio::spawn(async move {
            let _permits = permits;
            let mut last = None;
            loop {
                let now = serving(&state, &service);
                if last != Some(now) && send.send(Ok(message(now))).await.is_err() {
                    return;
                }
                last = Some(now);
                tokio::select! {
                    () = tokio::time::sleep(WATCH_EVERY) => {}
                    () = send.closed() => return,
                    () = state.until_draining() => {
                        // Final status; the client may be gone.
                        let _ = send.send(Ok(message(ServingStatus::NotServing))).await;
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }
}
