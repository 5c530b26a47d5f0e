//! The access log: a JSON object for each call, or for a sample of them, in a file or on stderr.
//!
//! A call never waits for the log. A thread of its own writes the lines; if it cannot keep up,
//! lines are dropped, and the next line says how many. A file that has been moved away is opened
//! anew under its name, so that logs can be rotated.

use crate::config::AccessLogConfig;
use crate::limits::connection::ClientConnection;
use hyper::{HeaderMap, Request, Response, Version};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Largest number of lines that wait to be written.
const MAX_WAITING: usize = 4096;
/// Longest path that is logged, in bytes.
const MAX_PATH: usize = 512;
/// Interval at which the writer looks whether its file is still the one with its name.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// A line of the log.
#[derive(Debug, Serialize)]
struct AccessLine {
    /// Seconds since 1970, UTC, at which the call's head had arrived.
    time_s: f64,
    protocol: &'static str,
    peer: Option<IpAddr>,
    method: String,
    path: String,
    #[serde(flatten)]
    inference: Option<LoggedInference>,
    /// The status of HTTP, or the code of gRPC.
    status: u16,
    /// Milliseconds from the head of the call to the head of its answer.
    ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// Lines before this one that were dropped.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The inference that a call asked for; an answer carries it to the log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LoggedInference {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) rows: usize,
    pub(crate) late: bool,
}

pub(crate) struct AccessLog {
    lines: SyncSender<AccessLine>,
    one_in: u64,
    seen: AtomicU64,
    dropped: AtomicU64,
}

/// A call that will be logged.
pub(crate) struct LoggedCall {
    begun: Instant,
    line: AccessLine,
}

impl AccessLog {
    /// Opens the log and starts its writer.
    pub(crate) fn open(config: &AccessLogConfig) -> io::Result<AccessLog> {
        let target = LogTarget::open(config.file.as_deref())?;
        let (lines, received) = sync_channel(MAX_WAITING);
        thread::Builder::new().name("access-log".to_owned()).spawn(move || write_lines(&received, target))?;
        let one_in = u64::from(config.one_in.max(1));
        Ok(AccessLog { lines, one_in, seen: AtomicU64::new(0), dropped: AtomicU64::new(0) })
    }

    /// Returns the entry of a call, if it is one of those that are logged.
    pub(crate) fn begin<B>(&self, request: &Request<B>) -> Option<LoggedCall> {
        if !self.seen.fetch_add(1, Relaxed).is_multiple_of(self.one_in) {
            return None;
        }
        let path = request.uri().path();
        let is_grpc = request.version() == Version::HTTP_2 && has_grpc_type(request.headers());
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let line = AccessLine {
            time_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            protocol: if is_grpc { "grpc" } else { "http" },
            peer: request.extensions().get::<Arc<ClientConnection>>().map(|connection| connection.peer),
            method: request.method().to_string(),
            path: path[..path.floor_char_boundary(MAX_PATH)].to_owned(),
            inference: None,
            status: 0,
            ms: 0.0,
            traceparent: header("traceparent"),
            dropped: 0,
        };
        Some(LoggedCall { begun: Instant::now(), line })
    }

    /// Logs a call with its answer.
    pub(crate) fn end<B>(&self, call: LoggedCall, answer: &Response<B>) {
        let LoggedCall { begun, mut line } = call;
        line.ms = (begun.elapsed().as_secs_f64() * 1e6).round() / 1e3;
        line.inference = answer.extensions().get().cloned();
        line.status = match line.protocol {
            // Only the trailers name success.
            "grpc" => {
                answer.headers().get("grpc-status").and_then(|code| code.to_str().ok()?.parse().ok()).unwrap_or(0)
            }
            _ => answer.status().as_u16(),
        };
        line.dropped = self.dropped.swap(0, Relaxed);
        let dropped = line.dropped;
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(dropped + 1, Relaxed);
        }
    }
}

fn has_grpc_type(headers: &HeaderMap) -> bool {
    headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

enum LogTarget {
    Stderr,
    File { path: PathBuf, file: File, checked: Instant },
}

impl LogTarget {
    fn open(path: Option<&Path>) -> io::Result<LogTarget> {
        let Some(path) = path else { return Ok(LogTarget::Stderr) };
        let file = File::options().create(true).append(true).open(path)?;
        Ok(LogTarget::File { path: path.to_owned(), file, checked: Instant::now() })
    }

    /// Opens the file anew if another one, or none, has its name.
    fn follow(&mut self) -> io::Result<()> {
        let LogTarget::File { path, file, checked } = self else { return Ok(()) };
        if checked.elapsed() < REOPEN_INTERVAL {
            return Ok(());
        }
        *checked = Instant::now();
        let id = |of: io::Result<std::fs::Metadata>| of.map(|of| (of.dev(), of.ino())).ok();
        if id(std::fs::metadata(&*path)) != id(file.metadata()) {
            *file = File::options().create(true).append(true).open(&*path)?;
        }
        Ok(())
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        self.follow()?;
        match self {
            LogTarget::Stderr => io::stderr().lock().write_all(text),
            LogTarget::File { file, .. } => file.write_all(text),
        }
    }
}

/// Writes lines until the log is dropped, those that wait together.
fn write_lines(lines: &Receiver<AccessLine>, mut target: LogTarget) {
    let (mut text, mut said) = (Vec::new(), false);
    loop {
        match lines.recv_timeout(REOPEN_INTERVAL) {
            Ok(line) => append(&mut text, &line),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        }
        lines.try_iter().take(MAX_WAITING).for_each(|line| append(&mut text, &line));
        match target.write(&text) {
            Ok(()) => said = false,
            Err(error) if !said => {
                tracing::error!("the access log cannot be written: {error}");
                said = true;
            }
            Err(_) => {}
        }
        text.clear();
    }
}

fn append(text: &mut Vec<u8>, line: &AccessLine) {
    // Strings and numbers into memory always serialise; JSON escapes control characters.
    if serde_json::to_writer(&mut *text, line).is_ok() {
        text.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn call(log: &AccessLog, path: &str, status: u16) {
        let request = Request::builder().method("POST").uri(path).body(()).unwrap();
        if let Some(call) = log.begin(&request) {
            let mut answer = Response::builder().status(status).body(()).unwrap();
            let (model, version) = ("m".to_owned(), "1".to_owned());
            answer.extensions_mut().insert(LoggedInference { model, version, rows: 3, late: false });
            log.end(call, &answer);
        }
    }

    /// Waits until the writer has written this many lines.
    fn lines(path: &Path, count: usize) -> Vec<Value> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if lines.len() >= count {
                return lines;
            }
            assert!(Instant::now() < until, "{text}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_sample_of_the_calls_is_logged_and_a_moved_file_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let log = AccessLog::open(&AccessLogConfig { file: Some(path.clone()), one_in: 3 }).unwrap();
        (0..7).for_each(|at| call(&log, &format!("/v2/models/m/infer{at}"), 200 + at));
        let written = lines(&path, 3);
        let paths: Vec<&str> = written.iter().map(|line| line["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["/v2/models/m/infer0", "/v2/models/m/infer3", "/v2/models/m/infer6"]);
        let first = &written[0];
        assert_eq!((&first["status"], &first["rows"], &first["model"]), (&200.into(), &3.into(), &"m".into()));
        assert!(first["time_s"].as_f64() > Some(1.7e9) && first["ms"].is_number() && first["dropped"].is_null());
        let moved = folder.path().join("access.1");
        std::fs::rename(&path, &moved).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while std::fs::read_to_string(&path).unwrap_or_default().is_empty() {
            assert!(Instant::now() < until, "the file is not opened anew");
            (0..3).for_each(|_| call(&log, "/v2", 200));
            thread::yield_now();
        }
        assert_eq!(lines(&path, 1)[0]["path"], "/v2");
    }

    #[test]
    fn a_log_that_cannot_be_opened_is_an_error() {
        let config = AccessLogConfig { file: Some("/no/such/folder/log".into()), one_in: 1 };
        assert!(AccessLog::open(&config).is_err());
    }
}
