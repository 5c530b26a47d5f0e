//! KEDA's `ExternalScaler`, on the port of the metrics: what `ripieno_desired_devices` says, without a Prometheus between.
//!
//! Of several schedulers only the primary knows. A spare says that it is not active and that it wants no devices, so a
//! scaled object that names all of them follows the primary: KEDA takes the largest, and one that does not answer keeps
//! the number from falling.

use crate::access::Need;
use crate::bounds::connection::Connection;
use crate::grpc;
use crate::state::State;
use hyper::body::Incoming;
use hyper::{Request, Response};
use ripieno_report::Rule;
use ripieno_runtime::DeviceState;
use ripieno_wire::proto::scaler::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use ripieno_wire::proto::scaler::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;

/// The calls, as a path begins.
pub(crate) const PATH: &str = "/externalscaler.ExternalScaler/";

/// What is scaled by: each device of it is one replica.
const METRIC: &str = "desired_devices";

/// The largest message: names of an object, and what its trigger says.
const MOST_BYTES: usize = 64 << 10;

/// How often a stream looks whether something has changed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Streams at once.
const MAX_STREAMS: usize = 64;

pub(crate) struct Scaler {
    state: Arc<State>,
    streams: Arc<Semaphore>,
}

/// The calls that tonic answers.
pub(crate) fn routes(state: &Arc<State>) -> tonic::service::Routes {
    let scaler = Scaler { state: state.clone(), streams: Arc::new(Semaphore::new(MAX_STREAMS)) };
    let scaler = ExternalScalerServer::new(scaler).max_decoding_message_size(MOST_BYTES);
    tonic::service::Routes::new(scaler).prepare()
}

/// Answers a call of a scraper's port, if its caller may read the metrics.
pub(crate) async fn answer(
    state: Arc<State>,
    routes: tonic::service::Routes,
    request: Request<Incoming>,
) -> Response<Body> {
    match state.access.admit(Need::Metrics, &request) {
        Ok(_) => grpc::small_call(&state, routes, request).await,
        Err(problem) => grpc::refused(problem),
    }
}

/// Devices that the load needs, as far as is known; none from a spare.
fn desired(state: &State) -> usize {
    if !state.backend.is_primary() {
        return 0;
    }
    let there = || state.backend.devices().iter().filter(|device| device.state == DeviceState::Serving).count();
    // Before anything is known nothing is to change.
    state.signals.reading().map_or_else(|| there().max(1), |reading| Rule::PAPER.desired(&reading))
}

fn active(state: &State) -> IsActiveResponse {
    IsActiveResponse { result: desired(state) > 0 }
}

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    type StreamIsActiveStream = ReceiverStream<Result<IsActiveResponse, Status>>;

    async fn is_active(&self, _: tonic::Request<ScaledObjectRef>) -> Result<tonic::Response<IsActiveResponse>, Status> {
        Ok(tonic::Response::new(active(&self.state)))
    }

    /// What it is now, and whenever that changes.
    async fn stream_is_active(
        &self,
        call: tonic::Request<ScaledObjectRef>,
    ) -> Result<tonic::Response<Self::StreamIsActiveStream>, Status> {
        let connection = call.extensions().get::<Arc<Connection>>();
        let of_connection = connection.map(|connection| connection.watches.clone());
        let turns = [Some(self.streams.clone()), of_connection].into_iter().flatten();
        let turns: Result<Vec<_>, _> = turns.map(Semaphore::try_acquire_owned).collect();
        let turns = turns.map_err(|_| Status::resource_exhausted("too many streams; ask with IsActive"))?;
        let state = self.state.clone();
        let (send, receive) = mpsc::channel(1);
        tokio::spawn(async move {
            let _turns = turns;
            let mut last = None;
            loop {
                let now = active(&state);
                if last != Some(now) && send.send(Ok(now)).await.is_err() {
                    return;
                }
                last = Some(now);
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = send.closed() => return,
                    () = state.drained() => return,
                }
            }
        });
        Ok(tonic::Response::new(ReceiverStream::new(receive)))
    }

    async fn get_metric_spec(
        &self,
        _: tonic::Request<ScaledObjectRef>,
    ) -> Result<tonic::Response<GetMetricSpecResponse>, Status> {
        let spec = MetricSpec { metric_name: METRIC.to_owned(), target_size: 1, target_size_float: 1.0 };
        Ok(tonic::Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    /// By whatever name it is asked for: versions of KEDA put something before it.
    async fn get_metrics(
        &self,
        call: tonic::Request<GetMetricsRequest>,
    ) -> Result<tonic::Response<GetMetricsResponse>, Status> {
        let (metric_name, devices) = (call.into_inner().metric_name, desired(&self.state));
        let value = MetricValue { metric_name, metric_value: devices as i64, metric_value_float: devices as f64 };
        Ok(tonic::Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}
