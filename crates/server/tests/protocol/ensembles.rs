//! Ensembles, from config.pbtxt to the response: outputs with the built-in engine, and with the
//! scripted backend steps that fail, hang or have no time left.

use crate::scripted::{Event, Scripted};
use crate::support::{PATIENCE, Running, config, scripted, send, serving};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use ripieno_executor::{CpuEngine, CpuOptions};
use ripieno_repository::registry::Repository;
use ripieno_repository::{LiveRepository, LoadTarget};
use ripieno_wire::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use ripieno_wire::proto::inference::model_config::SchedulingChoice;
use ripieno_wire::proto::inference::{ModelConfigRequest, ModelInferRequest, ModelReadyRequest};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

fn step(model: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> String {
    let map = |key: &str, pairs: &[(&str, &str)]| -> String {
        pairs.iter().map(|(name, tensor)| format!("{key} {{ key: \"{name}\" value: \"{tensor}\" }} ")).collect()
    };
    format!("step {{ model_name: \"{model}\" {}{}}}\n", map("input_map", inputs), map("output_map", outputs))
}

/// Builds the configuration of an ensemble whose tensors have this number of elements per row.
fn ensemble(steps: &[String], inputs: &[(&str, usize)], outputs: &[(&str, usize)], more: &str) -> String {
    let tensors = |kind: &str, of: &[(&str, usize)]| -> String {
        let one = |(name, width): &(&str, usize)| {
            format!("{kind} {{ name: \"{name}\" data_type: TYPE_FP32 dims: {width} }}\n")
        };
        of.iter().map(one).collect()
    };
    let (inputs, outputs) = (tensors("input", inputs), tensors("output", outputs));
    format!(
        "platform: \"ensemble\"\nmax_batch_size: 8\n{inputs}{outputs}{more}\nensemble_scheduling {{\n{}}}\n",
        steps.concat()
    )
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::create_dir_all(folder.join(name).join("1")).unwrap();
    fs::write(folder.join(name).join("config.pbtxt"), text).unwrap();
}

fn body(rows: &[[f32; 4]]) -> Value {
    json!({"inputs": [{"name": "IN", "shape": [rows.len(), 4], "datatype": "FP32", "data": rows.concat()}]})
}

/// Builds a repository of a network's layers as separate models, and a model that doubles the
/// input; joined, the layers equal the network.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models");
    for name in ["mlp", "mlp_first", "mlp_second", "double"] {
        fs::create_dir_all(folder.path().join(name).join("1")).unwrap();
        fs::copy(models.join(name).with_extension("onnx"), folder.path().join(name).join("1/model.onnx")).unwrap();
        // An SLO that a busy test machine does not miss.
        fs::write(folder.path().join(name).join("model.toml"), "slo_ms = 60000\nmax_batch = 4\n").unwrap();
    }
    let steps = [
        step("mlp_second", &[("h", "HIDDEN")], &[("y", "OUT")]),
        step("mlp_first", &[("x", "IN")], &[("h", "HIDDEN")]),
        step("double", &[("x", "IN")], &[("y", "TWICE")]),
    ];
    let slo = "parameters { key: \"slo_ms\" value { string_value: \"60000\" } }";
    write(folder.path(), "whole", &ensemble(&steps, &[("IN", 4)], &[("OUT", 3), ("TWICE", 4)], slo));
    folder
}

async fn serve(folder: &Path) -> Running {
    let (server, reports) = serving(config(), folder).await;
    assert!(reports.iter().all(|report| report.error.is_none()), "{reports:?}");
    server
}

#[tokio::test]
async fn steps_in_order_are_the_network_that_was_cut() {
    let folder = folder();
    let server = serve(folder.path()).await;
    let rows: Vec<[f32; 4]> = (0..6).map(|row| [row as f32, 1.0, -2.0, 0.5]).collect();
    let mut plain = body(&rows);
    plain["inputs"][0]["name"] = json!("x");
    let expected = server.infer("mlp", &plain).await.json()["outputs"][0]["data"].clone();
    let reply = server.post("/v2/models/whole/versions/1/infer", &[], body(&rows).to_string()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.json());
    let (json, twice) = (reply.json(), rows.concat().iter().map(|number| 2.0 * number).collect::<Vec<f32>>());
    assert_eq!((&json["outputs"][0]["name"], &json["outputs"][0]["data"]), (&json!("OUT"), &expected));
    assert_eq!((&json["outputs"][1]["shape"], &json["outputs"][1]["data"]), (&json!([6, 4]), &json!(twice)));
    assert_eq!((&json["model_name"], &json["model_version"]), (&json!("whole"), &json!("1")));

    let mut grpc = GrpcInferenceServiceClient::new(server.channel().await);
    let message = ripieno_wire::proto::inference::model_infer_request::InferInputTensor {
        name: "IN".into(),
        datatype: "FP32".into(),
        shape: vec![1, 4],
        ..Default::default()
    };
    let raw: Vec<u8> = rows[0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let request = ModelInferRequest {
        model_name: "whole".into(),
        model_version: "1".into(),
        inputs: vec![message],
        raw_input_contents: vec![raw.into()],
        ..Default::default()
    };
    let answer = grpc.model_infer(request).await.unwrap().into_inner();
    assert_eq!((answer.outputs.len(), answer.outputs[0].shape.as_slice()), (2, &[1, 3][..]));
    let described = grpc.model_config(ModelConfigRequest { name: "whole".into(), ..Default::default() }).await.unwrap();
    let Some(SchedulingChoice::EnsembleScheduling(steps)) = described.into_inner().config.unwrap().scheduling_choice
    else {
        panic!("it is described as an ensemble")
    };
    assert_eq!(
        (steps.step.len(), steps.step[1].model_name.as_str(), steps.step[1].model_version),
        (3, "mlp_first", -1)
    );
    let config = server.get("/v2/models/whole/config").await.json();
    assert_eq!(config["ensemble_scheduling"]["step"][0]["input_map"], json!({"h": "HIDDEN"}));
    assert_eq!(server.get("/v2/models/whole").await.json()["platform"], "ensemble");

    let stats = |model: &str| format!("/v2/models/{model}/stats");
    let whole = server.get(&stats("whole")).await.json()["model_stats"][0].clone();
    assert_eq!((&whole["inference_stats"]["success"]["count"], &whole["inference_count"]), (&json!(2), &json!(7)));
    let part = server.get(&stats("mlp_first")).await.json()["model_stats"][0].clone();
    assert_eq!(part["inference_stats"]["success"]["count"], json!(2), "each step counts as its model's");
    let metrics = format!("http://{}/metrics", server.addresses.metrics.unwrap());
    let metrics = send(Request::get(metrics).body(Full::<Bytes>::default()).unwrap()).await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        "ripieno_requests_total{model=\"whole\",version=\"1\",outcome=\"ok\"} 2",
        "ripieno_live_requests{model=\"whole\",version=\"1\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn an_ensemble_is_as_ready_as_its_models() {
    let folder = folder();
    let server = serve(folder.path()).await;
    let mut grpc = GrpcInferenceServiceClient::new(server.channel().await);
    let ready = |name: &str| ModelReadyRequest { name: name.into(), ..Default::default() };
    assert!(grpc.model_ready(ready("whole")).await.unwrap().into_inner().ready);
    server.post("/v2/repository/models/mlp_second/unload", &[], "").await;
    assert!(!grpc.model_ready(ready("whole")).await.unwrap().into_inner().ready);
    let reply = server.infer("whole", &body(&[[1.0; 4]])).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(reply.error().starts_with("ensemble 'whole', step 0 (model 'mlp_second'): "), "{}", reply.error());
    server.post("/v2/repository/models/whole/unload", &[], "").await;
    // Loading an ensemble also loads its models.
    let loaded = server.post("/v2/repository/models/whole/load", &[], "").await;
    assert_eq!(loaded.status, StatusCode::OK, "{}", loaded.json());
    assert!(grpc.model_ready(ready("mlp_second")).await.unwrap().into_inner().ready);
    assert_eq!(server.infer("whole", &body(&[[1.0; 4]])).await.status, StatusCode::OK);
    assert_eq!(server.infer("whole", &json!({"inputs": []})).await.status, StatusCode::BAD_REQUEST);
}

/// The outer ensemble doubles the inner one's input, and its name sorts before the inner one's.
#[tokio::test]
async fn an_ensemble_may_be_a_step_of_another() {
    let folder = folder();
    let steps =
        [step("whole", &[("IN", "HIDDEN")], &[("OUT", "CLASS")]), step("double", &[("x", "IN")], &[("y", "HIDDEN")])];
    let slo = "parameters { key: \"slo_ms\" value { string_value: \"60000\" } }";
    let outer = ensemble(&steps, &[("IN", 4)], &[("CLASS", 3)], slo);
    write(folder.path(), "outer", &outer);
    let most = step("outer", &[("IN", "IN")], &[("CLASS", "Y")]);
    write(folder.path(), "a_most", &ensemble(&[most], &[("IN", 4)], &[("Y", 3)], slo));
    let server = serve(folder.path()).await;
    let plain = |model: &str, name: &str, row: [f32; 4]| {
        let mut request = body(&[row]);
        request["inputs"][0]["name"] = json!(name);
        (model.to_owned(), request)
    };
    let ask = async |(model, request): (String, Value)| {
        let reply = server.infer(&model, &request).await.json();
        reply["outputs"][0]["data"].clone()
    };
    let expected = ask(plain("mlp", "x", [2.0, -4.0, 1.0, 6.0])).await;
    assert!(expected.is_array());
    for model in ["outer", "a_most"] {
        assert_eq!(ask(plain(model, "IN", [1.0, -2.0, 0.5, 3.0])).await, expected, "{model}");
    }
    // Reloading an ensemble with other steps updates the ensembles around it.
    let steps = [step("double", &[("x", "IN")], &[("y", "TWICE")]), step("mlp", &[("x", "TWICE")], &[("y", "OUT")])];
    write(folder.path(), "whole", &ensemble(&steps, &[("IN", 4)], &[("OUT", 3), ("TWICE", 4)], slo));
    let loaded = server.post("/v2/repository/models/whole/load", &[], "").await;
    assert_eq!(loaded.status, StatusCode::OK, "{}", loaded.json());
    for model in ["outer", "a_most"] {
        assert_eq!(ask(plain(model, "IN", [0.5, -1.0, 0.25, 1.5])).await, expected, "{model}");
    }
    for model in ["double", "mlp", "whole", "outer", "a_most"] {
        server.post(&format!("/v2/repository/models/{model}/unload"), &[], "").await;
    }
    let loaded = server.post("/v2/repository/models/a_most/load", &[], "").await;
    assert_eq!(loaded.status, StatusCode::OK, "{}", loaded.json());
    assert_eq!(ask(plain("a_most", "IN", [0.5, -1.0, 0.25, 1.5])).await, expected);
    let steps = [step("a_most", &[("IN", "IN")], &[("Y", "OUT")])];
    write(folder.path(), "whole", &ensemble(&steps, &[("IN", 4)], &[("OUT", 3)], slo));
    let refused = server.post("/v2/repository/models/whole/load", &[], "").await;
    assert!(refused.error().contains("has this ensemble among its steps; break the circle"), "{}", refused.error());
}

#[tokio::test]
async fn what_does_not_fit_together_is_said_with_the_step() {
    let folder = folder();
    let (first, second) = (("IN", 4), ("OUT", 3));
    let chain = |inputs: &[(&str, &str)], outputs: &[(&str, &str)]| {
        vec![step("mlp_first", inputs, outputs), step("mlp_second", &[("h", "H")], &[("y", "OUT")])]
    };
    let whole = |steps: &[String]| ensemble(steps, &[first], &[second], "");
    let right = chain(&[("x", "IN")], &[("h", "H")]);
    let cases = [
        ("absent", whole(&[step("nowhere", &[], &[])]), "step[0]: Request for unknown model: 'nowhere' is not found"),
        ("input", whole(&chain(&[("q", "IN")], &[("h", "H")])), "step[0]: model \"mlp_first\" has no input \"q\""),
        ("output", whole(&chain(&[("x", "IN")], &[("q", "H")])), "step[0]: model \"mlp_first\" has no output \"q\""),
        ("unmapped", whole(&chain(&[], &[("h", "H")])), "step[0]: input \"x\" of \"mlp_first\" is not in input_map"),
        ("source", whole(&chain(&[("x", "Q")], &[("h", "H")])), "step[0]: tensor \"Q\" is no input"),
        ("twice", whole(&chain(&[("x", "IN")], &[("h", "IN")])), "tensor \"IN\" comes from two places"),
        ("circle", whole(&chain(&[("x", "OUT")], &[("h", "H")])), "has shape [-1, 3] on the one side and [-1, 4]"),
        ("missing", ensemble(&right, &[first], &[("Q", 3)], ""), "output \"Q\" is given by no step"),
        (
            "width",
            ensemble(&right, &[first], &[("OUT", 5)], ""),
            "output \"OUT\" has shape [-1, 3] on the one side and [-1, 5]",
        ),
        (
            "type",
            ensemble(&right, &[first], &[second], "").replacen("FP32", "INT8", 1),
            "is INT8 on the one side and FP32",
        ),
        ("inner_input", whole(&[step("whole", &[("q", "IN")], &[])]), "step[0]: model \"whole\" has no input \"q\""),
        ("inner_output", whole(&[step("whole", &[("IN", "IN")], &[("q", "OUT")])]), "has no output \"q\""),
        ("inner_unmapped", whole(&[step("whole", &[], &[])]), "step[0]: input \"IN\" of \"whole\" is not in input_map"),
        (
            "around_a",
            whole(&[step("around_b", &[("IN", "IN")], &[("OUT", "OUT")])]),
            "step[0]: model 'around_b' is loading",
        ),
        ("around_b", whole(&[step("around_a", &[("IN", "IN")], &[("OUT", "OUT")])]), "step[0]: "),
        ("itself", whole(&[step("itself", &[("IN", "IN")], &[("OUT", "OUT")])]), "step[0]: model 'itself' is loading"),
        (
            "empty",
            "platform: \"ensemble\"".to_owned(),
            "platform \"ensemble\" and ensemble_scheduling with a step go together",
        ),
        ("right", ensemble(&right, &[first], &[second], ""), ""),
    ];
    for (name, text, _) in &cases {
        write(folder.path(), name, text);
    }
    let (_server, reports) = serving(config(), folder.path()).await;
    for (name, _, expected) in cases {
        let error = reports.iter().find(|report| report.name == name).unwrap().error.clone().unwrap_or_default();
        assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{name}: {error}");
    }
}

/// Starts a server with the scripted models and an ensemble of them.
async fn scripted_with(
    steps: &[String],
    outputs: &[(&str, usize)],
    more: &str,
) -> (Running, Arc<Scripted>, mpsc::Receiver<Event>) {
    let (server, backend, events) = scripted(config()).await;
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "e", &ensemble(steps, &[("IN", 2)], outputs, more));
    struct NoHost;
    impl ripieno_repository::Host for NoHost {
        fn load(&self, _: ripieno_runtime::ServedModel) -> Result<ripieno_base::ModelId, String> {
            Err("there is no host".to_owned())
        }
        fn live(&self, _: ripieno_base::ModelId) -> usize {
            0
        }
        fn unload(&self, _: ripieno_base::ModelId) {}
    }
    let target = LoadTarget::new(Arc::new(CpuEngine::new(CpuOptions::default())));
    let (registry, silent) = (server.registry.clone(), Arc::new(|_: &str, _, _| {}));
    let repository = LiveRepository::new(folder.path().to_owned(), target, registry, Arc::new(NoHost), silent);
    repository.load("e", None).unwrap();
    (server, backend, events)
}

fn pair() -> Value {
    json!({"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]})
}

const SLO: &str = "parameters { key: \"slo_ms\" value { string_value: \"1000000\" } }";

#[tokio::test]
async fn a_fan_in_has_what_all_steps_before_it_gave() {
    let steps = [
        step("two", &[("x0", "A"), ("x1", "B")], &[("y0", "LEFT"), ("y1", "RIGHT")]),
        step("simple", &[("x", "IN")], &[("y", "A")]),
        step("timed", &[("x", "IN")], &[("y", "B")]),
    ];
    let (server, _, mut events) = scripted_with(&steps, &[("LEFT", 2), ("RIGHT", 2)], SLO).await;
    let reply = server.infer("e", &pair()).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.json());
    assert_eq!(
        reply.json()["outputs"][1],
        json!({"name": "RIGHT", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]})
    );
    // The rest of the ensemble's time, less three times the last step's latency, and not the
    // model's own 100 ms.
    let Some(Event::Timeout(Some(stage))) = events.recv().await else { panic!("a step is due") };
    let most = Duration::from_secs(1000) - Duration::from_millis(3 * 178);
    assert!(stage <= most && stage > most / 2, "{stage:?}");
}

#[tokio::test]
async fn without_a_target_of_its_own_steps_have_those_of_their_models() {
    let (server, _, mut events) =
        scripted_with(&[step("timed", &[("x", "IN")], &[("y", "OUT")])], &[("OUT", 2)], "").await;
    assert_eq!(server.infer("e", &pair()).await.status, StatusCode::OK);
    assert_eq!(events.recv().await, Some(Event::Timeout(None)));
}

#[tokio::test]
async fn a_client_that_leaves_withdraws_all_steps_under_way() {
    let steps = [step("stuck", &[("x", "IN")], &[("y", "A")]), step("stuck", &[("x", "IN")], &[("y", "B")])];
    let (server, _backend, mut events) = scripted_with(&steps, &[("A", 2), ("B", 2)], SLO).await;
    let url = server.url("/v2/models/e/infer");
    let call = tokio::spawn(send(Request::post(url).body(Full::from(pair().to_string())).unwrap()));
    assert_eq!([events.recv().await, events.recv().await], [Some(Event::Submitted), Some(Event::Submitted)]);
    let live = server.registry.get("e", "").unwrap().ensemble.clone().unwrap();
    assert_eq!(live.live(), 1);
    call.abort();
    let withdrawn = async { [events.recv().await, events.recv().await] };
    let withdrawn = tokio::time::timeout(PATIENCE, withdrawn).await.unwrap();
    assert_eq!(withdrawn, [Some(Event::Withdrawn), Some(Event::Withdrawn)]);
    assert_eq!(live.live(), 0);
}

#[tokio::test]
async fn a_step_that_fails_is_named_and_takes_the_others_with_it() {
    for (model, status, expected) in [
        (
            "failing",
            StatusCode::INTERNAL_SERVER_ERROR,
            "ensemble 'e', step 1 (model 'failing'): inference failed: device on fire",
        ),
        ("full", StatusCode::TOO_MANY_REQUESTS, "ensemble 'e', step 1 (model 'full'): Exceeds maximum queue size of 7"),
        (
            "expired",
            StatusCode::GATEWAY_TIMEOUT,
            "ensemble 'e', step 1 (model 'expired'): Request timeout expired: the ensemble had 1000s (its slo_ms)",
        ),
    ] {
        let steps = [step("stuck", &[("x", "IN")], &[("y", "A")]), step(model, &[("x", "IN")], &[("y", "B")])];
        let (server, _backend, mut events) = scripted_with(&steps, &[("A", 2), ("B", 2)], SLO).await;
        let reply = server.infer("e", &pair()).await;
        assert_eq!(reply.status, status, "{}", reply.error());
        assert!(reply.error().starts_with(expected), "{}", reply.error());
        assert_eq!([events.recv().await, events.recv().await], [Some(Event::Submitted), Some(Event::Withdrawn)]);
        let stats = server.get("/v2/models/e/stats").await.json();
        assert_eq!(stats["model_stats"][0]["inference_stats"]["fail"]["count"], json!(1), "{model}");
    }
}
