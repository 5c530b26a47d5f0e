//! Sends the drawing of a zero to the demo model `digits`, over gRPC:
//!
//! ```sh
//! ripieno serve models/repository &
//! cargo run --example infer_over_grpc -- http://localhost:8001
//! ```
//!
//! tonic generates the client from `crates/wire/proto/grpc_service.proto`, the published protocol;
//! `tonic_prost_build::compile_protos` does the same in other programs.

use ripieno_wire::proto::inference::ModelInferRequest;
use ripieno_wire::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use ripieno_wire::proto::inference::model_infer_request::InferInputTensor;
use std::error::Error;
use std::time::Duration;

const IMAGE: [f32; 64] = [
    0., 0., 0.3, 0.9, 0.6, 0.1, 0., 0., 0., 0., 0.8, 0.9, 0.6, 0.9, 0.3, 0., 0., 0.2, 0.9, 0.1, 0., 0.7, 0.5, 0., 0.,
    0.3, 0.8, 0., 0., 0.5, 0.5, 0., 0., 0.3, 0.5, 0., 0., 0.6, 0.5, 0., 0., 0.3, 0.7, 0., 0.1, 0.8, 0.4, 0., 0., 0.1,
    0.9, 0.3, 0.6, 0.8, 0., 0., 0., 0., 0.4, 0.8, 0.6, 0., 0., 0.,
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "http://localhost:8001".to_owned());
    let mut client = GrpcInferenceServiceClient::connect(address).await?;
    let image = InferInputTensor {
        name: "image".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, 1, 8, 8],
        ..InferInputTensor::default()
    };
    let mut request = tonic::Request::new(ModelInferRequest {
        model_name: "digits".to_owned(),
        inputs: vec![image],
        raw_input_contents: vec![IMAGE.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into()],
        ..ModelInferRequest::default()
    });
    // The deadline, which the server reads from the call's timeout.
    request.set_timeout(Duration::from_secs(5));
    let answer = client.model_infer(request).await?.into_inner();
    let logits = answer.raw_output_contents.first().ok_or("the answer has no tensor")?;
    let logits = logits.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap_or_default()));
    let (best, _) = logits.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).ok_or("the tensor is empty")?;
    println!("the drawing is a {best}");
    Ok(())
}
