//! Triton repositories: each file of `tests/triton/` is the `config.pbtxt` of one, and states the
//! expected results in its comments.

use super::*;
use crate::config::DEFAULT_MAX_BATCH;
use crate::config::{Batching, ModelConfig};
use crate::fixture::TempRepository;
use crate::live::{Host, LiveRepository};
use crate::plan::LoadTarget;
use crate::registry::ModelRegistry;
use ripieno_base::ModelId;
use ripieno_executor::{CpuEngine, CpuOptions};
use ripieno_runtime::ServedModel;
use std::sync::Arc;
use std::time::Duration;

/// Host that accepts every model.
struct Everything;

impl Host for Everything {
    fn load(&self, _: ServedModel) -> Result<ModelId, String> {
        Ok(ModelId(0))
    }

    fn live(&self, _: ModelId) -> usize {
        0
    }

    fn unload(&self, _: ModelId) {}
}

/// Returns the values of one kind of comment in a file.
fn said<'a>(text: &'a str, what: &str) -> Vec<&'a str> {
    let begin = format!("# {what}:");
    text.lines().filter_map(|line| line.strip_prefix(begin.as_str())).map(str::trim).collect()
}

fn target() -> LoadTarget {
    let engine = CpuEngine::new(CpuOptions::default());
    LoadTarget { measure_for: Duration::from_millis(20), ..LoadTarget::new(Arc::new(engine)) }
}

fn repository(text: &str) -> TempRepository {
    let folder = TempRepository::new();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models");
    let one = |what: &str, default: &'static str| {
        said(text, what).first().map_or(default.to_owned(), |&word| word.to_owned())
    };
    let onnx = fs::read(models.join(one("model", "mlp.onnx"))).unwrap();
    for version in one("versions", "1").split(' ') {
        folder.write(&format!("m/{version}/{}", one("file", "model.onnx")), &onnx);
    }
    for beside in said(text, "beside") {
        let (name, file) = beside.split_once(' ').unwrap();
        folder.write(&format!("{name}/1/model.onnx"), fs::read(models.join(file)).unwrap());
    }
    folder.write("m/config.pbtxt", text);
    folder.write("m/labels.txt", "one\ntwo\n");
    if let Some(toml) = said(text, "toml").first() {
        folder.write("m/model.toml", toml);
    }
    folder
}

/// Describes the served model; or returns the error.
fn served(folder: &TempRepository) -> (Result<String, String>, Vec<String>) {
    let registry = Arc::new(ModelRegistry::new());
    let repository = LiveRepository::new(
        folder.path().to_owned(),
        target(),
        Arc::clone(&registry),
        Arc::new(Everything),
        Arc::new(|_, _, _| {}),
    );
    let mut reports = repository.load_all().unwrap();
    let report = reports.pop().unwrap();
    let all = reports.iter().all(|other| other.error.is_none() && other.warnings == report.warnings);
    assert!(all, "{reports:?}");
    if let Some(error) = report.error {
        return (Err(error), report.warnings);
    }
    let entry = registry.get("m", "").unwrap();
    let slo =
        report.slo_ms.filter(|_| report.late == Some("refuse")).map_or(String::new(), |slo| format!(", slo {slo}"));
    let words = format!(
        "max_batch {}, version {}, inputs {}, late {}{slo}",
        // Larger ones are found by measuring.
        entry.max_batch.min(DEFAULT_MAX_BATCH),
        registry.versions("m").join(" "),
        report.inputs.join("; "),
        report.late.unwrap()
    );
    (Ok(words), report.warnings)
}

fn files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/triton");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &std::path::PathBuf| {
        (path.file_stem().unwrap().to_string_lossy().into_owned(), fs::read_to_string(path).unwrap())
    };
    files.iter().map(read).collect()
}

#[test]
fn repositories_serve_as_their_comments_say() {
    let files = files();
    assert!(files.len() >= 32);
    let mut faults = String::new();
    for (name, text) in &files {
        let folder = repository(text);
        let (served, mut warnings) = served(&folder);
        match (served, said(text, "error").first(), said(text, "serves").first()) {
            (Ok(words), None, Some(expected)) if words.starts_with(expected) => {}
            (Err(error), Some(expected), None) if error.contains(expected) && !error.contains('\n') => continue,
            (served, ..) => faults += &format!("{name}: {served:?}\n"),
        }
        for expected in said(text, "warns") {
            match warnings.iter().position(|warning| warning.contains(expected)) {
                Some(at) => drop(warnings.remove(at)),
                None => faults += &format!("{name}: no warning {expected:?}\n"),
            }
        }
        faults.extend(warnings.iter().map(|warning| format!("{name}: not expected: {warning}\n")));
        let read = TritonConfig::read(&folder.path().join("m/config.pbtxt"), "m", &[1]).unwrap();
        if said(text, "becomes") != [read.mapped().join(", ")] {
            faults += &format!("{name}: becomes {}\n", read.mapped().join(", "));
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

#[test]
fn the_note_names_the_keys_that_model_toml_overrides() {
    for (name, text) in files() {
        let folder = repository(&text);
        let mut all = crate::scan::scan(folder.path()).unwrap().into_iter();
        let found = all.find(|candidate| candidate.name == "m").unwrap().found.unwrap();
        if found.is_ensemble {
            continue;
        }
        let Ok(plan) = crate::plan::LoadPlan::new(&found, &target()) else { continue };
        let note = plan.triton_note().unwrap();
        for expected in said(&text, "notes") {
            assert!(note.contains(expected), "{name}: {note}");
        }
        assert_eq!(note.contains("goes before it"), folder.path().join("m/model.toml").is_file(), "{name}: {note}");
    }
}

/// A migrated model.toml without the config.pbtxt serves the same model.
#[test]
fn a_migrated_model_is_the_same_model() {
    for (name, text) in files() {
        let Ok(read) = TritonConfig::parse("config.pbtxt", &text, "m", &[1]) else { continue };
        if read.check().is_err() {
            continue;
        }
        let toml = read.settings.to_toml(read.model_file.as_deref());
        let migrated =
            ModelConfig::parse("model.toml", &toml).unwrap_or_else(|error| panic!("{name}: {error}\n{toml}"));
        let direct = ModelConfig::parse_with_defaults("config.pbtxt", "", &read.settings).unwrap();
        let same = |config: &ModelConfig| {
            let ModelConfig {
                slo, queue_timeout, max_batch, batching, instances, warm_up, answer_late, max_queue, ..
            } = config;
            format!(
                "{slo:?} {queue_timeout:?} {max_batch:?} {batching:?} {instances} {warm_up} {answer_late:?} {max_queue:?}"
            )
        };
        assert_eq!(same(&migrated), same(&direct), "{name}:\n{toml}");
        assert_eq!((&migrated.inputs, &migrated.outputs), (&direct.inputs, &direct.outputs), "{name}");
    }
}

#[test]
fn model_toml_goes_before() {
    let under = TritonConfig::parse(
        "config.pbtxt",
        "max_batch_size: 0 instance_group { count: 2 } parameters { key: \"slo_ms\" value { string_value: \"9\" } }
         dynamic_batching { default_queue_policy { max_queue_size: 7 } } model_warmup { count: 9 }",
        "m",
        &[1],
    );
    let under = under.unwrap().settings;
    let over = |text: &str| ModelConfig::parse_with_defaults("model.toml", text, &under).unwrap();
    let alone = over("");
    assert_eq!((alone.batching, alone.instances, alone.max_queue, alone.warm_up), (Batching::Off, 2, Some(7), 9));
    assert_eq!(alone.slo.unwrap().as_millis_f64(), 9.0);
    let both = over("max_batch = 4\ninstances = 5\nmax_queue = 6\nwarm_up = false\nqueue_timeout_ms = 3");
    assert_eq!((both.batching, both.max_batch, both.instances), (Batching::Auto, Some(4), 5));
    assert_eq!((both.max_queue, both.warm_up, both.slo, both.queue_timeout.is_some()), (Some(6), 0, None, true));
}

#[test]
fn a_file_behind_a_link_is_neither_read_nor_quoted() {
    let (folder, outside) = (TempRepository::new(), TempRepository::new());
    let secret = outside.write("secret", "name: \"the password\"");
    folder.write("m/1/model.onnx", "");
    std::os::unix::fs::symlink(secret, folder.path().join("m/config.pbtxt")).unwrap();
    let (served, _) = served(&folder);
    let error = served.unwrap_err();
    assert!(error.contains("config.pbtxt: is or lies behind a link that leads out of the repository"), "{error}");
}

#[test]
fn a_changed_file_is_loaded_again_and_a_long_one_refused() {
    let folder = repository("max_batch_size: 8");
    let registry = Arc::new(ModelRegistry::new());
    let (path, host) = (folder.path().to_owned(), Arc::new(Everything));
    let repository = LiveRepository::new(path, target(), Arc::clone(&registry), host, Arc::new(|_, _, _| {}));
    repository.load_all().unwrap();
    assert_eq!(repository.reload().unwrap(), []);
    folder.write("m/config.pbtxt", "max_batch_size: 16");
    assert_eq!(repository.reload().unwrap()[0].max_batch, Some(16));
    folder.write("m/config.pbtxt", " ".repeat(MAX_TEXT + 1));
    let error = repository.reload().unwrap().remove(0).error.unwrap();
    assert!(error.contains("is longer than"), "{error}");
    assert!(matches!(registry.get("m", ""), Ok(entry) if entry.max_batch == 16), "what served goes on");
}
