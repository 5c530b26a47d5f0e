//! Models and configurations uploaded by load calls.

use super::{Fixture, cpu, onnx};
use crate::live::LiveRepository;
use crate::registry::{Repository, Upload};
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

fn upload(config: Option<&str>, files: &[(&str, Vec<u8>)]) -> Upload {
    let files = files.iter().map(|(path, content)| ((*path).to_owned(), content.clone().into()));
    Upload { config: config.map(str::to_owned), files: files.collect() }
}

fn model(config: Option<&str>) -> Upload {
    upload(config, &[("2/model.onnx", onnx("mlp.onnx"))])
}

/// Returns the upload folders of a model with this name, of all running processes.
fn folders(name: &str) -> Vec<PathBuf> {
    let of_a_store =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ripieno-model-"));
    let all = std::env::temp_dir().read_dir().unwrap().flatten().map(|entry| entry.path());
    all.filter(of_a_store).map(|folder| folder.join(name)).filter(|folder| folder.is_dir()).collect()
}

fn open(fixture: &Fixture) -> LiveRepository {
    let repository = fixture.repository(cpu()).with_overrides(MIB);
    repository.load_all().unwrap();
    repository
}

#[test]
fn an_uploaded_model_serves_until_unloaded_and_leaves_no_files() {
    let fixture = Fixture::new();
    let repository = open(&fixture);
    let config = r#"{"max_batch_size": 5, "parameters": {"slo_ms": {"string_value": "70"}},
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}]}"#;
    repository.load("brought", Some(&model(Some(config)))).unwrap();
    let entry = fixture.registry.get("brought", "2").unwrap();
    assert_eq!((entry.max_batch, entry.slo.span.as_millis_f64()), (5, 70.0));
    assert_eq!(folders("brought").len(), 1);
    // It is in no repository, but was not unloaded either.
    assert!(repository.reload().unwrap().is_empty());
    assert!(fixture.registry.get("brought", "").is_ok());
    // Another upload replaces it, without a configuration; one that fails to load does not affect
    // it.
    repository.load("brought", Some(&model(None))).unwrap();
    let broken = upload(None, &[("2/model.onnx", b"no model".to_vec())]);
    let error = repository.load("brought", Some(&broken)).unwrap_err();
    assert!(error.starts_with("brought/2/model.onnx: "), "clients learn no folders: {error}");
    assert!(fixture.registry.get("brought", "2").is_ok());
    assert_eq!(folders("brought").len(), 1);
    repository.unload("brought").unwrap();
    assert!(fixture.registry.get("brought", "").is_err());
    assert_eq!(folders("brought"), [] as [PathBuf; 0]);
}

#[test]
fn a_configuration_stands_for_the_repositorys_own_until_the_model_is_loaded_again() {
    let fixture = Fixture::new();
    fixture.folder.write("own/1/model.onnx", onnx("mlp.onnx"));
    fixture.folder.write("own/3/model.onnx", onnx("mlp.onnx"));
    fixture.folder.write("own/model.toml", "slo_ms = 20\nmax_batch = 3\n");
    fixture.folder.write("single.onnx", onnx("mlp.onnx"));
    let repository = open(&fixture);
    let seen = |version: &str| {
        let entry = fixture.registry.get("own", version).unwrap();
        (entry.version.clone(), entry.max_batch)
    };
    assert_eq!(seen(""), ("3".to_owned(), 3));
    let config = r#"{"max_batch_size": 6, "version_policy": {"specific": {"versions": ["1"]}}}"#;
    repository.load("own", Some(&upload(Some(config), &[]))).unwrap();
    assert_eq!(seen(""), ("1".to_owned(), 6));
    assert!(repository.reload().unwrap().is_empty(), "it goes on as it was loaded");
    repository.load("own", None).unwrap();
    assert_eq!(seen(""), ("3".to_owned(), 3));
    for (name, words) in [("missing", "is not found"), ("single", "bring it along")] {
        let error = repository.load(name, Some(&upload(Some("{}"), &[]))).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn uploads_that_are_invalid_or_too_large_are_refused() {
    let fixture = Fixture::new();
    fixture.folder.write("own/1/model.onnx", onnx("mlp.onnx"));
    let repository = open(&fixture);
    let file = |path: &str| upload(None, &[(path, onnx("mlp.onnx"))]);
    let cases = [
        ("m", file("model.onnx"), "names no version"),
        ("m", file("one/model.onnx"), "has no number of a version"),
        ("m", file("01/model.onnx"), "has no number of a version"),
        ("m", file("../model.onnx"), "has no number of a version"),
        ("m", file("1/../../model.onnx"), "begins with a dot"),
        ("m", file("1/a/model.onnx"), "is no plain name"),
        ("m", file("1//etc/passwd"), "is no plain name"),
        ("m", file("1/a\nb"), "is no plain name"),
        ("m", file("1/"), "is empty"),
        ("../m", file("1/model.onnx"), "begins with a dot"),
        ("a/b", file("1/model.onnx"), "is no plain name"),
        ("", file("1/model.onnx"), "is empty"),
        ("m", file("1/other.onnx"), "there is no such file"),
        ("m", upload(None, &[("1/model.onnx", vec![0; MIB as usize + 1])]), "--load-overrides"),
        ("own", upload(Some("{"), &[]), "no configuration of a model in JSON"),
        ("own", upload(Some(r#"{"max_batchsize": 5}"#), &[]), "max_batchsize"),
        ("own", upload(Some(r#"{"batch_input": [{}]}"#), &[]), "own/config.pbtxt:"),
        ("own", upload(Some(&" ".repeat(70_000)), &[]), "it may have 65536"),
    ];
    for (name, wrong, words) in cases {
        let error = repository.load(name, Some(&wrong)).unwrap_err();
        assert!(error.contains(words) && !error.contains("ripieno-model-"), "{name}: {error}");
    }
    assert_eq!(folders("m"), [] as [PathBuf; 0]);
    // A refused upload holds nothing.
    let nearly = |name: &str| (format!("1/{name}"), vec![0; MIB as usize - 100_000]);
    let (weights, content) = nearly("weights.bin");
    let large = upload(None, &[("1/model.onnx", onnx("mlp.onnx")), (&weights, content)]);
    repository.load("large", Some(&large)).unwrap();
    assert!(repository.load("larger", Some(&large)).unwrap_err().contains("unload some"));
    repository.unload("large").unwrap();
    repository.load("larger", Some(&large)).unwrap();
    let closed = fixture.repository(cpu());
    assert!(closed.load("m", Some(&model(None))).unwrap_err().contains("--load-overrides"));
}
