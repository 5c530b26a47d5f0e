//! End to end: protocol, runtime, emulated device.

use crate::scripted::Shelf;
use crate::support::{Running, config, run, send};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{BlockSource, EmulatedEngine, EmulatedOptions, Executor, ModelSource};
use ripieno_model::{DataType, Model, Profile, TensorSpec};
use ripieno_policies::build;
use ripieno_repository::registry::{ModelRegistry, ModelState, ServedEntry};
use ripieno_repository::slo::{Slo, SloOrigin};
use ripieno_runtime::{Engine, EngineConfig, FlightConfig, RingBounds, ServedModel};
use ripieno_sched::{Limits, Setup};
use ripieno_server::{AccessConfig, ServerConfig, SharedMemory};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const MAX_BATCH: usize = 4;

fn setup() -> Setup {
    let limits = Limits { requests: 64, models: 4, devices: 3, depth: 2, batch: 64, ..Limits::ONE };
    Setup { models: vec![], devices: 1, limits }
}

/// Loads a model whose outputs are its inputs, with ℓ(b) = `alpha_ms`·b.
fn load(
    engine: &Engine,
    executor: &EmulatedEngine,
    registry: &ModelRegistry,
    name: &str,
    alpha_ms: f64,
    max_queue: usize,
) {
    let profile = Profile::linear(alpha_ms, 0.0, MAX_BATCH).unwrap();
    let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, shape: vec![-1, 2] };
    let block = BlockSource { profile: Some(profile.clone()), ..BlockSource::new(name) };
    let (inputs, outputs) = (vec![spec("x")], vec![spec("y")]);
    let source = ModelSource { inputs, outputs, ..ModelSource::new(name, vec![block], MAX_BATCH) };
    let loaded = executor.load(&source).unwrap();
    let model = Model::whole(name, profile, Nanos::from_millis(60_000));
    let id = engine
        .load(ServedModel { model, loaded, max_queue: Some(max_queue), max_queued_work: None, answer_late: false })
        .unwrap();
    serve(registry, name, id);
}

/// Makes a loaded model ready under a name.
pub(crate) fn serve(registry: &ModelRegistry, name: &str, id: ModelId) {
    let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, shape: vec![-1, 2] };
    let entry = ServedEntry {
        name: name.into(),
        version: "1".into(),
        id: Some(id),
        platform: "emulated".into(),
        inputs: vec![spec("x")],
        optional: vec![],
        outputs: vec![spec("y")],
        batched: true,
        unbatched: None,
        max_batch: MAX_BATCH,
        streams: false,
        lengths: None,
        labels: Default::default(),
        text: None,
        no_text: None,
        slo: Slo { span: Nanos::from_millis(60_000), origin: SloOrigin::Owner, answer_late: false },
        one_row: None,
        ensemble: None,
        edge: Default::default(),
        stats: Default::default(),
    };
    registry.set(name, "1", ModelState::Ready(Arc::new(entry)), "");
}

async fn start() -> Running {
    start_with(config()).await
}

pub(crate) async fn start_with(config: ServerConfig) -> Running {
    let scheduler = build("eager", &setup(), &Default::default()).unwrap();
    let executor = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let mut runtime = EngineConfig::new(scheduler, setup(), vec![executor.clone()]);
    let bounds = RingBounds::default();
    runtime.flight = Some(FlightConfig { policy: "eager".to_owned(), options: json!({}), bounds });
    let engine = Engine::start(runtime).unwrap();
    let registry = Arc::new(ModelRegistry::new());
    load(&engine, &executor, &registry, "quick", 0.1, 64);
    load(&engine, &executor, &registry, "slow", 30_000.0, 1);
    // Dropping its last handle would wait for the slow batch; the end of the process does not.
    std::mem::forget(engine.clone());
    run(config, Arc::new(engine), registry.clone(), Arc::new(Shelf(registry))).await
}

pub(crate) fn body(rows: usize, timeout_us: u64) -> Value {
    let data: Vec<usize> = (0..rows * 2).collect();
    json!({"parameters": {"timeout": timeout_us},
        "inputs": [{"name": "x", "shape": [rows, 2], "datatype": "FP32", "data": data}]})
}

/// Returns the metrics once no request of the model with these labels runs: the last answer may
/// arrive before its request has left the gauge.
async fn settled(metrics: &str, labels: &str) -> String {
    let idle = format!("ripieno_live_requests{{{labels}}} 0\n");
    let mut text = String::new();
    for _ in 0..1_000 {
        let reply = send(Request::get(metrics).body(Full::<Bytes>::default()).unwrap()).await;
        text = String::from_utf8(reply.body.to_vec()).unwrap();
        if text.contains(&idle) {
            break;
        }
    }
    text
}

#[tokio::test]
async fn answers_are_counted_in_statistics_and_metrics() {
    let server = start().await;
    for rows in [1, 3, 9] {
        let reply = server.infer("quick", &body(rows, 0)).await;
        assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
        let output = &reply.json()["outputs"][0];
        let expected: Vec<f64> = (0..rows * 2).map(|at| at as f64).collect();
        assert_eq!((&output["shape"], &output["data"]), (&json!([rows, 2]), &json!(expected)));
    }
    let stats = server.get("/v2/models/quick/stats").await.json();
    let model = &stats["model_stats"][0];
    assert_eq!((&model["inference_count"], &model["inference_stats"]["success"]["count"]), (&json!(13), &json!(3)));
    assert_eq!(model["execution_count"], json!(5));
    assert!(model["inference_stats"]["compute_infer"]["ns"].as_u64().unwrap() > 0);
    // perf_analyzer fails if the counts of the phases differ.
    for phase in ["compute_input", "compute_infer", "compute_output"] {
        assert_eq!(model["inference_stats"][phase]["count"], json!(3), "{phase}");
    }
    let metrics = format!("http://{}/metrics", server.addresses.metrics.unwrap());
    let labels = "model=\"quick\",version=\"1\"";
    let text = settled(&metrics, labels).await;
    for line in [
        format!("ripieno_requests_total{{{labels},outcome=\"ok\"}} 3"),
        format!("ripieno_good_requests_total{{{labels}}} 3"),
        format!("ripieno_batch_rows_count{{{labels}}} 5"),
        format!("ripieno_batch_rows_sum{{{labels}}} 13"),
        format!("ripieno_response_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
        format!("ripieno_queue_length{{{labels}}} 0"),
        format!("ripieno_live_requests{{{labels}}} 0"),
        format!("nv_inference_count{{{labels}}} 13"),
        format!("nv_inference_request_failure{{{labels},reason=\"REJECTED\"}} 0"),
        format!("nv_inference_request_failure{{{labels},reason=\"OTHER\"}} 0"),
        "ripieno_device_batches_total{device=\"0\"} 5".to_owned(),
        "ripieno_ready 1".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let series = text.lines().filter(|line| line.contains(labels)).count();
    assert!(series < 60, "{series} series of one model:\n{text}");
    let sample = |series: &str| -> f64 {
        let found =
            text.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{series} in {text}"));
        found.trim().parse().unwrap()
    };
    assert!(sample(&format!("nv_inference_compute_input_duration_us{{{labels}}}")) > 0.0);
    assert!(sample(&format!("nv_inference_compute_output_duration_us{{{labels}}}")) > 0.0);
    assert!(sample("process_resident_memory_bytes") > 1e6 && sample("process_virtual_memory_bytes") > 1e6);
    assert!(sample("process_open_fds") > 3.0 && sample("process_max_fds") > sample("process_open_fds"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let age = now - sample("process_start_time_seconds");
    assert!((-1.0..86_400.0).contains(&age) && sample("process_cpu_seconds_total") >= 0.0, "{age}");
}

/// The engine answered, but the output could not be delivered.
#[tokio::test]
async fn an_answer_that_cannot_be_written_counts_as_failed() {
    let access = AccessConfig { shared_memory: SharedMemory::Local, ..AccessConfig::default() };
    let server = start_with(ServerConfig { access, ..config() }).await;
    let object = format!("ripieno-live-{}", std::process::id());
    let path = std::path::Path::new("/dev/shm").join(&object);
    std::fs::write(&path, [0; 8]).unwrap();
    let region = json!({"key": object, "byte_size": 8}).to_string();
    let registered = server.post("/v2/systemsharedmemory/region/r/register", &[], region).await;
    // The object shrinks after it was registered.
    std::fs::write(&path, [0; 4]).unwrap();
    assert_eq!(registered.status, StatusCode::OK, "{:?}", registered.body);
    let mut elsewhere = body(1, 0);
    elsewhere["outputs"] =
        json!([{"name": "y", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]);
    let refused = server.infer("quick", &elsewhere).await;
    let answered = server.infer("quick", &body(1, 0)).await;
    std::fs::remove_file(&path).unwrap();
    assert_eq!((refused.status, answered.status), (StatusCode::BAD_REQUEST, StatusCode::OK), "{:?}", refused.body);
    let stats = &server.get("/v2/models/quick/stats").await.json()["model_stats"][0]["inference_stats"];
    assert_eq!((&stats["success"]["count"], &stats["fail"]["count"]), (&json!(1), &json!(1)));
    let metrics = format!("http://{}/metrics", server.addresses.metrics.unwrap());
    let labels = "model=\"quick\",version=\"1\"";
    let text = settled(&metrics, labels).await;
    for line in [
        format!("ripieno_requests_total{{{labels},outcome=\"ok\"}} 1"),
        format!("ripieno_requests_total{{{labels},outcome=\"undelivered\"}} 1"),
        format!("ripieno_good_requests_total{{{labels}}} 1"),
        format!("nv_inference_request_success{{{labels}}} 1"),
        format!("nv_inference_request_failure{{{labels},reason=\"OTHER\"}} 1"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn devices_come_and_go_by_calls() {
    let server = start().await;
    let call = async |path: &str| server.post(&format!("/v2/devices/{path}"), &[], "").await;
    let states = async || {
        let listed = server.get("/v2/devices").await.json();
        let device = |row: &Value| (row["id"].as_u64().unwrap(), row["state"].as_str().unwrap().to_owned());
        listed["devices"].as_array().unwrap().iter().map(device).collect::<Vec<_>>()
    };
    let serving = |ids: &[u64]| ids.iter().map(|&id| (id, "serving".to_owned())).collect::<Vec<_>>();
    assert_eq!(states().await, serving(&[0]));
    assert_eq!(call("add").await.json(), json!({"id": 1}));
    assert_eq!(call("add").await.json(), json!({"id": 2}));
    assert_eq!(states().await, serving(&[0, 1, 2]));
    let full = call("add").await;
    assert!(full.status == StatusCode::BAD_REQUEST && full.error().contains("3 devices"), "{}", full.error());
    // A lost device keeps its id for a moment, which clients do not notice.
    for _ in 0..20 {
        assert_eq!(call("2/lose").await.status, StatusCode::OK);
        let mut added = call("add").await;
        while added.status == StatusCode::SERVICE_UNAVAILABLE {
            // On a machine so slow that it takes longer than that.
            assert_eq!(added.headers["retry-after"], "1");
            added = call("add").await;
        }
        assert_eq!(added.json(), json!({"id": 2}));
    }
    // A device without tasks is removed immediately, but its threads end later.
    let gone = async |id: u64| while states().await.iter().any(|(at, _)| *at == id) {};
    assert_eq!(call("0/remove").await.status, StatusCode::OK);
    gone(0).await;
    assert_eq!(call("0/remove").await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.infer("quick", &body(1, 0)).await.status, StatusCode::OK);
    assert_eq!(call("2/lose").await.json(), json!({"id": 2}));
    gone(2).await;
    let last = call("1/remove").await;
    assert!(last.status == StatusCode::BAD_REQUEST && last.error().contains("last"), "{}", last.error());
    let ready = async || {
        let paths = ["/v2/health/ready", "/v2/models/quick/ready", "/v2/health/live"];
        let [server, model, live] = paths.map(|path| server.get(path));
        [server.await.status, model.await.status, live.await.status]
    };
    assert_eq!(ready().await, [StatusCode::OK; 3]);
    assert_eq!(call("1/lose").await.status, StatusCode::OK);
    assert_eq!(ready().await, [StatusCode::SERVICE_UNAVAILABLE, StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK]);
    let refused = server.infer("quick", &body(1, 0)).await;
    assert_eq!(
        (refused.status, &refused.headers["retry-after"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap())
    );
    assert_eq!(call("add").await.json(), json!({"id": 0}));
    assert_eq!(ready().await, [StatusCode::OK; 3]);
    assert_eq!(server.infer("quick", &body(1, 0)).await.status, StatusCode::OK);
    assert_eq!(call("x/remove").await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.get("/v2/devices/add").await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_deadline_is_answered_while_the_device_is_busy_and_a_full_queue_refuses() {
    let server = start().await;
    // Would run for half a minute and is withdrawn long before.
    let hopeless = server.infer("slow", &body(1, 50_000)).await;
    assert_eq!(hopeless.status, StatusCode::GATEWAY_TIMEOUT, "{:?}", hopeless.body);
    assert!(hopeless.error().starts_with("Request timeout expired"));
    let waiting = tokio::spawn({
        let url = server.url("/v2/models/slow/infer");
        async move { send(Request::post(url).body(Full::new(Bytes::from(body(1, 0).to_string()))).unwrap()).await }
    });
    let mut refused = server.infer("slow", &body(1, 1_000)).await;
    while refused.status == StatusCode::GATEWAY_TIMEOUT {
        // The request that fills the queue has not arrived yet.
        refused = server.infer("slow", &body(1, 1_000)).await;
    }
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{:?}", refused.body);
    assert!(refused.headers.contains_key("retry-after"));
    waiting.abort();
}

#[tokio::test]
async fn the_last_minutes_are_dumped_as_a_recording() {
    let server = start().await;
    for rows in [1, 3, 9] {
        assert_eq!(server.infer("quick", &body(rows, 0)).await.status, StatusCode::OK);
    }
    let reply = server.post("/v2/recording/dump", &[], Bytes::new()).await;
    assert_eq!((reply.status, &reply.headers["content-type"]), (StatusCode::OK, &"application/jsonl".parse().unwrap()));
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["policy"], &lines[0]["begins"]), (&json!("eager"), &Value::Null));
    assert_eq!(lines.last().unwrap(), &json!({"end": {"truncated": false}}));
    let calls = lines.iter().filter(|line| !line["aside"][2]["call"].is_null()).count();
    let requests = lines.iter().filter(|line| !line["at"][1]["Request"].is_null()).count();
    assert_eq!((calls, requests), (3, 5), "nine rows are three requests of at most four");
    let none = crate::support::start().await;
    let reply = none.post("/v2/recording/dump", &[], Bytes::new()).await;
    assert_eq!(reply.status, StatusCode::NOT_IMPLEMENTED);
    assert!(reply.error().contains("--flight-mib"), "{}", reply.error());
}

#[tokio::test]
async fn a_recording_is_written_when_too_few_requests_are_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let auto = ripieno_server::AutoDump { folder: folder.path().join("late"), below: 0.9 };
    let server = start_with(ServerConfig { auto_dump: Some(auto.clone()), ..config() }).await;
    let files = || std::fs::read_dir(&auto.folder).map_or(0, Iterator::count);
    // Each is refused at its deadline of a microsecond, and two samples a second apart see it.
    for _ in 0..200_000 {
        assert_ne!(server.infer("quick", &body(4, 1)).await.status, StatusCode::OK);
        if files() > 0 {
            break;
        }
    }
    assert_eq!(files(), 1);
}
