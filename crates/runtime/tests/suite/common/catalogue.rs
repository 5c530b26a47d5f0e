//! Models of the executor's tests, served on a CPU under a policy of the catalogue.

use ripieno_base::ModelId;
use ripieno_executor::{BlockSource, Executor, ModelSource, Tensor};
use ripieno_policies::Policy;
use ripieno_runtime::{Engine, EngineConfig, Failure, Job, JobResult};
use ripieno_sched::{Limits, Options, Setup};
use ripieno_workload::{below, stream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const MAX_BATCH: usize = 8;
/// Time limit of an answer; only a failing test reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Returns a model whose blocks are these files.
pub(crate) fn source(names: &[&str]) -> ModelSource {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models");
    let block = |name: &&str| {
        let path = Some(folder.join(format!("{name}.onnx")));
        BlockSource { path, ..BlockSource::new(*name) }
    };
    ModelSource::new(names[0], names.iter().map(block).collect(), MAX_BATCH)
}

/// Numbers without a pattern that a policy could depend on.
pub(crate) fn scrambled(at: usize) -> usize {
    below(&mut stream(at as u64, 0), 1 << 32) as usize
}

pub(crate) fn start(policy: &'static Policy, executor: &Arc<dyn Executor>, shards: usize) -> Engine {
    let lanes = policy.needs(&Options::new()).lanes;
    let limits = Limits { requests: 256, models: 2, lanes, depth: 2, batch: MAX_BATCH, ..Limits::ONE };
    let setup = Setup { models: Vec::new(), devices: 1, limits };
    let scheduler = super::policy(policy.name, &setup, &Options::new(), shards);
    let mut config = EngineConfig::new(scheduler, setup, vec![Arc::clone(executor)]);
    config.policy = Some(policy);
    Engine::start(config).unwrap()
}

/// Submits a job, waiting for a free slot.
pub(crate) fn submit(
    engine: &Engine,
    model: ModelId,
    (inputs, rows): (&Arc<[Tensor]>, usize),
    tell: impl FnOnce(JobResult) + Send + 'static,
) {
    let told = Arc::new(Mutex::new(Some(tell)));
    loop {
        let (inputs, told) = (Arc::clone(inputs), Arc::clone(&told));
        let on_answer = Box::new(move |answer| (told.lock().unwrap().take().expect("answered once"))(answer));
        let job = Job::new(model, inputs, rows, on_answer);
        match engine.submit(job) {
            Ok(_) => return,
            Err(Failure::QueueFull { .. }) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}
