//! `why`, `doctor` and `simulate --what-if` on a recorded live run of an emulated device whose SLO
//! is too short for its load.

use crate::live;
use bytes::Bytes;
use ripieno_base::Nanos;
use ripieno_executor::Tensor;
use ripieno_model::{DataType, Profile};
use ripieno_runtime::Job;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::channel;
use std::time::Duration;

const REQUESTS: usize = 40;

/// Records a burst: ℓ(b) = 2 + 0.5·b ms, batches of at most four, and an SLO of 15 ms.
fn recorded(name: &str) -> PathBuf {
    let (path, engine, model) = live::start(name, Profile::linear(0.5, 2.0, 4).unwrap(), Nanos::from_millis(15));
    let (send, answers) = channel();
    for _ in 0..REQUESTS {
        let tensor =
            Tensor { name: "x".into(), datatype: DataType::Uint8, shape: vec![1, 1], data: Bytes::from(vec![0]) };
        let (send, inputs) = (send.clone(), vec![tensor].into());
        let on_answer = Box::new(move |answer: ripieno_runtime::JobResult| send.send(answer.is_ok()).unwrap());
        engine.submit(Job::new(model, inputs, 1, on_answer)).unwrap();
    }
    for _ in 0..REQUESTS {
        answers.recv_timeout(Duration::from_secs(120)).unwrap();
    }
    assert!(engine.drain(Duration::from_secs(60)));
    engine.shutdown();
    path
}

fn run(words: &[&str], recording: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ripieno")).args(words).arg(recording).output().unwrap()
}

fn json_of(words: &[&str], recording: &Path) -> Value {
    let output = run(words, recording);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_burst_is_named_and_the_change_that_doctor_names_removes_it() {
    let recording = recorded("burst.jsonl");
    let why = json_of(&["why", "--all", "--format", "json"], &recording);
    let bad = why["bad"].as_u64().unwrap();
    assert_eq!(why["requests"], REQUESTS);
    assert!(bad >= 10, "{why}");
    let named = why["all"].as_array().unwrap().iter().filter(|each| each["cause"] == json!("overload")).count() as u64;
    assert!(named * 20 >= bad * 19, "{why}");

    let table = String::from_utf8(run(&["why"], &recording).stdout).unwrap();
    assert!(table.contains("more load than the devices can do") && table.contains("device 0.0"), "{table}");

    let doctor = json_of(&["doctor", "--format", "json"], &recording);
    let change = doctor["change"].as_str().unwrap_or_else(|| panic!("a cure: {doctor}"));
    assert!(change.starts_with("slo.m=") || change.starts_with("devices="), "{doctor}");
    let promised = doctor["tried"].as_array().unwrap().iter().find(|each| each["change"] == *change).unwrap();
    let runs = json_of(&["simulate", "--format", "json", "--what-if", change, "--recording"], &recording);
    let late = |run: &Value| run["late"].as_u64().unwrap() + run["dropped"].as_u64().unwrap();
    assert_eq!(late(&runs[2]), promised["bad"].as_u64().unwrap());
    let (before, after) = (late(&runs[1]), late(&runs[2]));
    assert!(before >= 10 && after * 20 <= before, "{runs}");

    let refused = run(&["simulate", "--what-if", "slo.other=3", "--recording"], &recording);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no such model, only: m"));
}

#[test]
fn a_simulation_has_a_report_in_one_file() {
    let recording = recorded("report.jsonl");
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html");
    let output = run(&["simulate", "--report", report.to_str().unwrap(), "--recording"], &recording);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = std::fs::read_to_string(report).unwrap();
    assert!(html.contains("unified (measured)") && html.matches("<svg").count() >= 3, "{html}");
    assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("http"), "one file that needs no other");
}
