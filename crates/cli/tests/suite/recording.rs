//! `ripieno simulate --recording`: a live run on an emulated device is recorded by the runtime, and
//! its arrivals simulated.

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

const REQUESTS: usize = 60;

/// Records a live run of requests of one to three rows, one after the other; ℓ(b) = 1 + 0.1·b ms.
fn recorded(name: &str) -> PathBuf {
    // Far more time than a loaded machine needs, so that every request is answered.
    let (path, engine, model) = live::start(name, Profile::linear(0.1, 1.0, 8).unwrap(), Nanos::from_millis(60_000));
    for number in 0..REQUESTS {
        let rows = 1 + number % 3;
        let data = Bytes::from(vec![0; rows]);
        let tensor = Tensor { name: "x".into(), datatype: DataType::Uint8, shape: vec![rows as i64, 1], data };
        let (send, answer) = channel();
        let on_answer = Box::new(move |answer| drop(send.send(answer)));
        let inputs = vec![tensor].into();
        let job = Job::new(model, inputs, rows, on_answer);
        engine.submit(job).unwrap();
        answer.recv_timeout(Duration::from_secs(120)).unwrap().unwrap();
    }
    assert!(engine.drain(Duration::from_secs(60)));
    engine.shutdown();
    path
}

fn simulate(recording: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
    command.args(["simulate", "--format", "json", "--recording"]).arg(recording).args(more).output().unwrap()
}

fn summary(recording: &Path, more: &[&str]) -> Value {
    let output = simulate(recording, more);
    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn error(recording: &Path, more: &[&str]) -> String {
    let output = simulate(recording, more);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_arrivals_of_a_live_run_are_simulated_under_any_policy_slo_and_number_of_devices() {
    let recording = recorded("live.jsonl");
    let served = summary(&recording, &[]);
    for run in [&served, &served["measured"]] {
        assert_eq!((&run["requests"], &run["worst_bad_rate"]), (&json!(REQUESTS), &json!(0.0)), "{served}");
        // One row alone takes 1.1 ms.
        assert!(run["p50_ms"].as_f64().unwrap() >= 1.1, "{served}");
    }
    assert_eq!((&served["policy"], &served["measured"]["policy"]), (&json!("unified"), &json!("unified (measured)")));
    // Each request was sent when the previous one was answered; three rows take 1.3 ms, and this
    // machine adds nothing.
    let exact = summary(&recording, &["--exact"]);
    let p50 = exact["p50_ms"].as_f64().unwrap();
    assert!((1.1..=1.3).contains(&p50) && p50 <= served["measured"]["p50_ms"].as_f64().unwrap(), "{exact}");

    for more in [&["--policy", "lazy"][..], &["--policy", "clockwork", "--devices", "3"], &["--as-served"]] {
        assert_eq!(summary(&recording, more)["requests"], REQUESTS, "{more:?}");
    }
    // One row needs 1.1 ms, which is within this SLO, and three need 1.3 ms, which are not.
    let tight = summary(&recording, &["--slo-ms", "1.2", "--policy", "eager", "--exact"]);
    assert!(tight["worst_bad_rate"].as_f64().unwrap() > 0.3, "{tight}");
    assert!(error(&recording, &["--slo-ms", "0.5"]).contains("one request alone takes 1.1 ms"));
    assert!(error(&recording, &["--rate", "5"]).contains("--rate has no effect"));
}

#[test]
fn cut_and_foreign_files_are_named_with_their_line() {
    let recording = recorded("cut.jsonl");
    let text = std::fs::read_to_string(&recording).unwrap();
    let write = |text: &str| std::fs::write(&recording, text).unwrap();

    // A killed server leaves a partial line: everything before it counts.
    let half = text.match_indices("{\"at\"").nth(text.lines().count() / 2).unwrap().0;
    write(&text[..half + 9]);
    let requests = summary(&recording, &[])["requests"].as_u64().unwrap();
    assert!((10..REQUESTS as u64).contains(&requests), "{requests}");

    write(&format!("{}\nnonsense\n", text.lines().next().unwrap()));
    let said = error(&recording, &[]);
    assert!(
        said.contains("cut.jsonl:2: not a line of a recording") && said.contains("ripieno serve --record"),
        "{said}"
    );

    write("rate = 100.0\n");
    assert!(error(&recording, &[]).contains("cut.jsonl:1: not a line of a recording"));

    write(&format!("{}\n", text.lines().next().unwrap()));
    assert!(error(&recording, &[]).contains("holds no request"));

    write("");
    assert!(error(&recording, &[]).contains("cut.jsonl:1: not a line of a recording: the file is empty"));

    std::fs::write(&recording, b"\xff\xfe\0\n").unwrap();
    assert!(error(&recording, &[]).contains("cut.jsonl:1: not a line of a recording"));

    // Lines are bounded, so a file that is no recording is not read into memory whole.
    std::fs::File::create(&recording).unwrap().set_len(1 << 33).unwrap();
    assert!(error(&recording, &[]).contains("cut.jsonl:1: not a line of a recording: the line is longer than"));

    write("{\"ripieno_recording\":6,\"of\":\"another kind\"}\n");
    assert!(error(&recording, &[]).contains("cut.jsonl:1: a recording of version 6"));

    // A request whose model was never loaded.
    let (header, rest) = text.split_once('\n').unwrap();
    let unloaded: Vec<_> = rest.lines().filter(|line| !line.contains("ModelLoaded")).collect();
    write(&format!("{header}\n{}\n", unloaded.join("\n")));
    let said = error(&recording, &[]);
    assert!(said.contains("no such model has been loaded") && said.contains("record the run anew"), "{said}");

    write(&text.replacen("\"ripieno_recording\":5", "\"ripieno_recording\":1", 1));
    assert!(error(&recording, &[]).contains("cut.jsonl:1: a recording of version 1"));

    write(&text.replacen("\"policy\":\"unified\"", "\"policy\":\"mine\"", 1));
    assert!(error(&recording, &[]).contains("give another with --policy"));
}
