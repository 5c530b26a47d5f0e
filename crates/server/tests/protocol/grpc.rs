//! Every gRPC call.

use crate::scripted::Event;
use crate::support::{PATIENCE, config, scripted, start};
use bytes::Bytes;
use ripieno_wire::proto::health::health_client::HealthClient;
use ripieno_wire::proto::health::{HealthCheckRequest, health_check_response::ServingStatus};
use ripieno_wire::proto::inference::infer_parameter::ParameterChoice;
use ripieno_wire::proto::inference::model_config::SchedulingChoice;
use ripieno_wire::proto::inference::model_infer_request::InferInputTensor;
use ripieno_wire::proto::inference::model_repository_parameter::ParameterChoice as LoadChoice;
use ripieno_wire::proto::inference::*;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request};

pub(crate) fn infer_request(model: &str, id: &str) -> ModelInferRequest {
    let data = [1f32, 2.0].map(f32::to_le_bytes).concat();
    ModelInferRequest {
        model_name: model.into(),
        id: id.into(),
        inputs: vec![InferInputTensor {
            name: "x".into(),
            datatype: "FP32".into(),
            shape: vec![1, 2],
            ..Default::default()
        }],
        raw_input_contents: vec![Bytes::from(data)],
        ..Default::default()
    }
}

#[tokio::test]
async fn watches_of_a_connection_are_bounded() {
    let server = start().await;
    let mut client = HealthClient::new(server.channel().await);
    let mut watches = Vec::new();
    let refused = loop {
        match client.watch(HealthCheckRequest::default()).await {
            Ok(watch) => watches.push(watch),
            Err(refused) => break refused,
        }
        assert!(watches.len() <= 64);
    };
    assert_eq!((refused.code(), watches.len()), (Code::ResourceExhausted, 64));
    // Other connections may still watch, and this one again after it has closed a watch.
    let mut other = HealthClient::new(server.channel().await);
    assert!(other.watch(HealthCheckRequest::default()).await.is_ok());
    watches.pop();
    let again = async { while client.watch(HealthCheckRequest::default()).await.is_err() {} };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
}

#[tokio::test]
async fn describes_server_and_models() {
    let server = start().await;
    let mut client = server.grpc().await;
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    for (name, ready) in [("simple", true), ("broken", false), ("down", false), ("missing", false)] {
        let request = ModelReadyRequest { name: name.into(), version: String::new() };
        assert_eq!(client.model_ready(request).await.unwrap().into_inner().ready, ready, "{name}");
    }
    let metadata = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!((metadata.name.as_str(), metadata.extensions.len()), ("ripieno", 7));
    let request = ModelMetadataRequest { name: "two".into(), version: "1".into() };
    let model = client.model_metadata(request).await.unwrap().into_inner();
    assert_eq!((model.inputs.len(), model.inputs[1].shape.as_slice()), (2, &[-1, 2][..]));
    let request = ModelConfigRequest { name: "simple".into(), version: String::new() };
    let config = client.model_config(request).await.unwrap().into_inner().config.unwrap();
    assert_eq!((config.max_batch_size, config.input[0].data_type()), (8, DataType::TypeFp32));
    assert!(matches!(config.scheduling_choice, Some(SchedulingChoice::DynamicBatching(_))));
    let stats = client.model_statistics(ModelStatisticsRequest::default()).await.unwrap().into_inner();
    assert!(stats.model_stats.len() > 20 && stats.model_stats[0].inference_stats.is_some());
    let request = ModelMetadataRequest { name: "missing".into(), version: String::new() };
    let error = client.model_metadata(request).await.unwrap_err();
    let message = "Request for unknown model: 'missing' is not found; models that serve: ";
    assert!(error.code() == Code::NotFound && error.message().starts_with(message), "{error}");
}

#[tokio::test]
async fn infers_raw_typed_and_compressed() {
    let server = start().await;
    let mut client = server.grpc().await;
    let raw = client.model_infer(infer_request("simple", "9")).await.unwrap().into_inner();
    assert_eq!((raw.id.as_str(), raw.outputs[0].name.as_str(), raw.model_version.as_str()), ("9", "y", "1"));
    assert_eq!(raw.raw_output_contents, infer_request("", "").raw_input_contents);
    let mut typed = infer_request("simple", "");
    typed.raw_input_contents.clear();
    typed.inputs[0].contents = Some(InferTensorContents { fp32_contents: vec![1.0, 2.0], ..Default::default() });
    let typed = client.model_infer(typed).await.unwrap().into_inner();
    assert_eq!(typed.raw_output_contents, raw.raw_output_contents);
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let mut client = server.grpc().await.send_compressed(encoding);
        assert!(client.model_infer(infer_request("simple", "")).await.is_ok(), "{encoding:?}");
    }
}

#[tokio::test]
async fn failures_have_their_codes() {
    let server = start().await;
    let mut client = server.grpc().await;
    let cases = [
        ("expired", Code::DeadlineExceeded),
        ("failing", Code::Internal),
        ("unloaded", Code::Unavailable),
        ("cancelled", Code::Cancelled),
        ("full", Code::ResourceExhausted),
        ("leaving", Code::Unavailable),
        ("down", Code::Unavailable),
        ("missing", Code::NotFound),
        ("two", Code::InvalidArgument),
    ];
    for (model, code) in cases {
        let error = client.model_infer(infer_request(model, "")).await.unwrap_err();
        assert_eq!(error.code(), code, "{model}: {}", error.message());
    }
    let full = client.model_infer(infer_request("full", "")).await.unwrap_err();
    assert_eq!(full.metadata().get("retry-after").unwrap(), "2");
    let mut large = infer_request("simple", "");
    large.raw_input_contents = vec![Bytes::from(vec![0; 2 << 20])];
    assert_eq!(client.model_infer(large).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn the_smaller_of_both_deadlines_counts() {
    let (server, _backend, mut events) = scripted(config()).await;
    let mut client = server.grpc().await;
    let mut request = infer_request("timed", "");
    let micros = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(3_000_000_000)) };
    request.parameters.insert("timeout".into(), micros);
    let mut call = Request::new(request);
    call.set_timeout(Duration::from_secs(50));
    client.model_infer(call).await.unwrap();
    assert_eq!(events.recv().await, Some(Event::Timeout(Some(Duration::from_secs(50)))));
    let mut odd = Request::new(infer_request("timed", ""));
    odd.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
    assert_eq!(client.model_infer(odd).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_call_that_is_given_up_withdraws_its_request() {
    let (server, _backend, mut events) = scripted(config()).await;
    let mut client = server.grpc().await;
    let call = tokio::spawn(async move { client.model_infer(infer_request("stuck", "")).await });
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    call.abort();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Withdrawn));
}

#[tokio::test]
async fn a_stream_answers_in_any_order_and_survives_errors() {
    let (server, backend, mut events) = scripted(config()).await;
    let mut client = server.grpc().await;
    let (send, receive) = mpsc::channel(8);
    for (model, id) in [("stuck", "slow"), ("full", "refused"), ("simple", "quick")] {
        send.send(infer_request(model, id)).await.unwrap();
    }
    let mut answers = client.model_stream_infer(ReceiverStream::new(receive)).await.unwrap().into_inner();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let answer = answers.message().await.unwrap().unwrap();
        let response = answer.infer_response.unwrap();
        let last = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
        assert_eq!(response.parameters.get("triton_final_response") == Some(&last), answer.error_message.is_empty());
        seen.push((response.id, answer.error_message.starts_with("Exceeds maximum queue size")));
    }
    seen.sort();
    assert_eq!(seen, [("quick".to_owned(), false), ("refused".to_owned(), true)]);
    assert_eq!(events.recv().await, Some(Event::Submitted));
    let job = backend.stuck.lock().pop().unwrap();
    crate::scripted::answer(job, crate::scripted::echo).unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap().infer_response.unwrap().id, "slow");
    drop(send);
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_stream_ends_with_a_status_if_the_client_wants_that() {
    let server = start().await;
    let mut client = server.grpc().await;
    let (send, receive) = mpsc::channel(8);
    send.send(infer_request("full", "1")).await.unwrap();
    let mut call = Request::new(ReceiverStream::new(receive));
    call.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    let mut answers = client.model_stream_infer(call).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_stream_that_is_dropped_withdraws_its_requests() {
    let (server, _backend, mut events) = scripted(config()).await;
    let mut client = server.grpc().await;
    let (send, receive) = mpsc::channel(8);
    send.send(infer_request("stuck", "1")).await.unwrap();
    let answers = client.model_stream_infer(ReceiverStream::new(receive)).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Submitted));
    // Both directions must be dropped: the transport keeps a call open while one of them is.
    drop((send, answers));
    assert_eq!(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Withdrawn));
}

#[tokio::test]
async fn the_repository_index_load_and_unload_calls_work() {
    let server = start().await;
    let mut client = server.grpc().await;
    let request = RepositoryIndexRequest { ready: true, ..Default::default() };
    let index = client.repository_index(request).await.unwrap().into_inner();
    assert!(index.models.iter().all(|row| row.state == "READY"));
    let config = ModelRepositoryParameter { parameter_choice: Some(LoadChoice::StringParam("{}".into())) };
    let mut load = RepositoryModelLoadRequest { model_name: "late".into(), ..Default::default() };
    load.parameters.insert("config".into(), config);
    client.repository_model_load(load.clone()).await.unwrap();
    assert!(client.model_infer(infer_request("late", "")).await.is_ok());
    let unload = RepositoryModelUnloadRequest { model_name: "late".into(), ..Default::default() };
    client.repository_model_unload(unload).await.unwrap();
    assert_eq!(client.model_infer(infer_request("late", "")).await.unwrap_err().code(), Code::Unavailable);
    // Files are bytes, and their size is known before decoding.
    let file = |bytes: &[u8]| ModelRepositoryParameter {
        parameter_choice: Some(LoadChoice::BytesParam(bytes.to_vec().into())),
    };
    load.parameters.insert("file:1/model.onnx".into(), file(&[0; 3]));
    client.repository_model_load(load.clone()).await.unwrap();
    load.parameters.insert("file:1/model.onnx".into(), file(&[0; 500_000]));
    let refused = client.repository_model_load(load.clone()).await.unwrap_err();
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("failed to load"), "{refused}");
    let mut many = load.clone();
    many.parameters.extend((0..300).map(|at| (format!("file:1/{at}"), file(&[]))));
    assert!(client.repository_model_load(many).await.unwrap_err().message().contains("more than 256 parameters"));
    load.model_name = "missing".into();
    assert_eq!(client.repository_model_load(load).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn the_standard_health_check_answers() {
    let server = start().await;
    let mut client = HealthClient::new(server.channel().await);
    let mut check = async |service: &str| client.check(HealthCheckRequest { service: service.into() }).await;
    assert_eq!(check("").await.unwrap().into_inner().status(), ServingStatus::Serving);
    assert_eq!(check("broken").await.unwrap().into_inner().status(), ServingStatus::NotServing);
    assert_eq!(check("missing").await.unwrap_err().code(), Code::NotFound);
    let mut watch = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
}

#[tokio::test]
async fn calls_that_are_not_offered_say_what_else_there_is() {
    let server = start().await;
    let mut client = server.grpc().await;
    let refused = [
        (client.trace_setting(TraceSettingRequest::default()).await.unwrap_err(), "--record"),
        (client.log_settings(LogSettingsRequest::default()).await.unwrap_err(), "RIPIENO_LOG"),
        (
            client.system_shared_memory_status(SystemSharedMemoryStatusRequest::default()).await.unwrap_err(),
            "--shared-memory",
        ),
        (
            client.system_shared_memory_register(SystemSharedMemoryRegisterRequest::default()).await.unwrap_err(),
            "--shared-memory",
        ),
        (
            client.cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest::default()).await.unwrap_err(),
            "--shared-memory",
        ),
    ];
    for (error, wanted) in refused {
        assert_eq!(error.code(), Code::Unimplemented);
        assert!(error.message().contains(wanted), "{}", error.message());
    }
    for path in ["/inference.GRPCInferenceService/Later", "/other.Service/Call"] {
        let mut client = tonic::client::Grpc::new(server.channel().await);
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<ServerLiveRequest, ServerLiveResponse>::default();
        let error = client.unary(Request::new(ServerLiveRequest {}), path.parse().unwrap(), codec).await.unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
        assert!(error.message().starts_with(&format!("{path} is no call of this server")));
    }
}
