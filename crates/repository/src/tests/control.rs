//! Model control modes.

use super::{Fixture, cpu, onnx};
use crate::live::ModelControl;
use crate::registry::Repository;

const WHOLE: &str = "platform: \"ensemble\" max_batch_size: 4
    input { name: \"x\" data_type: TYPE_FP32 dims: 4 } output { name: \"y\" data_type: TYPE_FP32 dims: 3 }
    ensemble_scheduling { step { model_name: \"a\"
        input_map { key: \"x\" value: \"x\" } output_map { key: \"y\" value: \"y\" } } }";

fn fixture() -> Fixture {
    let fixture = Fixture::new();
    for name in ["a", "b", "c"] {
        fixture.folder.write(&format!("{name}/1/model.onnx"), onnx("mlp.onnx"));
    }
    fixture.folder.write("whole/config.pbtxt", WHOLE);
    fixture.folder.write("whole/1/.keep", "");
    fixture
}

fn explicit(names: &[&str]) -> ModelControl {
    ModelControl::Explicit(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn named_models_serve_at_the_start_and_others_on_load() {
    let fixture = fixture();
    let repository = fixture.repository(cpu()).with_control(explicit(&["b", "whole", "missing"]));
    let reports = repository.load_all().unwrap();
    let shown: Vec<_> = reports.iter().map(|report| (report.name.as_str(), report.error.is_none())).collect();
    assert_eq!(shown, [("a", true), ("b", true), ("whole", true), ("missing", false)], "a is a step of whole");
    assert!(reports[3].error.as_ref().unwrap().contains("correct --load-model"), "{reports:?}");
    assert!(fixture.registry.get("c", "").is_err());
    // A reload does not load models that do not serve.
    assert_eq!(repository.reload().unwrap(), []);
    fixture.folder.write("b/model.toml", "max_batch = 2");
    assert_eq!(repository.reload().unwrap().into_iter().map(|report| report.name).collect::<Vec<_>>(), ["b"]);
    assert!(fixture.registry.get("c", "").is_err());
    repository.load("c", None).unwrap();
    assert!(fixture.registry.get("c", "").is_ok());
    fixture.folder.write("missing/1/model.onnx", onnx("mlp.onnx"));
    repository.load("missing", None).unwrap();
    assert!(fixture.registry.index().iter().all(|row| row.state == "READY"), "{:?}", fixture.registry.index());
}

#[test]
fn all_or_none_may_be_named() {
    for (names, served) in [(&["*"][..], 4), (&[], 0)] {
        let fixture = fixture();
        let repository = fixture.repository(cpu()).with_control(explicit(names));
        assert_eq!(repository.load_all().unwrap().len(), served);
        assert_eq!(repository.index().len(), 4, "calls can see what there is to load");
    }
}

#[test]
fn calls_are_refused_where_they_have_no_say() {
    let fixture = fixture();
    let repository = fixture.repository(cpu()).with_control(ModelControl::Closed);
    assert_eq!(repository.load_all().unwrap().len(), 4);
    for refused in [repository.load("a", None), repository.unload("a")] {
        assert!(refused.unwrap_err().contains("explicit model load / unload is not allowed"));
    }
    assert!(fixture.registry.get("a", "").is_ok());
    std::fs::remove_dir_all(fixture.folder.path().join("c")).unwrap();
    repository.reload().unwrap();
    assert!(fixture.registry.get("c", "").is_err(), "what is gone is unloaded all the same");
}
