//! Requests of grpcurl and similar clients: lists of services and messages.

use crate::access::Scratch;
use crate::support::{PATIENCE, config, scripted, start};
use prost::Message;
use ripieno_server::{AccessConfig, ServerConfig, TokenSource};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{FileDescriptorResponse, ServerReflectionRequest};
use tonic_reflection::pb::v1alpha;

fn question(asked: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest { host: String::new(), message_request: Some(asked) }
}

/// Parts of a file descriptor that name its definitions.
#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
}

#[tokio::test]
async fn services_and_files_are_described_as_they_are_asked_for() {
    let server = start().await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let (send, receive) = tokio::sync::mpsc::channel(1);
    // A client asks, waits for the answer and asks again on an open stream.
    let mut answers = client.server_reflection_info(ReceiverStream::new(receive)).await.unwrap().into_inner();
    let mut ask = async |asked| {
        send.send(question(asked)).await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, answers.next()).await.unwrap().unwrap().unwrap();
        answer.message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(services) = ask(MessageRequest::ListServices(String::new())).await else {
        panic!("services are listed");
    };
    let names: Vec<&str> = services.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["inference.GRPCInferenceService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for (asked, name, package) in [
        (
            MessageRequest::FileContainingSymbol("inference.GRPCInferenceService".into()),
            "grpc_service.proto",
            "inference",
        ),
        (MessageRequest::FileContainingSymbol("inference.ModelConfig".into()), "model_config.proto", "inference"),
        (MessageRequest::FileByFilename("health.proto".into()), "health.proto", "grpc.health.v1"),
    ] {
        let MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto }) =
            ask(asked).await
        else {
            panic!("{name} is described");
        };
        let file = File::decode(&file_descriptor_proto[0][..]).unwrap();
        assert_eq!((file.name.as_str(), file.package.as_str()), (name, package));
    }
    send.send(question(MessageRequest::FileContainingSymbol("inference.Nothing".into()))).await.unwrap();
    assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn the_older_version_is_there_too_and_a_call_has_an_end() {
    let (mut server, _backend, _events) = scripted(config()).await;
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(server.channel().await);
    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let asked = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    // A client that asks forever gets a bounded number of answers; a question takes at least 16
    // bytes.
    let for_ever = tokio_stream::iter(std::iter::repeat_n(asked.clone(), 200_000));
    let mut answers = client.server_reflection_info(for_ever).await.unwrap().into_inner();
    let mut answered = 0;
    while let Some(Ok(_)) = answers.next().await {
        answered += 1;
    }
    assert!((1..100_000).contains(&answered), "{answered}");
    // A client that asks nothing does not occupy the server forever.
    let silent = client.server_reflection_info(tokio_stream::pending()).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    assert!(tokio::time::timeout(PATIENCE, server.done).await.unwrap().unwrap());
    drop(silent);
}

#[tokio::test]
async fn reflection_needs_a_token_if_tokens_are_enabled() {
    let tokens = Scratch::new("[[token]]\nname = \"a\"\ntoken = \"0123456789abcdef\"\nscopes = [\"infer\"]\n");
    let access = AccessConfig { tokens: Some(TokenSource::File(tokens.0.clone())), ..AccessConfig::default() };
    let server = scripted(ServerConfig { access, ..config() }).await.0;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let list = || tokio_stream::once(question(MessageRequest::ListServices(String::new())));
    assert_eq!(client.server_reflection_info(list()).await.unwrap_err().code(), Code::Unauthenticated);
    let mut known = Request::new(list());
    known.metadata_mut().insert("authorization", "Bearer 0123456789abcdef".parse().unwrap());
    assert!(client.server_reflection_info(known).await.unwrap().into_inner().next().await.unwrap().is_ok());
}
