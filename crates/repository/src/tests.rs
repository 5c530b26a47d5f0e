//! Whole repositories: errors beside valid models, profiles and their cache, loading and unloading
//! while serving.

mod batching;
mod bounds;
mod cells;
mod containment;
mod control;
mod exports;
mod labels;
mod leaving;
mod lengths;
mod reload;
mod shapes;
mod sizes;
mod slo;
mod text;
mod uploads;
mod versions;

use super::fixture::TempRepository;
use super::live::{Host, LiveRepository};
use super::plan::LoadTarget;
use super::report::{MeasureProgress, ModelReport};
use super::{inspect, profile};
use crate::registry::{ModelRegistry, Repository};
use parking_lot::Mutex;
use ripieno_base::{ModelId, Nanos};
use ripieno_executor::{CpuEngine, CpuOptions, EmulatedEngine, EmulatedOptions};
use ripieno_executor::{Device, Executor, LoadError, LoadedModel, ModelSource, Sink, TaskResult};
use ripieno_model::zoo::ZooDevice;
use ripieno_runtime::ServedModel;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const EMULATED: &str = "slo_ms = 50\nmax_batch = 8\nalpha_ms = 1\nbeta_ms = 4\n";

fn cpu() -> LoadTarget {
    let engine = CpuEngine::new(CpuOptions::default());
    LoadTarget { measure_for: Duration::from_millis(20), ..LoadTarget::new(Arc::new(engine)) }
}

fn emulated() -> LoadTarget {
    LoadTarget::new(Arc::new(EmulatedEngine::new(EmulatedOptions::default())))
}

fn onnx(name: &str) -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models").join(name);
    std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn silent() -> MeasureProgress {
    Arc::new(|_, _, _| {})
}

/// Host that accepts every model and records events with the version that answers for the model at
/// that moment.
struct Notebook {
    registry: Arc<ModelRegistry>,
    notes: Mutex<Vec<String>>,
}

impl Host for Notebook {
    fn load(&self, model: ServedModel) -> Result<ModelId, String> {
        let mut notes = self.notes.lock();
        notes.push(format!("load {}", model.model.name));
        Ok(ModelId(notes.len() as u16))
    }

    fn live(&self, _: ModelId) -> usize {
        0
    }

    fn unload(&self, model: ModelId) {
        let entries = self.registry.ready_entries();
        let answering =
            entries.iter().filter_map(|entry| Some(format!("{}/{}={}", entry.name, entry.version, entry.id?.0)));
        let answering = answering.collect::<Vec<_>>().join(" ");
        self.notes.lock().push(format!("unload {} while [{answering}]", model.0));
    }
}

struct Fixture {
    folder: TempRepository,
    registry: Arc<ModelRegistry>,
    host: Arc<Notebook>,
}

impl Fixture {
    fn new() -> Fixture {
        let registry = Arc::new(ModelRegistry::new());
        let host = Arc::new(Notebook { registry: Arc::clone(&registry), notes: Mutex::default() });
        Fixture { folder: TempRepository::new(), registry, host }
    }

    fn repository(&self, target: LoadTarget) -> LiveRepository {
        let (path, registry) = (self.folder.path().to_owned(), Arc::clone(&self.registry));
        LiveRepository::new(path, target, registry, Arc::clone(&self.host) as Arc<dyn Host>, silent())
    }

    /// Returns state and reason of every index row, by `name/version`.
    fn index(&self, repository: &LiveRepository) -> Vec<(String, String, String)> {
        let rows = repository.index().into_iter();
        rows.map(|row| (format!("{}/{}", row.name, row.version), row.state, row.reason)).collect()
    }

    fn notes(&self) -> Vec<String> {
        std::mem::take(&mut self.host.notes.lock())
    }
}

/// Measures the only model of a repository until its profile is kept: one that was measured on a
/// busy machine is not.
fn kept_profile(folder: &Path, target: impl Fn() -> LoadTarget) -> ModelReport {
    for _ in 0..20 {
        let measured = one(profile(folder, target(), None, silent()));
        if measured.error.is_some() || one(inspect(folder, target())).profile.is_some() {
            return measured;
        }
    }
    panic!("no profile in 20 was reliable")
}

fn one(reports: Result<Vec<ModelReport>, String>) -> ModelReport {
    let mut reports = reports.unwrap();
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.remove(0)
}

/// Reports on a repository of one model in one file.
fn report(file: &str, toml: &str) -> ModelReport {
    let folder = TempRepository::new();
    folder.write("m/1/model.onnx", onnx(file));
    folder.write("m/model.toml", toml);
    one(inspect(folder.path(), cpu()))
}

/// An error case: the folder, its files, and the start (after the repository's path) and a part of
/// the error.
type Mistake = (&'static str, Vec<(&'static str, Vec<u8>)>, &'static str, &'static str);

fn mistakes() -> Vec<Mistake> {
    let toml = |text: &str| ("model.toml", text.as_bytes().to_vec());
    let mlp = || ("1/model.onnx", onnx("mlp.onnx"));
    let input = |text: &str| [b"[[input]]\nname = \"x\"\n", text.as_bytes()].concat();
    vec![
        ("bad_onnx", vec![("1/model.onnx", b"not onnx".to_vec())], "bad_onnx/1/model.onnx", "export the model to ONNX"),
        ("no_operator", vec![("1/model.onnx", onnx("unknown_operator.onnx"))], "no_operator/1/model.onnx", ""),
        (
            "fixed",
            vec![("1/model.onnx", onnx("two_rows.onnx")), toml("batching = \"require\"")],
            "fixed/1/model.onnx",
            "no dynamic first dimension",
        ),
        ("key", vec![mlp(), toml("slo = 5")], "key/model.toml:1: unknown key slo", "did you mean slo_ms?"),
        ("type", vec![mlp(), toml("slo_ms = \"5\"")], "type/model.toml:1: slo_ms = \"5\"", "without quotes"),
        (
            "shape",
            vec![mlp(), ("model.toml", input("datatype = \"FP32\"\nshape = [-1, 5]"))],
            "shape/model.toml: [[input]] \"x\" shape = [-1, 5]",
            "the model has [-1, 4]; write that",
        ),
        (
            "datatype",
            vec![mlp(), ("model.toml", input("datatype = \"INT64\"\nshape = [-1, 4]"))],
            "datatype/model.toml: [[input]] \"x\" datatype = \"INT64\"",
            "the model has FP32",
        ),
        (
            "tensor",
            vec![mlp(), toml("[[output]]\nname = \"z\"\ndatatype = \"FP32\"\nshape = [-1, 3]")],
            "tensor/model.toml: [[output]] name = \"z\"",
            "it has y",
        ),
        (
            "no_shape",
            vec![mlp(), toml("[[output]]\nname = \"y\"\ndatatype = \"FP32\"")],
            "no_shape/model.toml:1: [[output]] number 1: the key shape is missing",
            "the model has shape = [-1, 3]: write that",
        ),
        (
            "no_datatype",
            vec![mlp(), ("model.toml", input(""))],
            "no_datatype/model.toml:1: [[input]] number 1: the keys datatype and shape are missing",
            "the model has datatype = \"FP32\" and shape = [-1, 4]",
        ),
        (
            "missing",
            vec![("2/notes.txt", vec![]), mlp()],
            "missing/2/model.onnx: there is no such file",
            "put the model",
        ),
        (
            "part",
            vec![mlp(), toml("[[block]]\nname = \"a\"\nfile = \"a.onnx\"")],
            "part/1/a.onnx: there is no such file",
            "put the model there",
        ),
        ("toml_only", vec![toml("slo_ms = 5")], "toml_only/1/model.onnx: there is no such file", "--device emulated"),
        ("empty", vec![("notes.txt", vec![])], "empty: holds neither a version folder", "out of the repository"),
        ("nested", vec![("net/model.toml", vec![])], "nested: is a repository of models itself", "serve"),
        ("latin", vec![mlp(), ("model.toml", b"# caf\xe9".to_vec())], "latin/model.toml:1: the file is not UTF-8", ""),
        ("policy", vec![mlp(), toml("policy = \"eager\"")], "policy/model.toml: policy = \"eager\"", "--policy eager"),
        (
            "misnamed",
            vec![mlp(), toml("policy = \"defered\"")],
            "misnamed/model.toml: policy = \"defered\"",
            "is it deferred?",
        ),
    ]
}

#[test]
fn every_mistake_is_one_clear_error_and_the_other_models_load() {
    let fixture = Fixture::new();
    let mistakes = mistakes();
    for (name, files, ..) in &mistakes {
        for (file, content) in files {
            fixture.folder.write(&format!("{name}/{file}"), content);
        }
    }
    fixture.folder.write("good/1/model.onnx", onnx("mlp.onnx"));
    fixture.folder.write("twice/1/model.onnx", onnx("mlp.onnx"));
    fixture.folder.write("twice.onnx", onnx("mlp.onnx"));
    let repository = fixture.repository(LoadTarget {
        policy: Some("deferred".to_owned()),
        policies: vec!["deferred", "eager"],
        ..cpu()
    });
    let reports = repository.load_all().unwrap();
    let rows = fixture.index(&repository);
    assert_eq!((reports.len(), rows.len()), (mistakes.len() + 2, mistakes.len() + 2), "{rows:?}");
    for (name, _, place, fix) in &mistakes {
        let report = reports.iter().find(|report| report.name == *name).expect(name);
        let error = report.error.as_deref().expect(name);
        let path = fixture.folder.path().join(place).display().to_string();
        assert!(error.contains(&path) && error.contains(fix) && !error.contains('\n'), "{name}: {error}");
        let row = rows.iter().find(|(row, ..)| row.split('/').next() == Some(*name)).expect(name);
        let heard = error.replace(&format!("{}/", fixture.folder.path().display()), "");
        assert_eq!((row.1.as_str(), row.2.as_str()), ("UNAVAILABLE", heard.as_str()), "the index says the same");
    }
    let good = reports.iter().find(|report| report.name == "good").unwrap();
    assert_eq!((good.state.as_str(), good.error.as_deref()), ("READY", None));
    assert_eq!(good.inputs, ["x FP32 [-1, 4]"]);
    assert_eq!(fixture.notes(), ["load good"]);
    assert!(fixture.registry.get("good", "1").is_ok() && fixture.registry.get("twice", "").is_err());
}

#[test]
fn a_profile_is_measured_once_and_then_comes_from_the_cache() {
    let folder = TempRepository::new();
    let file = folder.write("mlp/1/model.onnx", onnx("mlp.onnx"));
    folder.write("mlp/model.toml", "max_batch = 4\n");
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&steps);
    let progress: MeasureProgress =
        Arc::new(move |model, done, total| seen.lock().push(format!("{model} {done}/{total}")));
    assert_eq!(one(inspect(folder.path(), cpu())).profile, None, "inspecting measures nothing");
    let measured = one(profile(folder.path(), cpu(), Some("mlp"), progress)).profile.unwrap();
    assert_eq!((measured.origin, measured.latency_ms.len()), ("measured", 4));
    assert!(steps.lock().starts_with(&["mlp 1/3".to_owned()]), "{:?}", steps.lock());
    let cached = one(inspect(folder.path(), cpu())).profile.unwrap();
    assert_eq!((cached.origin, &cached.latency_ms), ("cached", &measured.latency_ms));
    assert!(folder.path().join("mlp/.ripieno").is_dir());
    std::fs::write(file, onnx("double.onnx")).unwrap();
    assert_eq!(one(inspect(folder.path(), cpu())).profile, None, "another file is another model");
    let error = profile(folder.path(), cpu(), Some("mpl"), silent()).unwrap_err();
    assert!(error.ends_with("there is no model \"mpl\"; it holds mlp"), "{error}");
}

#[test]
fn a_cached_model_warms_up_and_one_that_cannot_run_is_found_out() {
    let fixture = Fixture::new();
    fixture.folder.write("mlp/1/model.onnx", onnx("mlp.onnx"));
    fixture.folder.write("mlp/model.toml", "warm_up = 3\nlatency_ms = [1, 1, 1, 1]\n");
    fixture.folder.write("sum/1/model.onnx", onnx("one_row_only.onnx"));
    fixture.folder.write("sum/model.toml", "batching = \"trust\"\nlatency_ms = [1, 1]\n");
    let reports = fixture.repository(cpu()).load_all().unwrap();
    assert_eq!((reports[0].error.as_deref(), reports[0].max_batch), (None, Some(4)));
    assert_eq!(reports[0].profile.as_ref().unwrap().origin, "given");
    let error = reports[1].error.as_deref().unwrap();
    assert!(error.contains("sum/1/model.onnx: a warm-up batch of 2 rows of zeros failed: "), "{error}");
}

#[test]
fn a_chain_of_files_is_one_model() {
    let folder = TempRepository::new();
    folder.write("mlp/1/first.onnx", onnx("mlp_first.onnx"));
    folder.write("mlp/1/second.onnx", onnx("mlp_second.onnx"));
    let block = |name: &str| format!("[[block]]\nname = \"{name}\"\nfile = \"{name}.onnx\"\n");
    folder.write("mlp/model.toml", format!("walk = \"chain\"\nmax_batch = 2\n{}{}", block("first"), block("second")));
    let report = one(profile(folder.path(), cpu(), None, silent()));
    assert_eq!(report.error, None);
    assert_eq!(
        (report.inputs.as_slice(), report.outputs.as_slice()),
        (["x FP32 [-1, 4]".to_owned()].as_slice(), ["y FP32 [-1, 3]".to_owned()].as_slice())
    );
    let names: Vec<&str> = report.blocks.iter().map(|block| block.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
}

#[test]
fn an_emulated_model_needs_latencies_and_no_file() {
    let folder = TempRepository::new();
    folder.write("a/model.toml", EMULATED);
    folder.write("b/model.toml", "slo_ms = 50\n");
    folder.write("c/model.toml", "slo_ms = 4.5\nlatency_ms = [7.25, 8]\n");
    let reports = inspect(folder.path(), emulated()).unwrap();
    assert_eq!((reports[0].slo_ms, reports[0].max_batch), (Some(50.0), Some(8)));
    assert_eq!(reports[0].best_goodput_rps.map(f64::round), Some(667.0), "a batch of 8 each 12 ms");
    let error = reports[1].error.as_deref().unwrap();
    assert!(
        error.ends_with("b/model.toml: an emulated model needs its latencies; add alpha_ms and beta_ms, or latency_ms")
    );
    assert_eq!(reports[2].error, None, "an SLO out of reach is odd, not wrong");
    let warning = "c/model.toml: slo_ms = 4.5 is below the latency of one row, 7.25 ms: every request would miss it";
    assert!(reports[2].warnings[0].contains(warning), "{:?}", reports[2].warnings);
    assert_eq!(reports[2].best_goodput_rps, Some(0.0));
}

#[test]
fn published_latencies_are_found_by_the_models_name() {
    let folder = TempRepository::new();
    folder.write("resnet50/model.toml", "");
    folder.write("ResNet50V3/model.toml", "");
    folder.write("bert/model.toml", "slo_ms = 200\nmax_batch = 4\n");
    folder.write("own/model.toml", EMULATED);
    let target = LoadTarget { zoo: ZooDevice::from_name("1080ti"), devices: 8, ..emulated() };
    let reports = inspect(folder.path(), target).unwrap();
    let by_name = |name: &str| reports.iter().find(|report| report.name == name).unwrap();
    let resnet = by_name("resnet50");
    assert_eq!((resnet.slo_ms, resnet.max_batch), (Some(27.0), Some(10)), "batches that fit the paper's SLO");
    assert!((resnet.best_goodput_rps.unwrap() - 3021.7).abs() < 0.1, "{resnet:?}");
    assert_eq!((by_name("bert").slo_ms, by_name("bert").max_batch), (Some(200.0), Some(4)));
    assert_eq!(by_name("own").max_batch, Some(8), "what model.toml says goes first");
    let error = by_name("ResNet50V3").error.as_deref().unwrap();
    assert!(
        error.contains("no latency of \"ResNet50V3\" is published for 1080ti; rename the model to ResNet50"),
        "{error}"
    );
}

#[test]
fn a_reload_answers_with_the_new_version_before_the_old_one_goes() {
    let fixture = Fixture::new();
    fixture.folder.write("m/1/placeholder", "");
    let config = fixture.folder.write("m/model.toml", EMULATED);
    let repository = fixture.repository(emulated());
    repository.load_all().unwrap();
    repository.load("m", None).unwrap();
    assert_eq!(fixture.notes(), ["load m", "load m", "unload 1 while [m/1=2]"]);
    fixture.folder.write("m/2/placeholder", "");
    repository.load("m", None).unwrap();
    assert_eq!(fixture.notes(), ["load m", "unload 2 while [m/2=1]"]);
    std::fs::write(&config, "slo = 1").unwrap();
    let error = repository.load("m", None).unwrap_err();
    let kept = fixture.registry.get("m", "").unwrap();
    assert_eq!((kept.version.as_str(), fixture.notes().len()), ("2", 0), "what served goes on");
    let (_, state, reason) = fixture.index(&repository).remove(0);
    assert_eq!(state, "READY");
    assert!(reason.ends_with(&error) && reason.starts_with("serves what was loaded before"), "{reason}");
}

#[test]
fn a_failed_new_version_is_shown_beside_the_one_that_serves() {
    let fixture = Fixture::new();
    fixture.folder.write("m/1/model.onnx", onnx("mlp.onnx"));
    fixture.folder.write("m/model.toml", "latency_ms = [1]\n");
    let repository = fixture.repository(cpu());
    repository.load_all().unwrap();
    let broken = fixture.folder.write("m/2/model.onnx", "broken");
    repository.load("m", None).unwrap_err();
    let states = |rows: Vec<(String, String, String)>| rows.into_iter().map(|row| (row.0, row.1)).collect::<Vec<_>>();
    let row = |name: &str, state: &str| (name.to_owned(), state.to_owned());
    assert_eq!(states(fixture.index(&repository)), [row("m/1", "READY"), row("m/2", "UNAVAILABLE")]);
    std::fs::write(broken, onnx("mlp.onnx")).unwrap();
    repository.load("m", None).unwrap();
    assert_eq!(states(fixture.index(&repository)), [row("m/2", "READY")]);
}

#[test]
fn unload_and_load_by_name() {
    let fixture = Fixture::new();
    fixture.folder.write("m/model.toml", EMULATED);
    let repository = fixture.repository(emulated());
    repository.load_all().unwrap();
    repository.unload("m").unwrap();
    repository.unload("m").unwrap();
    assert_eq!(fixture.notes(), ["load m", "unload 1 while []"]);
    assert_eq!(fixture.index(&repository), [("m/1".to_owned(), "UNAVAILABLE".to_owned(), "unloaded".to_owned())]);
    fixture.folder.write("late/model.toml", EMULATED);
    assert_eq!(fixture.index(&repository)[1], ("late/".to_owned(), String::new(), String::new()));
    repository.load("late", None).unwrap();
    repository.load("m", None).unwrap();
    assert!(fixture.index(&repository).iter().all(|row| row.1 == "READY"));
    for name in ["missing", "../m"] {
        assert!(repository.unload(name).unwrap_err().contains("is not loaded"));
        let error = repository.load(name, None).unwrap_err();
        assert!(error.starts_with(&format!("Request for unknown model: '{name}' is not found; ")), "{error}");
        assert!(error.ends_with("holds late, m"), "{error}");
    }
}

#[test]
fn a_repository_that_cannot_be_read_is_an_error_and_an_empty_one_is_not() {
    let fixture = Fixture::new();
    assert_eq!(fixture.repository(emulated()).load_all(), Ok(vec![]));
    let gone: PathBuf = fixture.folder.path().join("gone");
    let error = inspect(&gone, emulated()).unwrap_err();
    assert!(error.contains("gone: cannot be read: "), "{error}");
}

/// The emulated engine, except for a model that makes it panic and one that it reads until
/// released.
struct Odd {
    emulated: EmulatedEngine,
    gate: Mutex<Receiver<()>>,
}

impl Executor for Odd {
    fn name(&self) -> &'static str {
        self.emulated.name()
    }

    fn device_key(&self) -> String {
        self.emulated.device_key()
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        match source.name.as_str() {
            "bomb" => panic!("index out of bounds\nsomewhere"),
            "slow" => self.gate.lock().recv().map_err(|error| LoadError(error.to_string()))?,
            _ => {}
        }
        self.emulated.load(source)
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        self.emulated.open(lanes, sink)
    }
}

/// An engine that refuses one model, and the emulated one for it.
struct Picky {
    own: Arc<Refusing>,
    emulated: Arc<EmulatedEngine>,
}

struct Refusing(EmulatedEngine);

impl Executor for Refusing {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn device_key(&self) -> String {
        self.0.device_key()
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        match source.name.starts_with("refused") {
            true => Err(LoadError("it has no operator Odd".to_owned())),
            false => self.0.load(source),
        }
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        self.0.open(lanes, sink)
    }
}

impl Executor for Picky {
    fn name(&self) -> &'static str {
        "emulated"
    }

    fn device_key(&self) -> String {
        self.own.device_key()
    }

    fn load(&self, source: &ModelSource) -> Result<Arc<dyn LoadedModel>, LoadError> {
        self.own.load(source)
    }

    fn alternatives(&self) -> Vec<Arc<dyn Executor>> {
        vec![self.own.clone(), self.emulated.clone()]
    }

    fn open(&self, lanes: usize, sink: Sink) -> Result<Box<dyn Device>, LoadError> {
        self.own.open(lanes, sink)
    }
}

#[test]
fn what_one_engine_cannot_run_goes_to_the_other_and_a_warning_says_so() {
    let fixture = Fixture::new();
    for name in ["plain", "refused"] {
        fixture.folder.write(&format!("{name}/model.toml"), EMULATED);
    }
    fixture.folder.write("broken/model.toml", "max_batch = 0\n");
    let new = || EmulatedEngine::new(EmulatedOptions::default());
    let engine = Picky { own: Arc::new(Refusing(new())), emulated: Arc::new(new()) };
    let mut reports = fixture.repository(LoadTarget::new(Arc::new(engine))).load_all().unwrap();
    reports.sort_by(|one, other| one.name.cmp(&other.name));
    let [broken, plain, refused] = &reports[..] else { panic!("{reports:?}") };
    // A cause that no engine can do anything about stands there once.
    assert_eq!(broken.error.as_ref().unwrap().matches("max_batch").count(), 1, "{broken:?}");
    assert_eq!((plain.engine, plain.warnings.len()), (Some("emulated"), 0), "{plain:?}");
    assert_eq!(refused.warnings, ["it runs on the emulated engine: it has no operator Odd"]);
}

#[test]
fn a_slow_model_and_a_panic_in_the_engine_stop_no_other_model() {
    let fixture = Fixture::new();
    for name in ["bomb", "fast", "slow"] {
        fixture.folder.write(&format!("{name}/model.toml"), EMULATED);
    }
    let (open_gate, gate) = channel();
    let engine = Odd { emulated: EmulatedEngine::new(EmulatedOptions::default()), gate: Mutex::new(gate) };
    let repository = fixture.repository(LoadTarget::new(Arc::new(engine)));
    let error = std::thread::scope(|scope| {
        let slow = scope.spawn(|| repository.load("slow", None));
        repository.load("fast", None).unwrap();
        repository.load("fast", None).unwrap();
        let error = repository.load("bomb", None).unwrap_err();
        assert_eq!(fixture.registry.ready_entries().len(), 1, "the slow one is still being read");
        open_gate.send(()).unwrap();
        slow.join().unwrap().unwrap();
        error
    });
    assert!(
        error.contains("bomb/1/model.onnx: the emulated engine failed on it: index out of bounds somewhere"),
        "{error}"
    );
    assert!(fixture.registry.get("slow", "").is_ok() && fixture.registry.get("fast", "").is_ok());
}
