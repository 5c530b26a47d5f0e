//! A reload under load, with the real runtime: every request is answered, by the old version or the
//! new one.

use super::super::live::{Host, LiveRepository};
use super::super::plan::LoadTarget;
use super::{EMULATED, Fixture, emulated, silent};
use crate::fixture::TempRepository;
use crate::registry::{ModelRegistry, Repository};
use ripieno_base::ModelId;
use ripieno_executor::{EmulatedEngine, EmulatedOptions, Tensor};
use ripieno_model::DataType;
use ripieno_runtime::{Engine, EngineConfig, Job, JobResult, ServedModel};
use ripieno_sched::{Limits, Options, Setup};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

fn engine(executor: &Arc<dyn ripieno_executor::Executor>) -> Engine {
    let limits = Limits { requests: 100, models: 4, depth: 2, batch: 8, ..Limits::ONE };
    let setup = Setup { models: vec![], devices: 1, limits };
    let scheduler = ripieno_policies::build("eager", &setup, &Options::new()).unwrap();
    Engine::start(EngineConfig::new(scheduler, setup, vec![Arc::clone(executor)])).unwrap()
}

/// Sends one request to the current version of the model.
fn ask(engine: &Engine, registry: &ModelRegistry) -> JobResult {
    let entry = registry.get("m", "").unwrap();
    let (answer, answered) = channel();
    let data = vec![0; 4].into();
    let input = Tensor { name: "input".into(), datatype: DataType::Fp32, shape: vec![1, 1], data };
    let on_answer = Box::new(move |result| answer.send(result).unwrap());
    let job = Job::new(entry.id.unwrap(), vec![input].into(), 1, on_answer);
    engine.submit(job).expect("the model is loaded and its queue is not full");
    answered.recv().unwrap()
}

#[test]
fn no_request_notices_a_reload() {
    let folder = TempRepository::new();
    // An SLO that a busy test machine does not miss, and a policy that does not use it up.
    folder.write("m/model.toml", EMULATED.replace("slo_ms = 50", "slo_ms = 20000\nlate = \"answer\""));
    let executor: Arc<dyn ripieno_executor::Executor> = Arc::new(EmulatedEngine::new(EmulatedOptions::default()));
    let (engine, registry) = (engine(&executor), Arc::new(ModelRegistry::new()));
    let target = LoadTarget { policy: Some("eager".to_owned()), ..LoadTarget::new(executor) };
    let host = Arc::new(engine.clone());
    let repository = LiveRepository::new(folder.path().to_owned(), target, Arc::clone(&registry), host, silent());
    assert_eq!(repository.load_all().unwrap()[0].error, None);
    let (done, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let answered = ask(&engine, &registry).expect("an answer with outputs");
                    assert_eq!(answered.outputs.len(), 1);
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let reloaded = (0..3).try_for_each(|_| repository.load("m", None));
        done.store(true, Ordering::Relaxed);
        assert_eq!(reloaded, Ok(()));
    });
    assert!(answers.into_inner() > 0);
    assert_eq!(engine.all_metrics().len(), 1, "the replaced versions are gone");
    repository.unload("m").unwrap();
    assert!(engine.all_metrics().is_empty());
}

#[test]
fn a_reload_of_everything_touches_only_what_has_changed() {
    let fixture = Fixture::new();
    for name in ["changed", "gone", "same"] {
        fixture.folder.write(&format!("{name}/model.toml"), EMULATED);
    }
    let repository = fixture.repository(emulated());
    repository.load_all().unwrap();
    fixture.notes();
    fixture.folder.write("changed/model.toml", EMULATED.replace("slo_ms = 50", "slo_ms = 1000"));
    fixture.folder.write("new/model.toml", EMULATED);
    std::fs::remove_dir_all(fixture.folder.path().join("gone")).unwrap();
    let reports = repository.reload().unwrap();
    assert_eq!(reports.iter().map(|report| report.name.as_str()).collect::<Vec<_>>(), ["changed", "new"]);
    let notes = fixture.notes();
    let loads: Vec<_> = notes.iter().filter(|note| note.starts_with("load")).collect();
    assert_eq!(loads, ["load changed", "load new"], "{notes:?}");
    assert_eq!(notes.len(), 4, "two old ones are unloaded: {notes:?}");
    let ready: Vec<_> = fixture.registry.ready_entries().iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(ready, ["changed", "new", "same"]);
    assert_eq!(repository.reload().unwrap().len(), 0);
    // Labels belong to the model's files; files outside of its folder do not.
    fixture.folder.write("same/labels.txt", "ant");
    fixture.folder.write("beside.txt", "ant");
    assert_eq!(repository.reload().unwrap().into_iter().map(|report| report.name).collect::<Vec<_>>(), ["same"]);
    // A folder that cannot be read does not stop serving models.
    std::fs::remove_dir_all(fixture.folder.path()).unwrap();
    assert!(repository.reload().is_err());
    assert_eq!(fixture.registry.ready_entries().len(), 3);
}

/// Host with live requests, one of which ends with each check.
struct Busy {
    left: AtomicUsize,
    left_at_unload: AtomicUsize,
}

impl Host for Busy {
    fn load(&self, _: ServedModel) -> Result<ModelId, String> {
        Ok(ModelId(0))
    }

    fn live(&self, _: ModelId) -> usize {
        self.left.fetch_sub(1, Ordering::Relaxed) - 1
    }

    fn unload(&self, _: ModelId) {
        self.left_at_unload.store(self.left.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[test]
fn requests_that_may_be_late_are_answered_before_their_model_goes() {
    let folder = TempRepository::new();
    // The derived target of 10 ms has passed long before the last request ends.
    folder.write("m/model.toml", "alpha_ms = 1\nbeta_ms = 1\nmax_batch = 1\n");
    let host = Arc::new(Busy { left: AtomicUsize::new(100), left_at_unload: AtomicUsize::new(usize::MAX) });
    let registry = Arc::new(ModelRegistry::new());
    let path = folder.path().to_owned();
    let repository = LiveRepository::new(path, emulated(), registry, Arc::clone(&host) as Arc<dyn Host>, silent());
    repository.load_all().unwrap();
    assert_eq!(repository.load("m", None), Ok(()));
    assert_eq!(host.left_at_unload.load(Ordering::Relaxed), 0);
}
