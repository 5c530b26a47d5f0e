use super::*;
use crate::fixture::TempRepository;
use crate::load::{Loader, Profiling};
use crate::prepared::PreparedModel;
use ripieno_executor::{CpuEngine, CpuOptions};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/repository/shapes/1/model.onnx");

fn target() -> LoadTarget {
    LoadTarget { measure_for: Duration::ZERO, ..LoadTarget::new(Arc::new(CpuEngine::new(CpuOptions::default()))) }
}

fn model(toml: &str) -> TempRepository {
    let folder = TempRepository::new();
    folder.write("shapes/1/model.onnx", fs::read(DEMO).unwrap());
    folder.write("shapes/model.toml", format!("max_batch = 2\n{toml}\n"));
    folder
}

fn quiet() -> MeasureProgress {
    Arc::new(|_, _, _| {})
}

fn prepare(folder: &TempRepository, profiling: Profiling) -> PreparedModel {
    let found = scan(folder.path()).unwrap().remove(0).found.unwrap();
    Loader::new(target(), quiet()).prepare(&found, profiling).unwrap()
}

fn kept(folder: &TempRepository) -> PathBuf {
    let files = fs::read_dir(folder.path().join("shapes/.ripieno")).unwrap().map(|entry| entry.unwrap().path());
    let choice = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("stages-");
    files.into_iter().find(choice).expect("the choice is kept")
}

#[test]
fn several_ways_are_tried_and_one_is_chosen() {
    let folder = model("");
    let steps = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = Arc::clone(&steps);
    let progress: MeasureProgress = Arc::new(move |_, done, all| seen.lock().push((done, all)));
    let tried = stage(folder.path(), &target(), Some("shapes"), &progress).unwrap();
    let [staging] = &tried.models[..] else { panic!("{:?}", tried.errors) };
    assert_eq!(staging.trials[0].ends, [0; 0], "the whole goes first");
    let even: Vec<usize> =
        staging.trials.iter().filter(|trial| trial.way == "even").map(|trial| trial.stages.len()).collect();
    assert_eq!(even[..2], [2, 4]);
    for trial in &staging.trials {
        assert_eq!((trial.cuts.len(), trial.stages.len()), (trial.ends.len(), trial.ends.len() + 1));
        let sum: f64 = trial.stages.iter().map(|stage| stage.latency_ms.0).sum();
        assert!((sum - trial.latency_ms.0).abs() < 1e-3 && trial.expected_ms > 0.0);
    }
    assert!(!staging.input_diversity && staging.choice().expected_ms <= staging.trials[0].expected_ms * 1.01);
    let steps = steps.lock();
    assert!(steps.is_sorted() && steps.last().is_some_and(|(done, all)| done == all), "{steps:?}");
}

#[test]
fn the_choice_is_kept_and_served_by() {
    let folder = model("granularity = \"stages\"\nstages = \"auto\"");
    let untried = prepare(&folder, Profiling::Never);
    assert!(untried.warnings[0].contains("--stages auto"), "{:?}", untried.warnings);
    let tried = stage(folder.path(), &target(), None, &quiet()).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(kept(&folder)).unwrap()).unwrap();
    assert_eq!(record["staging"]["chosen"], tried.models[0].chosen);
    let way = tried.models[0].trials.iter().position(|trial| trial.ends.len() == 3).unwrap();
    record["staging"]["chosen"] = way.into();
    fs::write(kept(&folder), record.to_string()).unwrap();
    assert_eq!(prepare(&folder, Profiling::Never).plan.source.blocks.len(), 4, "what is kept is taken");
    record["staging"]["chosen"] = 99.into();
    fs::write(kept(&folder), record.to_string()).unwrap();
    let anew = prepare(&folder, Profiling::IfMissing);
    assert!(anew.warnings.is_empty(), "what cannot be is tried anew: {:?}", anew.warnings);
    let record: serde_json::Value = serde_json::from_slice(&fs::read(kept(&folder)).unwrap()).unwrap();
    assert_ne!(record["staging"]["chosen"], 99);
}

#[test]
fn a_model_without_stages_says_why() {
    let folder = TempRepository::new();
    folder.write("pair/1/a.onnx", fs::read(DEMO).unwrap());
    folder.write("pair/1/b.onnx", fs::read(DEMO).unwrap());
    folder.write(
        "pair/model.toml",
        "[[block]]\nname = \"a\"\nfile = \"a.onnx\"\n[[block]]\nname = \"b\"\nfile = \"b.onnx\"\n",
    );
    let tried = stage(folder.path(), &target(), None, &quiet()).unwrap();
    assert!(tried.models.is_empty() && tried.errors[0].contains("not one ONNX file"), "{:?}", tried.errors);
    assert!(stage(folder.path(), &target(), Some("other"), &quiet()).unwrap_err().contains("it holds pair"));
}
