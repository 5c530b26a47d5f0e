//! Spans of a live engine on an emulated device, in memory.

use super::calls::Telemetry;
use super::spans::CallSpans;
use crate::trace;
use bytes::Bytes;
use hyper::HeaderMap;
use opentelemetry::trace::SpanId;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use ripieno_base::Nanos;
use ripieno_executor::{BlockSource, EmulatedEngine, EmulatedOptions, Executor, ModelSource, Tensor};
use ripieno_model::{DataType, Model, Profile, TensorSpec};
use ripieno_policies::build;
use ripieno_runtime::{Engine, EngineConfig, FlightConfig, Job, JobResult, RingBounds, ServedModel};
use ripieno_sched::{Limits, Setup};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn engine() -> (Engine, ripieno_base::ModelId) {
    let limits = Limits { requests: 64, models: 4, batch: 8, ..Limits::ONE };
    let setup = Setup { models: vec![], devices: 1, limits };
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let scheduler = build("eager", &setup, &Default::default()).unwrap();
    let mut config = EngineConfig::new(scheduler, setup, vec![executor.clone()]);
    let options = serde_json::json!({});
    config.flight = Some(FlightConfig { policy: "eager".to_owned(), options, bounds: RingBounds::default() });
    let engine = Engine::start(config).unwrap();
    let profile = Profile::linear(0.5, 3.0, 8).unwrap();
    let spec = TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] };
    let block = BlockSource { profile: Some(profile.clone()), ..BlockSource::new("m") };
    let source =
        ModelSource { inputs: vec![spec.clone()], outputs: vec![spec], ..ModelSource::new("m", vec![block], 8) };
    let loaded = executor.load(&source).unwrap();
    let model = Model::whole("m", profile, Nanos::from_millis(60_000));
    let served = ServedModel { model, loaded, max_queue: Some(64), max_queued_work: None, answer_late: false };
    let id = engine.load(served).unwrap();
    (engine, id)
}

#[test]
fn a_call_has_its_spans_and_its_batch_links_all_sampled_members() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let telemetry = Telemetry::over(provider, 0.0);
    let (engine, model) = engine();
    let mut spans = CallSpans::new(&telemetry, &engine.flight().unwrap());
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", CLIENT.parse().unwrap());
    let parent = trace::from_headers(&headers);
    assert_eq!(telemetry.begin(None, Instant::now()), None, "by a ratio of 0");
    let (send, answers) = channel();
    for number in 0..6 {
        // Each second call comes from a client that traces.
        let tag = if number % 2 == 0 { telemetry.begin(parent.as_ref(), Instant::now()).unwrap() } else { 0 };
        let data = Bytes::from(vec![number]);
        let tensor = Tensor { name: "x".into(), datatype: DataType::Uint8, shape: vec![1, 1], data };
        let send = send.clone();
        let on_answer = Box::new(move |answer: JobResult| send.send(answer.is_ok()).unwrap());
        let inputs = vec![tensor].into();
        let job = Job::new(model, inputs, 1, on_answer);
        engine.submit_tagged(job, tag).unwrap();
    }
    for _ in 0..6 {
        assert!(answers.recv_timeout(Duration::from_secs(60)).unwrap());
    }
    assert!(engine.drain(Duration::from_secs(60)));
    spans.send(&telemetry);
    check(&exporter.get_finished_spans().unwrap());
    spans.send(&telemetry);
    assert_eq!(exporter.get_finished_spans().unwrap().iter().filter(|span| span.name == "infer m").count(), 3);
}

fn check(spans: &[SpanData]) {
    let named = |name: &str| spans.iter().filter(|span| span.name == *name).collect::<Vec<_>>();
    let roots = named("infer m");
    assert_eq!(roots.len(), 3, "{spans:?}");
    let own: HashSet<SpanId> = roots.iter().map(|span| span.span_context.span_id()).collect();
    for root in &roots {
        assert_eq!(root.span_context.trace_id().to_string(), CLIENT[3..35]);
        assert_eq!(root.parent_span_id.to_string(), CLIENT[36..52]);
    }
    for name in ["decode", "queue", "execute"] {
        let children = named(name);
        assert_eq!(children.len(), 3, "{name}");
        assert!(children.iter().all(|child| own.contains(&child.parent_span_id)));
        assert!(children.iter().all(|child| child.start_time <= child.end_time), "{children:?}");
    }
    let batches = named("batch m");
    let linked: Vec<SpanId> =
        batches.iter().flat_map(|batch| batch.links.iter().map(|link| link.span_context.span_id())).collect();
    assert_eq!(linked.len(), 3, "each sampled member is in one batch");
    assert_eq!(linked.iter().copied().collect::<HashSet<_>>(), own);
    let of_batches: HashSet<SpanId> = batches.iter().map(|batch| batch.span_context.span_id()).collect();
    for execute in named("execute") {
        assert!(execute.links.iter().all(|link| of_batches.contains(&link.span_context.span_id())));
        assert_eq!(execute.links.iter().count(), 1);
    }
}
