//! The program's roles as processes, models for them, and calls over HTTP.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const SAFETY: Duration = Duration::from_secs(60);
pub(crate) const ANYWHERE: &str = "127.0.0.1:0";

/// A process that is killed at the end of the test.
pub(crate) struct Process {
    pub(crate) child: Child,
    /// The JSON that it printed when it was ready.
    pub(crate) ready: Value,
}

impl Process {
    pub(crate) fn start(words: &[&str]) -> Process {
        Process::start_with(words, &[])
    }

    /// Starts a process that sees these variables, too.
    pub(crate) fn start_with(words: &[&str], variables: &[(&str, &str)]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
        command.envs(variables.iter().copied()).args(words).stderr(Stdio::null());
        Process::spawn(command)
    }

    /// Starts a process by its command, and waits until it is ready.
    pub(crate) fn spawn(mut command: Command) -> Process {
        command.args(["--format", "json"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{command:?} printed {line:?}: {error}"));
        Process { child, ready }
    }

    pub(crate) fn address(&self, of: &str) -> &str {
        self.ready[of].as_str().unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Kills the process, as kill -9 does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that is removed at the end of the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("ripieno-cluster-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn add(&self, model: &str, file: Option<&str>, settings: &str) {
        let at = self.0.join(model);
        std::fs::create_dir_all(at.join("1")).unwrap();
        std::fs::write(at.join("model.toml"), settings).unwrap();
        if let Some(file) = file {
            let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models");
            std::fs::copy(files.join(file), at.join("1/model.onnx")).unwrap();
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn backend(repository: &Folder, scheduler: &str, device: &str) -> Process {
    Process::start(&["backend", repository.path(), "--scheduler", scheduler, "--device", device])
}

pub(crate) fn frontend(scheduler: &str) -> Process {
    let ports = ["--http", ANYWHERE, "--grpc", ANYWHERE, "--metrics", ANYWHERE, "--data", ANYWHERE];
    Process::start(&[&["frontend", "--scheduler", scheduler], &ports[..]].concat())
}

/// Returns the status, whether there is a time to retry, and the body.
pub(crate) fn call(http: &str, head: &str, body: &str) -> (u16, bool, String) {
    let mut stream = TcpStream::connect(http).unwrap();
    let length = body.len();
    write!(stream, "{head} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase().contains("\r\nretry-after: "), body.to_owned())
}

pub(crate) fn infer(http: &str, model: &str, inputs: &Value) -> (u16, bool, String) {
    call(http, &format!("POST /v2/models/{model}/infer"), &json!({ "inputs": inputs }).to_string())
}

pub(crate) fn until_ready(http: &str, is: bool) {
    let begun = Instant::now();
    while (call(http, "GET /v2/health/ready", "").0 == 200) != is {
        assert!(begun.elapsed() < SAFETY, "ready is never {is}");
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
}

pub(crate) fn fp32(name: &str, shape: &[usize], data: &[i64]) -> Value {
    json!([{ "name": name, "datatype": "FP32", "shape": shape, "data": data }])
}

/// Returns a model whose answer is its input, with late requests refused.
pub(crate) fn echo(name: &str) -> Folder {
    let models = Folder::new(name);
    let tensor = |kind: &str| format!("[[{kind}]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [-1, 1]\n");
    let settings = "alpha_ms = 0.1\nbeta_ms = 2\nslo_ms = 5000\nmax_batch = 4\nlate = \"answer\"\n";
    models.add("m", None, &format!("{settings}{}{}", tensor("input"), tensor("output")));
    models
}
