//! `serve` on a path without a servable model: it exits with the reason, unless models may come
//! later; then it is live but not ready until one serves.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Bound on every wait, far beyond the time that is needed.
const PATIENCE: Duration = Duration::from_secs(60);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ripieno-nothing-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, file: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that ends with the test.
struct Serve(Child);

impl Serve {
    fn start(path: &Path, flags: &[&str]) -> Serve {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
        command.arg("serve").arg(path).args(["--format", "json"]).args(flags);
        for port in ["--http", "--grpc", "--metrics"] {
            command.args([port, "127.0.0.1:0"]);
        }
        Serve(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Returns the exit code and the log; no code if the server stays up.
    fn end(mut self) -> (Option<i32>, String) {
        let (sender, log) = channel();
        let mut stderr = self.0.stderr.take().unwrap();
        // The log ends with the process.
        let reader = std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).unwrap();
            sender.send(()).unwrap();
            log
        });
        let ended = log.recv_timeout(PATIENCE).is_ok();
        if !ended {
            self.0.kill().unwrap();
        }
        let status = self.0.wait().unwrap();
        (status.code().filter(|_| ended), reader.join().unwrap())
    }

    /// Returns the address of HTTP, once the models are read.
    fn http(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        ready["http"].as_str().unwrap().to_owned()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the status of a call.
fn status(http: &str, method: &str, path: &str) -> u16 {
    let mut stream = TcpStream::connect(http).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn double() -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models/double.onnx");
    std::fs::read(file).unwrap()
}

#[test]
fn a_path_without_a_servable_model_is_an_exit_with_the_reason() {
    let folder = Folder::new("exits");
    let file = folder.write("file/model.pt", b"PK");
    folder.write("flat/net.pt", b"PK");
    folder.write("versioned/net/1/model.pt", b"PK");
    folder.write("versioned/net/model.toml", b"");
    folder.write("typo/net/1/model.onnx", &double());
    folder.write("typo/net/model.toml", b"slo = 5\n");
    std::fs::create_dir(folder.0.join("empty")).unwrap();
    let flat = folder.0.join("flat");
    let cases: [(&Path, &[&str]); 5] = [
        (&file, &["model.pt: not an ONNX file (PyTorch)", "torch.onnx.export"]),
        (&flat, &["holds no models (net.pt is no ONNX file (PyTorch): export it", "NAME/1/model.onnx"]),
        (&folder.0.join("versioned"), &["(model.pt is no ONNX file (PyTorch): export it", "none of the 1 models"]),
        (&folder.0.join("typo"), &["did you mean slo_ms?", "none of the 1 models can be served"]),
        (&folder.0.join("empty"), &["empty holds no models; put one at"]),
    ];
    for (path, reasons) in cases {
        let (code, log) = Serve::start(path, &[]).end();
        assert_eq!(code, Some(1), "{}: {log}", path.display());
        assert!(reasons.iter().all(|reason| log.contains(reason)), "{}: {log}", path.display());
    }
    // No call and no poll makes an ONNX file of it.
    let (code, log) = Serve::start(&file, &["--model-control-mode", "explicit"]).end();
    assert!(code == Some(1) && log.contains("not an ONNX file"), "{log}");
}

#[test]
fn a_server_that_waits_for_models_is_live_and_ready_once_one_serves() {
    let folder = Folder::new("waits");
    let mut server = Serve::start(&folder.0, &["--model-control-mode", "explicit"]);
    let http = server.http();
    assert_eq!(status(&http, "GET", "/v2/health/live"), 200);
    assert_eq!(status(&http, "GET", "/v2/health/ready"), 503);
    folder.write("double/1/model.onnx", &double());
    assert_eq!(status(&http, "POST", "/v2/repository/models/double/load"), 200);
    assert_eq!(status(&http, "GET", "/v2/health/ready"), 200);
    assert_eq!(status(&http, "POST", "/v2/repository/models/double/unload"), 200);
    assert_eq!(status(&http, "GET", "/v2/health/ready"), 503);
}

#[test]
fn a_polled_repository_may_begin_without_a_model() {
    let folder = Folder::new("polled");
    folder.write("double/1/model.pt", b"PK");
    let mut server = Serve::start(&folder.0, &["--poll-s", "1"]);
    let http = server.http();
    assert_eq!(status(&http, "GET", "/v2/health/ready"), 503);
    folder.write("double/1/model.onnx", &double());
    let until = Instant::now() + PATIENCE;
    while status(&http, "GET", "/v2/health/ready") != 200 {
        assert!(Instant::now() < until, "the model that came is served");
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    assert_eq!(status(&http, "GET", "/v2/models/double/ready"), 200);
}

#[test]
fn without_a_gpu_all_missing_parts_are_named() {
    let folder = Folder::new("gpu");
    let file = folder.write("model.onnx", b"not read");
    let (code, log) = Serve::start(&file, &["--device", "cuda:4095"]).end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("cannot run models on cuda:4095: ") && !log.contains("panicked"), "{log}");
    let (code, log) = Serve::start(&file, &["--device", "cuda:0", "--engine", "cpu"]).end();
    assert!(code == Some(1) && log.contains("--engine cpu computes on the CPU only"), "{log}");
    let (code, log) = Serve::start(&file, &["--device", "cuda:one"]).end();
    assert!(code == Some(2) && log.contains("use cuda:0"), "{log}");
}
