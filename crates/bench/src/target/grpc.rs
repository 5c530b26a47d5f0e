//! gRPC: tensors as raw contents, requests multiplexed over a few connections.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ripieno_wire::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use ripieno_wire::proto::inference::model_infer_request::InferInputTensor;
use ripieno_wire::proto::inference::{ModelConfigRequest, ModelInferRequest, ModelMetadataRequest};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::tls::ClientAuth;
use super::{TargetMetadata, failed, spec};
use crate::inputs::BenchTensor;
use crate::load::RequestOutcome;

/// Size of the largest accepted answer, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 30;

/// A client for one model.
pub struct GrpcClient {
    url: String,
    auth: ClientAuth,
    model: String,
    channels: Vec<GrpcInferenceServiceClient<Channel>>,
    prepared: Vec<Arc<ModelInferRequest>>,
}

impl GrpcClient {
    pub(super) fn new(
        authority: &str,
        model: &str,
        connections: usize,
        auth: &ClientAuth,
    ) -> anyhow::Result<GrpcClient> {
        let url = format!("{}://{authority}", auth.scheme());
        let endpoint = Endpoint::from_shared(url.clone()).with_context(|| format!("{authority:?} is no HOST:PORT"))?;
        let connector = auth.connector(b"h2");
        let channel = || endpoint.connect_with_connector_lazy(connector.clone());
        let client = || GrpcInferenceServiceClient::new(channel()).max_decoding_message_size(MAX_ANSWER_BYTES);
        let channels = (0..connections.max(1)).map(|_| client()).collect();
        let url = format!("{}://{authority}", if auth.scheme() == "https" { "grpcs" } else { "grpc" });
        Ok(GrpcClient { url, auth: auth.clone(), model: model.to_owned(), channels, prepared: Vec::new() })
    }

    pub(super) async fn describe(&self) -> anyhow::Result<TargetMetadata> {
        let mut client = self.channels[0].clone();
        let request = ModelMetadataRequest { name: self.model.clone(), version: String::new() };
        let answer = tokio::time::timeout(Duration::from_secs(10), client.model_metadata(self.request(request))).await;
        let answer = answer.with_context(|| format!("{} does not answer within 10 s", self.url))?;
        let metadata = answer
            .map_err(|status| anyhow!(reason(&status)))
            .with_context(|| format!("{} does not tell about model {:?}", self.url, self.model))?;
        let inputs =
            metadata.into_inner().inputs.into_iter().map(|input| spec(input.name, &input.datatype, input.shape));
        let inputs = inputs.collect::<anyhow::Result<_>>()?;
        // The configuration is an extension: a server without it just has no SLO.
        let request = ModelConfigRequest { name: self.model.clone(), version: String::new() };
        let answer = tokio::time::timeout(Duration::from_secs(10), client.model_config(self.request(request))).await;
        let config = answer.ok().and_then(Result::ok).and_then(|answer| answer.into_inner().config);
        let slo_ms = config.and_then(|config| config.parameters.get("slo_ms")?.string_value.parse().ok());
        Ok(TargetMetadata { inputs, slo_ms })
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        let authorization = self.auth.authorization().map(|value| AsciiMetadataValue::try_from(value.as_bytes()));
        if let Some(Ok(authorization)) = authorization {
            request.metadata_mut().insert("authorization", authorization);
        }
        request
    }

    pub(super) fn prepare(&mut self, requests: &[Vec<BenchTensor>]) {
        self.prepared = requests.iter().map(|tensors| Arc::new(encode(&self.model, tensors))).collect();
    }

    pub(super) async fn send(&self, index: u64) -> RequestOutcome {
        let request = &self.prepared[(index % self.prepared.len() as u64) as usize];
        let mut client = self.channels[(index % self.channels.len() as u64) as usize].clone();
        match client.model_infer(self.request(ModelInferRequest::clone(request))).await {
            Ok(_) => RequestOutcome::Answered,
            Err(status) => failed(code_name(status.code()), &reason(&status)),
        }
    }
}

/// Returns the message of a status; a transport's error hides its cause in the source.
fn reason(status: &Status) -> String {
    let cause = std::error::Error::source(status).and_then(|source| source.source());
    let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{}: {}{cause}", code_name(status.code()), status.message())
}

fn encode(model: &str, tensors: &[BenchTensor]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: tensors
            .iter()
            .map(|tensor| InferInputTensor {
                name: tensor.name.clone(),
                datatype: tensor.datatype.name().to_owned(),
                shape: tensor.shape.clone(),
                ..InferInputTensor::default()
            })
            .collect(),
        raw_input_contents: tensors.iter().map(|tensor| tensor.data.clone()).collect(),
        ..ModelInferRequest::default()
    }
}

/// Returns the code's name as the gRPC documents write it.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
