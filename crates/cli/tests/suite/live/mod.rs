//! An engine with one emulated device whose run is recorded.

use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{BlockSource, EmulatedEngine, EmulatedOptions, Executor, ModelSource};
use ripieno_model::{DataType, Model, Profile, TensorSpec};
use ripieno_policies::{build_served, find};
use ripieno_runtime::{Engine, EngineConfig, Recording, ServedModel};
use ripieno_sched::{Limits, Options, Setup};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Starts the engine with one model of a byte a row, under `unified`; returns the file of the
/// recording, too.
pub(crate) fn start(name: &str, profile: Profile, slo: Nanos) -> (PathBuf, Engine, ModelId) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let executor: Arc<dyn Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let limits = Limits { requests: 256, models: 4, batch: 8, ..Limits::ONE };
    let setup = Setup { models: Vec::new(), devices: 1, limits };
    let options = Options::new();
    let scheduler = build_served("unified", &setup, &options).unwrap();
    let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(&executor)]);
    config.policy = find("unified").ok();
    let options = serde_json::to_value(&options).unwrap();
    config.record = Some(Recording { path: path.clone(), policy: "unified".to_owned(), options });
    let engine = Engine::start(config).unwrap();
    let spec = TensorSpec { name: "x".to_owned(), datatype: DataType::Uint8, shape: vec![-1, 1] };
    let block = BlockSource { profile: Some(profile.clone()), ..BlockSource::new("m") };
    let source = ModelSource::new("m", vec![block], profile.max_batch());
    let loaded = executor.load(&ModelSource { inputs: vec![spec.clone()], outputs: vec![spec], ..source }).unwrap();
    let model = Model::whole("m", profile, slo);
    let served = ServedModel { model, loaded, max_queue: Some(256), max_queued_work: None, answer_late: false };
    let model = engine.load(served).unwrap();
    (path, engine, model)
}
