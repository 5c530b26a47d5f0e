//! `ripieno models` says READY of what `serve` serves, and of nothing else.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a repository of these models of the executor's tests; `none` is a file that is no model.
fn repository(name: &str, models: &[&str]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ripieno-{name}-{}", std::process::id()));
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models");
    let _ = std::fs::remove_dir_all(&folder);
    for model in models {
        let at = folder.join(model).join("1");
        std::fs::create_dir_all(&at).unwrap();
        match *model {
            "none" => std::fs::write(at.join("model.onnx"), "no model").unwrap(),
            model => drop(std::fs::copy(files.join(format!("{model}.onnx")), at.join("model.onnx")).unwrap()),
        }
    }
    folder
}

/// Returns the exit code, the state of each model by name, and the log.
fn models(folder: &Path, flags: &[&str]) -> (Option<i32>, Vec<(String, String)>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ripieno"))
        .args(["models", "--format", "json"])
        .arg(folder)
        .args(flags)
        .output()
        .unwrap();
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |model: &Value, key: &str| model[key].as_str().unwrap().to_owned();
    let states = listed["models"].as_array().unwrap().iter().map(|model| (text(model, "name"), text(model, "state")));
    (output.status.code(), states.collect(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_serve_would_not_serve_is_not_ready() {
    // The second fails on rows of eight numbers, so it is served without a measure; the third is no
    // model.
    let folder = repository("models-tries", &["double", "seven_wide", "none"]);
    let eight = "[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [-1, 8]\n";
    std::fs::write(folder.join("seven_wide/model.toml"), eight).unwrap();
    let (code, states, log) = models(&folder, &[]);
    let state = |name: &str| states.iter().find(|(model, _)| model == name).unwrap().1.as_str();
    let found = ["double", "seven_wide", "none"].map(state);
    assert_eq!((code, found), (Some(1), ["READY", "READY", "UNAVAILABLE"]), "{log}");
    assert!(log.contains("1 of 3 models cannot be served"), "{log}");
    std::fs::remove_dir_all(folder.join("none")).unwrap();
    let (code, states, log) = models(&folder, &["--no-load"]);
    assert_eq!(code, Some(0), "{log}");
    assert!(states.iter().all(|(_, state)| state == "not tried"), "{states:?}");
    let table =
        Command::new(env!("CARGO_BIN_EXE_ripieno")).args(["models", "--no-load"]).arg(&folder).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("without --no-load it is loaded as serve does"), "{table}");
    std::fs::write(folder.join("double/model.toml"), "slo = 5\n").unwrap();
    let (code, states, _) = models(&folder, &["--no-load"]);
    assert!(code == Some(1) && states.contains(&("double".to_owned(), "UNAVAILABLE".to_owned())), "{states:?}");
    std::fs::remove_dir_all(folder).unwrap();
}
