//! gRPC front of the server: the protocol's calls as methods of the generated service.

mod calls;
mod frames;
mod health;
mod permissions;
mod reflection;
pub(crate) mod scaler;
mod stream;
mod timeout;

use crate::access::{RegionOwner, caller_of};
use crate::call::regions::RegionRange;
use crate::limits::budget::Reservation;
use crate::problem::Problem;
use crate::protocol::describe;
use crate::protocol::http::body::collect;
use crate::protocol::not_offered;
use crate::state::ServerState;
use crate::trace;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use ripieno_wire::proto::health::health_server::HealthServer;
use ripieno_wire::proto::inference::grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer};
use ripieno_wire::proto::inference::repository_index_response::ModelIndex;
use ripieno_wire::proto::inference::*;
use std::convert::Infallible;
use std::sync::Arc;
use tonic::body::Body;
use tonic::codec::CompressionEncoding::{Deflate, Gzip};
use tonic::{Code, Status, Streaming};
use tower::Service as _;
use tracing::Instrument;

/// Maximum size of a message that carries no tensors.
const SMALL_BYTES: usize = 64 << 10;

/// Largest ratio of a small message's size in memory to its size on the wire; maps of short names
/// grow the most.
const SMALL_GROWTH: usize = 16;

/// Returns the routes of the calls that tonic handles.
pub(crate) fn routes(state: &Arc<ServerState>) -> tonic::service::Routes {
    let inference = GrpcInferenceServiceServer::new(Calls(state.clone()))
        .max_decoding_message_size(SMALL_BYTES)
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(Gzip)
        .accept_compressed(Deflate);
    let health = HealthServer::new(health::Health::new(state.clone())).max_decoding_message_size(SMALL_BYTES);
    reflection::add(tonic::service::Routes::new(inference).add_service(health)).prepare()
}

/// Authorises and handles a call: calls with tensors here, all others through `routes`. Every call
/// passes through this function, so that authorisation precedes reading any message.
pub(crate) async fn handle(
    state: Arc<ServerState>,
    routes: tonic::service::Routes,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let logged = state.access_log.as_ref().and_then(|log| log.begin(&request));
    let answer = match state.access.authorize(permissions::permission(request.uri().path()), &request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            traced(&state, routes, request).await
        }
        Err(problem) => calls::failed(status(problem)),
    };
    // A call that fails as a whole has its status in the head.
    if let Some(status) = Status::from_header_map(answer.headers()) {
        state.call_errors.on_grpc(status.code());
    }
    if let (Some(log), Some(call)) = (&state.access_log, logged) {
        log.end(call, &answer);
    }
    Ok(answer)
}

/// Handles a call within the client's trace.
async fn traced(
    state: &Arc<ServerState>,
    routes: tonic::service::Routes,
    request: Request<Incoming>,
) -> Response<Body> {
    let trace = trace::from_headers(request.headers());
    let answer = route(state.clone(), routes, request);
    let mut answer = match &trace {
        Some(trace) => answer.instrument(trace.span()).await,
        None => answer.await,
    };
    if let Some(trace) = trace {
        trace.add_to_answer(&mut answer);
    }
    answer
}

/// Handles a call without tensors through these routes.
pub(crate) async fn small_call(
    state: &Arc<ServerState>,
    mut routes: tonic::service::Routes,
    request: Request<Incoming>,
) -> Response<Body> {
    let unknown = not_offered::unknown_call(request.uri().path());
    match small(state, request).await {
        Ok((request, _reserved)) => {
            let Ok(answer) = routes.call(request).await;
            with_text(answer, unknown)
        }
        Err(problem) => refused(problem),
    }
}

/// Returns the response for a refused call.
pub(crate) fn refused(problem: Problem) -> Response<Body> {
    calls::failed(status(problem))
}

async fn route(state: Arc<ServerState>, routes: tonic::service::Routes, request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        calls::MODEL_INFER => calls::model_infer(state, request).await,
        calls::MODEL_STREAM_INFER => calls::model_stream_infer(state, request),
        calls::MODEL_LOAD => calls::model_load(&state, request).await,
        path if reflection::is_asked(path) => reflection::answer(&state, routes, request).await,
        _ => small_call(&state, routes, request).await,
    }
}

/// Adds a message to UNIMPLEMENTED statuses without one, which some clients take for success.
fn with_text(answer: Response<Body>, unknown: Problem) -> Response<Body> {
    let is_silent = !answer.headers().contains_key(Status::GRPC_MESSAGE);
    match answer.headers().get(Status::GRPC_STATUS) {
        Some(code) if is_silent && Code::from_bytes(code.as_bytes()) == Code::Unimplemented => {
            calls::failed(status(unknown))
        }
        _ => answer,
    }
}

/// Reads a call that carries no tensors, with a reservation for the decoded message.
async fn small(
    state: &ServerState,
    request: Request<Incoming>,
) -> Result<(Request<Full<Bytes>>, Reservation), Problem> {
    let (head, mut body) = request.into_parts();
    let budget = state.budget_of(head.extensions.get());
    let (bytes, mut reserved) = collect(state, budget, &mut body, SMALL_BYTES).await?;
    reserved.add(SMALL_GROWTH * bytes.len())?;
    Ok((Request::from_parts(head, Full::new(Bytes::from(bytes))), reserved))
}

struct Calls(Arc<ServerState>);

fn status(problem: Problem) -> Status {
    tracing::debug!(code = ?problem.kind.grpc_code(), "{}", problem.message);
    let mut status = Status::new(problem.kind.grpc_code(), problem.message.clone());
    if let Some(seconds) = problem.retry_after_s() {
        status.metadata_mut().insert("retry-after", seconds.into());
    }
    status
}

/// Error for calls that [`handle`] handles before the router; the generated trait requires them
/// nevertheless.
fn answered_before() -> Status {
    Status::internal("calls that carry tensors or files are answered before the router")
}

#[tonic::async_trait]
impl GrpcInferenceService for Calls {
    type ModelStreamInferStream = tokio_stream::Pending<Result<ModelStreamInferResponse, Status>>;

    async fn server_live(
        &self,
        _: tonic::Request<ServerLiveRequest>,
    ) -> Result<tonic::Response<ServerLiveResponse>, Status> {
        Ok(tonic::Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: tonic::Request<ServerReadyRequest>,
    ) -> Result<tonic::Response<ServerReadyResponse>, Status> {
        Ok(tonic::Response::new(ServerReadyResponse { ready: self.0.is_ready() }))
    }

    /// Reports an unknown model as not ready, as Triton does.
    async fn model_ready(
        &self,
        call: tonic::Request<ModelReadyRequest>,
    ) -> Result<tonic::Response<ModelReadyResponse>, Status> {
        let ModelReadyRequest { name, version } = call.into_inner();
        let ready = self.0.is_model_ready(&name, &version).unwrap_or(false);
        Ok(tonic::Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: tonic::Request<ServerMetadataRequest>,
    ) -> Result<tonic::Response<ServerMetadataResponse>, Status> {
        let body = describe::server_metadata(&self.0);
        let (name, version, extensions) = (body.name, body.version, body.extensions);
        Ok(tonic::Response::new(ServerMetadataResponse { name, version, extensions }))
    }

    async fn model_metadata(
        &self,
        call: tonic::Request<ModelMetadataRequest>,
    ) -> Result<tonic::Response<ModelMetadataResponse>, Status> {
        let ModelMetadataRequest { name, version } = call.into_inner();
        let entry = self.0.registry.get(&name, &version).map_err(|error| status(error.into()))?;
        Ok(tonic::Response::new(describe::metadata(&self.0, &entry)))
    }

    async fn model_infer(
        &self,
        _: tonic::Request<ModelInferRequest>,
    ) -> Result<tonic::Response<ModelInferResponse>, Status> {
        Err(answered_before())
    }

    async fn model_stream_infer(
        &self,
        _: tonic::Request<Streaming<ModelInferRequest>>,
    ) -> Result<tonic::Response<Self::ModelStreamInferStream>, Status> {
        Err(answered_before())
    }

    async fn model_config(
        &self,
        call: tonic::Request<ModelConfigRequest>,
    ) -> Result<tonic::Response<ModelConfigResponse>, Status> {
        let ModelConfigRequest { name, version } = call.into_inner();
        let entry = self.0.registry.get(&name, &version).map_err(|error| status(error.into()))?;
        Ok(tonic::Response::new(ModelConfigResponse { config: Some(describe::config(&entry)) }))
    }

    async fn model_statistics(
        &self,
        call: tonic::Request<ModelStatisticsRequest>,
    ) -> Result<tonic::Response<ModelStatisticsResponse>, Status> {
        let ModelStatisticsRequest { name, version } = call.into_inner();
        let entries = self.0.entries(&name, &version).map_err(status)?;
        let model_stats = entries.iter().map(|entry| describe::statistics(&self.0, entry)).collect();
        Ok(tonic::Response::new(ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        call: tonic::Request<RepositoryIndexRequest>,
    ) -> Result<tonic::Response<RepositoryIndexResponse>, Status> {
        let ready = call.into_inner().ready;
        let rows = self.0.loads.read(|repository| repository.index()).await.map_err(status)?;
        let rows = rows.into_iter().filter(|row| !ready || row.state == "READY");
        let models = rows
            .map(|row| ModelIndex { name: row.name, version: row.version, state: row.state, reason: row.reason })
            .collect();
        Ok(tonic::Response::new(RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        _: tonic::Request<RepositoryModelLoadRequest>,
    ) -> Result<tonic::Response<RepositoryModelLoadResponse>, Status> {
        Err(answered_before())
    }

    async fn repository_model_unload(
        &self,
        call: tonic::Request<RepositoryModelUnloadRequest>,
    ) -> Result<tonic::Response<RepositoryModelUnloadResponse>, Status> {
        let name = call.into_inner().model_name;
        self.0.unload(name).await.map_err(status)?;
        Ok(tonic::Response::new(RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        call: tonic::Request<SystemSharedMemoryStatusRequest>,
    ) -> Result<tonic::Response<SystemSharedMemoryStatusResponse>, Status> {
        let owner = owner(&call)?;
        let found = self.0.regions.status(owner, named(&call.get_ref().name)).map_err(status)?;
        let row = |(name, region): (String, RegionRange)| {
            let RegionRange { key, offset, byte_size } = region;
            (name.clone(), system_shared_memory_status_response::RegionStatus { name, key, offset, byte_size })
        };
        let regions = found.into_iter().map(row).collect();
        Ok(tonic::Response::new(SystemSharedMemoryStatusResponse { regions }))
    }

    async fn system_shared_memory_register(
        &self,
        call: tonic::Request<SystemSharedMemoryRegisterRequest>,
    ) -> Result<tonic::Response<SystemSharedMemoryRegisterResponse>, Status> {
        let owner = owner(&call)?;
        let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = call.into_inner();
        self.0.regions.register(owner, name, RegionRange { key, offset, byte_size }).map_err(status)?;
        Ok(tonic::Response::new(SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        call: tonic::Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Result<tonic::Response<SystemSharedMemoryUnregisterResponse>, Status> {
        self.0.regions.unregister(owner(&call)?, named(&call.get_ref().name));
        Ok(tonic::Response::new(SystemSharedMemoryUnregisterResponse {}))
    }

    /// CUDA regions do not exist. Listing or unregistering all of them succeeds, as clients that
    /// clean up expect.
    async fn cuda_shared_memory_status(
        &self,
        call: tonic::Request<CudaSharedMemoryStatusRequest>,
    ) -> Result<tonic::Response<CudaSharedMemoryStatusResponse>, Status> {
        match named(&call.get_ref().name) {
            None => Ok(tonic::Response::new(CudaSharedMemoryStatusResponse::default())),
            Some(_) => Err(status(not_offered::cuda_regions())),
        }
    }

    async fn cuda_shared_memory_register(
        &self,
        _: tonic::Request<CudaSharedMemoryRegisterRequest>,
    ) -> Result<tonic::Response<CudaSharedMemoryRegisterResponse>, Status> {
        Err(status(not_offered::cuda_regions()))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        call: tonic::Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Result<tonic::Response<CudaSharedMemoryUnregisterResponse>, Status> {
        match named(&call.get_ref().name) {
            None => Ok(tonic::Response::new(CudaSharedMemoryUnregisterResponse {})),
            Some(_) => Err(status(not_offered::cuda_regions())),
        }
    }

    async fn trace_setting(
        &self,
        _: tonic::Request<TraceSettingRequest>,
    ) -> Result<tonic::Response<TraceSettingResponse>, Status> {
        Err(status(not_offered::trace_settings()))
    }

    async fn log_settings(
        &self,
        _: tonic::Request<LogSettingsRequest>,
    ) -> Result<tonic::Response<LogSettingsResponse>, Status> {
        Err(status(not_offered::log_settings()))
    }
}

/// Returns the owner of the shared memory regions that a call may use.
fn owner<T>(call: &tonic::Request<T>) -> Result<RegionOwner, Status> {
    caller_of(call.extensions()).owner().map_err(status)
}

/// Returns `None` for an empty name, which means all.
fn named(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}
