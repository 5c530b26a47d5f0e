//! Three recordings of live overload on a real engine, replayed: the default policy answers at
//! least as much in time as the published rule does with the same arrivals and the same pauses of
//! the machine.
//!
//! `tests/python/make_recordings.py` made them: a stack of dense layers, an encoder over requests
//! that differ in length, and an LSTM in cells, on one thread of ONNX Runtime beside the load
//! generator. The first is of a run in which batch sizes followed the profile while batches
//! occupied the device for longer.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Returns useful answers per second.
fn useful(recording: &Path, more: &[&str]) -> f64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
    command.args(["simulate", "--format", "json", "--recording"]).arg(recording).args(more);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    run["goodput_rps"].as_f64().unwrap()
}

fn keeps_what_published_rules_keep(name: &str, rules: &[&[&str]]) {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings").join(format!("{name}.jsonl.gz"));
    let policies = [("the default policy", &["--as-served"][..]), ("unified", &["--as-served", "--policy", "unified"])];
    let served = policies.map(|(policy, arguments)| (policy, useful(&recording, arguments)));
    for rule in rules {
        let published = useful(&recording, rule);
        for (policy, served) in served {
            println!("{name}: {policy} {served:.0}/s, {rule:?} {published:.0}/s");
            assert!(served >= 0.95 * published, "{name}, {policy}: {served:.0}/s of {published:.0}/s under {rule:?}");
        }
    }
}

#[test]
fn whole_models() {
    keeps_what_published_rules_keep(
        "whole",
        &[&["--policy", "deferred"], &["--policy", "timeout", "--option", "gather=window"]],
    );
}

#[test]
fn padded_models() {
    keeps_what_published_rules_keep(
        "padded",
        &[&["--policy", "dva"], &["--policy", "lazy"], &["--policy", "bucketed"]],
    );
}

#[test]
fn models_in_cells() {
    keeps_what_published_rules_keep("cells", &[&["--policy", "cellular"], &["--policy", "late"]]);
}
