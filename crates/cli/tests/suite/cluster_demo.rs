//! `ripieno cluster-demo` in a short form: hand-over of real processes under load, none of which
//! outlives it.

use serde_json::Value;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SAFETY: Duration = Duration::from_secs(120);

fn demo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
    command.args(["cluster-demo", "--backends", "4", "--seconds", "0.4", "--rate", "200", "--format", "json"]);
    command.stderr(Stdio::inherit());
    command
}

fn results(words: &[&str]) -> Value {
    let output = demo().args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn whichever_process_ends_or_hangs_each_request_has_one_answer_and_no_backend_follows_two() {
    for words in [["--kill", "primary"], ["--hang", "primary"], ["--kill", "backend"], ["--hang", "frontend"]] {
        let results = results(&[&words[..], &["--runs", "2"]].concat());
        for none in ["lost", "duplicated", "split_brain"] {
            assert_eq!(results[none], 0, "{words:?}: {none} in {results}");
        }
        assert!(results["requests"].as_u64() > Some(100) && results["answered"] == results["requests"], "{results}");
        let handovers = results["handover_ms"].as_array().unwrap().len();
        assert_eq!(handovers, if words[1] == "primary" { 2 } else { 0 }, "{words:?}: {results}");
    }
}

#[test]
fn its_processes_end_with_it_even_if_it_is_killed() {
    let folder = std::env::temp_dir().join(format!("ripieno-demo-ends-{}", std::process::id()));
    let mut demo = demo().args(["--runs", "1000", "--keep"]).arg(&folder).stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let until = |what: &str, is: &dyn Fn() -> bool| {
        while !is() {
            assert!(begun.elapsed() < SAFETY, "never: {what}");
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
    };
    // A scheduler's log contains its address, and a backend's is there once both schedulers are.
    let logs = || -> Vec<PathBuf> {
        let files = std::fs::read_dir(&folder).into_iter().flatten();
        files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "log")).collect()
    };
    until("it starts", &|| logs().iter().any(|path| path.to_string_lossy().contains("backend-3")));
    let addresses: Vec<String> = logs()
        .iter()
        .filter_map(|path| {
            path.file_stem()?.to_str()?.strip_prefix("scheduler-").map(|name| name.replace(".1-", ".1:"))
        })
        .collect();
    assert_eq!(addresses.len(), 2);
    let listens = |address: &String| TcpStream::connect(address).is_ok();
    assert!(addresses.iter().all(listens));
    demo.kill().unwrap();
    demo.wait().unwrap();
    until("its schedulers end", &|| !addresses.iter().any(listens));
    std::fs::remove_dir_all(&folder).unwrap();
}
