//! `serve --shards`: real models on real devices, each scheduled by its own shard, and the
//! recording replays.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Far beyond the latency on a loaded machine.
const MODEL: &str = "slo_ms = 60000\nmax_batch = 8\n";
const THREADS: usize = 4;
const EACH: usize = 60;

/// A server and a folder that end with the test.
struct Served {
    folder: PathBuf,
    process: Child,
    http: String,
}

fn serve(folder: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
    command.arg("serve").arg(folder.join("models")).args(["--format", "json"]).args(flags);
    for port in ["--http", "--grpc", "--metrics"] {
        command.args([port, "127.0.0.1:0"]);
    }
    command
}

/// Returns a repository of these models of the executor's tests.
fn repository(name: &str, models: &[&str]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ripieno-{name}-{}", std::process::id()));
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models");
    for model in models {
        let at = folder.join("models").join(model);
        std::fs::create_dir_all(at.join("1")).unwrap();
        std::fs::copy(files.join(format!("{model}.onnx")), at.join("1/model.onnx")).unwrap();
        std::fs::write(at.join("model.toml"), MODEL).unwrap();
    }
    folder
}

impl Served {
    fn start(folder: PathBuf, flags: &[&str]) -> Served {
        let mut process =
            serve(&folder, flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let http = ready["http"].as_str().unwrap().to_owned();
        Served { folder, process, http }
    }

    /// Returns a model's answer to a row of numbers.
    fn infer(&self, model: &str, input: &str, shape: &[usize], row: &[i64]) -> Vec<i64> {
        let input = json!({ "name": input, "datatype": "FP32", "shape": shape, "data": row });
        let body = json!({ "inputs": [input] }).to_string();
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(
            stream,
            "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.http,
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{model}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let answer: Value = serde_json::from_str(body).unwrap();
        let data = answer["outputs"][0]["data"].as_array().unwrap();
        data.iter().map(|number| number.as_f64().unwrap() as i64).collect()
    }

    /// Ends the server as an operator does.
    fn end(&mut self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn real_models_are_served_in_shards_and_the_run_replays() {
    let folder = repository("serve-shards", &["double", "pick_third"]);
    let recording = folder.join("run.jsonl");
    let recorded = recording.to_str().unwrap().to_owned();
    let policy = ["--policy", "eager"];
    let flags = ["--shards", "2", "--devices", "2", "--record", &recorded];
    let mut served = Served::start(folder, &[&policy[..], &flags].concat());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let served = &served;
            scope.spawn(move || {
                for at in 0..EACH {
                    let number = (thread * 7 + at) as i64;
                    // Several widths, which share no batch.
                    let row = vec![number; 1 + at % 3];
                    let doubled: Vec<i64> = row.iter().map(|number| 2 * number).collect();
                    assert_eq!(served.infer("double", "x", &[1, row.len()], &row), doubled);
                    assert_eq!(served.infer("pick_third", "g", &[1], &[number]), [number, -number]);
                }
            });
        }
    });
    served.end();
    let text = std::fs::read_to_string(&recording).unwrap();
    let started = |line: &&str| line.contains("\"Start\"");
    let (others, first): (Vec<&str>, Vec<&str>) =
        text.lines().filter(started).partition(|line| line.starts_with("{\"of\":[1,"));
    assert!(!others.is_empty() && !first.is_empty(), "both shards have started batches");
    let replay = Command::new(env!("CARGO_BIN_EXE_ripieno"))
        .args(["replay", "--format", "json"])
        .arg(&recording)
        .output()
        .unwrap();
    let replayed: Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert_eq!((&replayed["equal"], &replayed["truncated"]), (&json!(true), &json!(false)), "{}", error(&replay));
    let simulate =
        Command::new(env!("CARGO_BIN_EXE_ripieno")).args(["simulate", "--recording"]).arg(&recording).output();
    let simulated = error(&simulate.unwrap());
    assert!(simulated.contains("2 shards recorded beside each other"), "{simulated}");
}

#[test]
fn a_policy_that_does_not_run_in_shards_is_refused() {
    let folder = repository("refused-shards", &["double"]);
    let cases = [
        (&["--policy", "lazy"][..], "\"lazy\" does not run in shards; these do: timeout, eager, deferred"),
        (&[], "--shards needs --policy, since unified does not run in shards; these do: timeout, eager, deferred"),
    ];
    for (policy, told) in cases {
        let output = serve(&folder, &[&["--shards", "2"], policy].concat()).output().unwrap();
        let error = error(&output);
        assert!(output.status.code() == Some(1) && error.contains(told), "{error}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}
