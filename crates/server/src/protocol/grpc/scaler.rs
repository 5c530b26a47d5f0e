//! KEDA's `ExternalScaler` on the metrics port: the value of `ripieno_desired_devices`, without a
//! Prometheus in between.
//!
//! With several schedulers, only the primary knows the load. A spare reports that it is inactive
//! and wants no devices. A scaled object that lists all of them therefore follows the primary: KEDA
//! takes the maximum, and one that does not respond prevents scaling down.

use crate::access::Permission;
use crate::limits::connection::ClientConnection;
use crate::protocol::grpc;
use crate::state::ServerState;
use hyper::body::Incoming;
use hyper::{Request, Response};
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

/// Path prefix of the calls.
pub(crate) const PATH: &str = "/externalscaler.ExternalScaler/";

/// Name of the scaling metric; each device is one replica.
const METRIC: &str = "desired_devices";

/// Maximum message size; messages contain object names and trigger metadata.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// Interval at which a stream checks for changes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum concurrent streams.
const MAX_STREAMS: usize = 64;

pub(crate) struct Scaler {
    state: Arc<ServerState>,
    streams: Arc<Semaphore>,
}

/// Returns the routes of the calls that tonic handles.
pub(crate) fn routes(state: &Arc<ServerState>) -> tonic::service::Routes {
    let scaler = Scaler { state: state.clone(), streams: Arc::new(Semaphore::new(MAX_STREAMS)) };
    let scaler = ExternalScalerServer::new(scaler).max_decoding_message_size(MAX_MESSAGE_BYTES);
    tonic::service::Routes::new(scaler).prepare()
}

/// Handles a call on the metrics port if the client may read the metrics.
pub(crate) async fn answer(
    state: Arc<ServerState>,
    routes: tonic::service::Routes,
    request: Request<Incoming>,
) -> Response<Body> {
    match state.access.authorize(Permission::Metrics, &request) {
        Ok(_) => grpc::small_call(&state, routes, request).await,
        Err(problem) => grpc::refused(problem),
    }
}

/// Returns the number of devices that the load needs; zero on a spare.
fn desired(state: &ServerState) -> usize {
    if !state.backend.is_primary() {
        return 0;
    }
    let there = || state.backend.devices().iter().filter(|device| device.state == DeviceState::Serving).count();
    // Without data the current number is kept.
    state.reading().map_or_else(|| there().max(1), |reading| state.config.scaling.desired(&reading))
}

fn active(state: &ServerState) -> IsActiveResponse {
    IsActiveResponse { result: desired(state) > 0 }
}

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    type StreamIsActiveStream = ReceiverStream<Result<IsActiveResponse, Status>>;

    async fn is_active(&self, _: tonic::Request<ScaledObjectRef>) -> Result<tonic::Response<IsActiveResponse>, Status> {
        Ok(tonic::Response::new(active(&self.state)))
    }

    /// Sends the current value, and every change of it.
    async fn stream_is_active(
        &self,
        call: tonic::Request<ScaledObjectRef>,
    ) -> Result<tonic::Response<Self::StreamIsActiveStream>, Status> {
        let connection = call.extensions().get::<Arc<ClientConnection>>();
        let of_connection = connection.map(|connection| connection.watches.clone());
        let permits = [Some(self.streams.clone()), of_connection].into_iter().flatten();
        let permits: Result<Vec<_>, _> = permits.map(Semaphore::try_acquire_owned).collect();
        let permits = permits.map_err(|_| Status::resource_exhausted("too many streams; ask with IsActive"))?;
        let state = self.state.clone();
        let (send, receive) = mpsc::channel(1);
        tokio::spawn(async move {
            let _permits = permits;
            let mut last = None;
            loop {
                let now = active(&state);
                if last != Some(now) && send.send(Ok(now)).await.is_err() {
                    return;
                }
                last = Some(now);
                tokio::select! {
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                    () = send.closed() => return,
                    () = state.until_draining() => return,
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

    /// Returns the metric under any requested name, because some versions of KEDA add a prefix.
    async fn get_metrics(
        &self,
        call: tonic::Request<GetMetricsRequest>,
    ) -> Result<tonic::Response<GetMetricsResponse>, Status> {
        let (metric_name, devices) = (call.into_inner().metric_name, desired(&self.state));
        let value = MetricValue { metric_name, metric_value: devices as i64, metric_value_float: devices as f64 };
        Ok(tonic::Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}
