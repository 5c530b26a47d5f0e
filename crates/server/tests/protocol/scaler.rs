//! KEDA's calls on the metrics port: HTTP/2 without a preceding HTTP/1 request.

use crate::access::Scratch;
use crate::support::{config, scripted};
use ripieno_server::{AccessConfig, ServerConfig, TokenSource};
use ripieno_wire::proto::scaler::external_scaler_client::ExternalScalerClient;
use ripieno_wire::proto::scaler::{GetMetricsRequest, ScaledObjectRef};
use std::sync::atomic::Ordering;
use tonic::Code;

#[tokio::test]
async fn keda_receives_the_number_of_devices_that_the_load_needs() {
    let (running, backend, _events) = scripted(config()).await;
    let metrics = running.addresses.metrics.unwrap();
    let mut keda = ExternalScalerClient::connect(format!("http://{metrics}")).await.unwrap();
    let object = ScaledObjectRef { name: "backends".into(), namespace: "ripieno".into(), ..Default::default() };
    let specs = keda.get_metric_spec(object.clone()).await.unwrap().into_inner().metric_specs;
    let target = |at: usize| (specs[at].metric_name.as_str(), specs[at].target_size, specs[at].target_size_float);
    assert_eq!((specs.len(), target(0)), (1, ("desired_devices", 1, 1.0)));

    let asked =
        || GetMetricsRequest { scaled_object_ref: Some(object.clone()), metric_name: "s0-desired_devices".to_owned() };
    let mut stream = keda.stream_is_active(object.clone()).await.unwrap().into_inner();
    for primary in [true, false] {
        backend.primary.store(primary, Ordering::Relaxed);
        // The stream sends the current value immediately, then every change.
        assert_eq!(stream.message().await.unwrap().unwrap().result, primary);
        assert_eq!(keda.is_active(object.clone()).await.unwrap().into_inner().result, primary);
        let values = keda.get_metrics(asked()).await.unwrap().into_inner().metric_values;
        let devices = i64::from(primary);
        let value =
            |at: usize| (values[at].metric_name.as_str(), values[at].metric_value, values[at].metric_value_float);
        assert_eq!((values.len(), value(0)), (1, ("s0-desired_devices", devices, devices as f64)));
    }
}

#[tokio::test]
async fn scaler_calls_need_the_metrics_permission() {
    let file =
        Scratch::new("[[token]]\nname = \"any\"\ntoken = \"the-token-of-another-server\"\nscopes = [\"infer\"]\n");
    let access = AccessConfig { tokens: Some(TokenSource::File(file.0.clone())), ..AccessConfig::default() };
    let (running, _, _events) = scripted(ServerConfig { access, ..config() }).await;
    let metrics = running.addresses.metrics.unwrap();
    let mut keda = ExternalScalerClient::connect(format!("http://{metrics}")).await.unwrap();
    assert_eq!(keda.is_active(ScaledObjectRef::default()).await.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn it_is_not_for_clients_of_models() {
    let (running, _, _events) = scripted(config()).await;
    let grpc = running.addresses.grpc.unwrap();
    let mut keda = ExternalScalerClient::connect(format!("http://{grpc}")).await.unwrap();
    assert_eq!(keda.is_active(ScaledObjectRef::default()).await.unwrap_err().code(), Code::Unimplemented);
}
