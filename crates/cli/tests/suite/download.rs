//! `hf://ORG/NAME` and `http(s)://HOST/…/model.onnx` from a hub on loopback: redirects, checksums,
//! pinned revisions, and the cache when the hub is gone.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secret";

/// A hub of one model, `org/tiny`, whose ONNX file lies on another address behind a redirect.
struct Hub {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    /// Whether files are damaged on their way.
    damages: Arc<AtomicBool>,
    gone: Arc<AtomicBool>,
}

fn model() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/models/double.onnx")).unwrap()
}

fn sum_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Hub {
    fn start() -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let files = TcpListener::bind("127.0.0.1:0").unwrap();
        let elsewhere = files.local_addr().unwrap().to_string();
        let hub = Hub {
            address: listener.local_addr().unwrap().to_string(),
            asked: Arc::default(),
            damages: Arc::default(),
            gone: Arc::default(),
        };
        for listener in [listener, files] {
            let (asked, damages, gone) = (hub.asked.clone(), hub.damages.clone(), hub.gone.clone());
            let elsewhere = elsewhere.clone();
            thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if !gone.load(Ordering::Relaxed) {
                        answer(stream, &asked, damages.load(Ordering::Relaxed), &elsewhere);
                    }
                }
            });
        }
        hub
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// Runs `ripieno models` on an address, and returns whether it succeeds, its JSON and its log.
    fn models(&self, cache: &Path, address: &str) -> (bool, Value, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ripieno"));
        command.args(["models", address, "--no-load", "--format", "json"]).env("XDG_CACHE_HOME", cache);
        command
            .env("HF_ENDPOINT", format!("http://{}", self.address))
            .env("HF_TOKEN", TOKEN)
            .env("RIPIENO_LOG", "info");
        command.env("RIPIENO_TOKEN", "token-of-a-server");
        let output = command.output().unwrap();
        let printed = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.success(), printed, String::from_utf8(output.stderr).unwrap())
    }
}

fn answer(mut stream: TcpStream, asked: &Mutex<Vec<String>>, is_damaged: bool, elsewhere: &str) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(path) = lines.next().and_then(|line| Some(line.split(' ').nth(1)?.to_owned())) else { return };
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let authorized = headers.iter().any(|line| line == &format!("authorization: bearer {TOKEN}"));
    let is_known = headers.iter().any(|line| line == "if-none-match: \"one\"");
    assert!(!headers.iter().any(|line| line.contains("token-of-a-server")), "a server's token is for no hub");
    asked.lock().unwrap().push(path.clone());
    let onnx = model();
    let reply = |status: &str, more: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n", body.len());
        [head.as_bytes(), body].concat()
    };
    let sent = match path.as_str() {
        "/api/models/org/tiny/revision/main?blobs=true" if authorized => {
            let large = json!({ "rfilename": "onnx/model.onnx", "lfs": { "sha256": sum_of(&onnx) } });
            let listing = json!({ "sha": COMMIT, "siblings": [large, { "rfilename": "config.json" }, { "rfilename": "README.md" }] });
            reply("200 OK", "", listing.to_string().as_bytes())
        }
        "/org/tiny/resolve/0123456789abcdef0123456789abcdef01234567/config.json" => reply("200 OK", "", b"{}"),
        "/org/tiny/resolve/0123456789abcdef0123456789abcdef01234567/onnx/model.onnx" => {
            reply("302 Found", &format!("Location: http://{elsewhere}/large/1\r\n"), b"")
        }
        "/large/1" if authorized => reply("400 Bad Request", "", b"a token came along"),
        "/plain/double.onnx" if is_known => reply("304 Not Modified", "", b""),
        "/large/1" | "/plain/double.onnx" if is_damaged => reply("200 OK", "", &onnx[1..]),
        "/large/1" | "/plain/double.onnx" => reply("200 OK", "ETag: \"one\"\r\n", &onnx),
        _ => reply("404 Not Found", "", b""),
    };
    stream.write_all(&sent).unwrap();
}

#[test]
fn a_model_of_the_hub_is_copied_once_and_served_from_the_cache() {
    let (hub, cache) = (Hub::start(), tempfile::tempdir().unwrap());
    hub.damages.store(true, Ordering::Relaxed);
    let (succeeds, _, log) = hub.models(cache.path(), "hf://org/tiny");
    assert!(!succeeds && log.contains("changed or damaged on the way"), "{log}");
    hub.damages.store(false, Ordering::Relaxed);
    hub.asked();

    let (succeeds, printed, log) = hub.models(cache.path(), "hf://org/tiny");
    assert!(succeeds && printed["models"][0]["name"] == "tiny", "{printed} {log}");
    assert!(log.contains(&format!("hf://org/tiny@{COMMIT} takes no other")) && !log.contains(TOKEN), "{log}");
    assert_eq!(hub.asked().len(), 4, "the list, two files, and a redirect");
    hub.models(cache.path(), "hf://org/tiny");
    assert_eq!(hub.asked().len(), 1, "a revision may have moved");
    let pinned = format!("hf://org/tiny@{COMMIT}");
    assert!(hub.models(cache.path(), &pinned).0 && hub.asked().is_empty(), "a commit never changes");

    hub.gone.store(true, Ordering::Relaxed);
    let (succeeds, _, log) = hub.models(cache.path(), "hf://org/tiny");
    assert!(succeeds && log.contains("the copy of an earlier download is served"), "{log}");
    let (succeeds, _, log) = hub.models(cache.path(), "hf://org/other");
    assert!(!succeeds && log.contains("cannot reach"), "{log}");
}

#[test]
fn a_file_is_asked_for_again_unless_its_checksum_is_given() {
    let (hub, cache) = (Hub::start(), tempfile::tempdir().unwrap());
    let address = format!("http://{}/plain/double.onnx", hub.address);
    let pinned = format!("{address}#sha256={}", sum_of(&model()));
    let (succeeds, printed, log) = hub.models(cache.path(), &address);
    assert!(succeeds && printed["models"][0]["name"] == "double", "{printed} {log}");
    assert!(log.contains(&pinned), "{log}");
    assert!(hub.models(cache.path(), &address).0);
    assert_eq!(hub.asked().len(), 2, "the second is not modified");
    assert!(hub.models(cache.path(), &pinned).0 && hub.models(cache.path(), &pinned).0);
    assert_eq!(hub.asked().len(), 1);
    let other = format!("{address}#sha256={}", "0".repeat(64));
    let (succeeds, _, log) = hub.models(cache.path(), &other);
    assert!(!succeeds && log.contains("expected 000"), "{log}");
    for (wrong, says) in [("ftp://a/b.onnx", "not read"), ("hf://org", "write hf://ORG/NAME")] {
        let (succeeds, _, log) = hub.models(cache.path(), wrong);
        assert!(!succeeds && log.contains(says), "{log}");
    }
    let missing = format!("http://{}/plain/other.onnx", hub.address);
    let (succeeds, _, log) = hub.models(cache.path(), &missing);
    assert!(!succeeds && log.contains("404"), "{log}");
}
