//! gRPC: the same calls, as the generated service wants them.

mod doors;
mod health;
mod stream;
mod timeout;

use crate::access::client_of;
use crate::describe;
use crate::http::config_parameter;
use crate::infer::{Inferred, infer};
use crate::problem::Problem;
use crate::state::State;
pub(crate) use doors::handle;
use ripieno_wire::proto::health::health_server::HealthServer;
use ripieno_wire::proto::inference::grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer};
use ripieno_wire::proto::inference::model_repository_parameter::ParameterChoice;
use ripieno_wire::proto::inference::repository_index_response::ModelIndex;
use ripieno_wire::proto::inference::*;
use ripieno_wire::{Parameter, grpc};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding::{Deflate, Gzip};
use tonic::{Request, Response, Status, Streaming};

/// The services on one port.
pub(crate) fn routes(state: &Arc<State>) -> tonic::service::Routes {
    let limit = state.config.max_body_bytes;
    let inference = GrpcInferenceServiceServer::new(Service(state.clone()))
        .max_decoding_message_size(limit)
        .max_encoding_message_size(usize::MAX)
        .accept_compressed(Gzip)
        .accept_compressed(Deflate);
    tonic::service::Routes::new(inference).add_service(HealthServer::new(health::Health(state.clone()))).prepare()
}

struct Service(Arc<State>);

fn status(problem: Problem) -> Status {
    tracing::debug!(code = ?problem.kind.grpc_code(), "{}", problem.message);
    let mut status = Status::new(problem.kind.grpc_code(), problem.message.clone());
    if let Some(seconds) = problem.retry_after_s() {
        status.metadata_mut().insert("retry-after", seconds.into());
    }
    status
}

/// One inference; unary calls and streams alike.
async fn answer(
    state: &State,
    message: ModelInferRequest,
    received: Instant,
    timeout: Option<std::time::Duration>,
    client: u16,
) -> Result<ModelInferResponse, Problem> {
    let _reserved = state.reserve(grpc::encoded_len(&message))?;
    let mut request = grpc::parse_infer(message)?;
    request.client = client;
    let Inferred { response, entry } = infer(state, request, received, timeout).await?;
    let answered = Instant::now();
    let message = grpc::encode_infer(response);
    entry.stats.encoding.add(answered.elapsed());
    Ok(message)
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    type ModelStreamInferStream = ReceiverStream<Result<ModelStreamInferResponse, Status>>;

    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: self.0.is_ready() }))
    }

    /// An unknown model is simply not ready, as Triton has it.
    async fn model_ready(&self, call: Request<ModelReadyRequest>) -> Result<Response<ModelReadyResponse>, Status> {
        let ModelReadyRequest { name, version } = call.into_inner();
        let ready = self.0.is_model_ready(&name, &version).unwrap_or(false);
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        let body = describe::server_metadata(&self.0);
        let (name, version, extensions) = (body.name, body.version, body.extensions);
        Ok(Response::new(ServerMetadataResponse { name, version, extensions }))
    }

    async fn model_metadata(
        &self,
        call: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let ModelMetadataRequest { name, version } = call.into_inner();
        let entry = self.0.registry.get(&name, &version).map_err(|error| status(error.into()))?;
        Ok(Response::new(describe::metadata(&self.0, &entry)))
    }

    async fn model_infer(&self, call: Request<ModelInferRequest>) -> Result<Response<ModelInferResponse>, Status> {
        let received = Instant::now();
        let timeout = timeout::of(call.metadata()).map_err(status)?;
        let client = client_of(call.extensions());
        let response = answer(&self.0, call.into_inner(), received, timeout, client).await;
        response.map(Response::new).map_err(status)
    }

    async fn model_stream_infer(
        &self,
        call: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        Ok(Response::new(stream::start(self.0.clone(), call)))
    }

    async fn model_config(&self, call: Request<ModelConfigRequest>) -> Result<Response<ModelConfigResponse>, Status> {
        let ModelConfigRequest { name, version } = call.into_inner();
        let entry = self.0.registry.get(&name, &version).map_err(|error| status(error.into()))?;
        Ok(Response::new(ModelConfigResponse { config: Some(describe::config(&entry)) }))
    }

    async fn model_statistics(
        &self,
        call: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let ModelStatisticsRequest { name, version } = call.into_inner();
        let entries = self.0.entries(&name, &version).map_err(status)?;
        let model_stats = entries.iter().map(|entry| describe::statistics(&self.0, entry)).collect();
        Ok(Response::new(ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        call: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let ready = call.into_inner().ready;
        let rows = self.0.with_repository(|repository| repository.index()).await.map_err(status)?;
        let rows = rows.into_iter().filter(|row| !ready || row.state == "READY");
        let models = rows
            .map(|row| ModelIndex { name: row.name, version: row.version, state: row.state, reason: row.reason })
            .collect();
        Ok(Response::new(RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        call: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let RepositoryModelLoadRequest { model_name, parameters, .. } = call.into_inner();
        let config = config_parameter(load_parameters(parameters)).map_err(status)?;
        let loaded = self.0.with_repository(move |repository| repository.load(&model_name, config.as_deref())).await;
        loaded.map_err(status)?.map_err(|message| status(Problem::invalid(message)))?;
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        call: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        let name = call.into_inner().model_name;
        let unloaded = self.0.with_repository(move |repository| repository.unload(&name)).await;
        unloaded.map_err(status)?.map_err(|message| status(Problem::invalid(message)))?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }
}

fn load_parameters(parameters: HashMap<String, ModelRepositoryParameter>) -> impl Iterator<Item = (String, Parameter)> {
    parameters.into_iter().map(|(name, value)| {
        let value = match value.parameter_choice {
            Some(ParameterChoice::StringParam(text)) => Parameter::Text(text),
            Some(ParameterChoice::BoolParam(value)) => Parameter::Bool(value),
            Some(ParameterChoice::Int64Param(value)) => Parameter::Int(value),
            Some(ParameterChoice::BytesParam(_)) | None => Parameter::Text(String::new()),
        };
        (name, value)
    })
}
