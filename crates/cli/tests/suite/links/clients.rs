//! Clients of a cluster: each sends requests of all walks over its own connections, and has one
//! answer to each.

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that a client waits for an answer, longer than any fault of the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request, and the right answer to it.
pub(crate) struct Sample {
    pub(crate) model: String,
    pub(crate) inputs: Value,
    /// Outputs as [`meaning`] reads them.
    pub(crate) right: Vec<Value>,
}

/// An answer over HTTP.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    retry_after: bool,
    pub(crate) body: String,
}

/// Returns what must be equal in any two answers to a request. The last digits of logits depend on
/// the batch, the largest one does not.
pub(crate) fn meaning(body: &str) -> Vec<Value> {
    let answer: Value = serde_json::from_str(body).unwrap();
    let read = |output: &Value| {
        let data = output["data"].as_array().unwrap();
        if output["datatype"] != "FP32" {
            return json!([output["name"], data]);
        }
        let numbers = || data.iter().map(|number| number.as_f64().unwrap());
        let largest = numbers().fold(f64::MIN, f64::max);
        json!([output["name"], numbers().position(|number| number == largest)])
    };
    answer["outputs"].as_array().unwrap().iter().map(read).collect()
}

/// A connection to a frontend, kept over requests.
pub(crate) struct HttpClient(BufReader<TcpStream>);

impl HttpClient {
    pub(crate) fn connect(http: &str) -> io::Result<HttpClient> {
        let stream = TcpStream::connect(http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(HttpClient(BufReader::new(stream)))
    }

    /// Sends a request and returns its answer, which must be all that has arrived.
    pub(crate) fn infer(&mut self, id: &str, sample: &Sample) -> io::Result<HttpAnswer> {
        let body = json!({ "id": id, "inputs": sample.inputs }).to_string();
        let (model, length) = (&sample.model, body.len());
        let head = format!("POST /v2/models/{model}/infer HTTP/1.1\r\nHost: it\r\nContent-Length: {length}\r\n\r\n");
        self.0.get_mut().write_all((head + &body).as_bytes())?;
        let answer = self.answer()?;
        self.0.get_ref().set_nonblocking(true)?;
        let more = self.0.fill_buf().map(<[u8]>::len);
        self.0.get_ref().set_nonblocking(false)?;
        match more {
            Ok(0) => {}
            Ok(bytes) => return Err(io::Error::other(format!("a second answer, {bytes} bytes"))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(answer)
    }

    fn answer(&mut self) -> io::Result<HttpAnswer> {
        let (mut head, mut length, mut retry_after) = (String::new(), 0, false);
        self.line(&mut head)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no answer: {head}")))?;
        loop {
            let mut line = String::new();
            self.line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", bytes)) => length = bytes.parse().map_err(io::Error::other)?,
                Some(("retry-after", _)) => retry_after = true,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(HttpAnswer { status, retry_after, body: String::from_utf8(body).map_err(io::Error::other)? })
    }

    fn line(&mut self, line: &mut String) -> io::Result<()> {
        match self.0.read_line(line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// A frontend that the load is sent to.
pub(crate) struct Target {
    pub(crate) http: String,
    /// Number of times that it was killed: connections to it may break then.
    pub(crate) killed: AtomicUsize,
}

/// The load, and the answers so far.
pub(crate) struct Load {
    pub(crate) frontends: Vec<Target>,
    pub(crate) samples: Vec<Sample>,
    /// Right answers, by frontend.
    pub(crate) right: Vec<AtomicUsize>,
    /// Answers that tell clients to try again.
    pub(crate) again: AtomicUsize,
    /// Requests to a frontend that was killed.
    pub(crate) broken: AtomicUsize,
    pub(crate) over: AtomicBool,
    faults: Mutex<Vec<String>>,
}

impl Load {
    pub(crate) fn new(frontends: Vec<String>, samples: Vec<Sample>) -> Load {
        let right = frontends.iter().map(|_| AtomicUsize::new(0)).collect();
        let target = |http| Target { http, killed: AtomicUsize::new(0) };
        let frontends = frontends.into_iter().map(target).collect();
        let (again, broken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Load { frontends, samples, right, again, broken, over: AtomicBool::new(false), faults: Mutex::default() }
    }

    /// Returns the number of answers.
    pub(crate) fn answers(&self) -> usize {
        let right: usize = self.right.iter().map(|right| right.load(Ordering::Relaxed)).sum();
        right + self.again.load(Ordering::Relaxed)
    }

    /// Panics if a request had no answer, a wrong one, or two.
    pub(crate) fn check(&self) {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(faults.is_empty(), "{} requests went wrong: {}", faults.len(), faults.join("\n"));
    }

    /// Sends one request after the other to a frontend, until the load is over.
    pub(crate) fn send(&self, client: usize) {
        let at = client % self.frontends.len();
        let target = &self.frontends[at];
        let (mut connection, mut number) = (None, 0);
        while !self.over.load(Ordering::Relaxed) {
            number += 1;
            let (id, sample) = (format!("{client}-{number}"), &self.samples[(client + number) % self.samples.len()]);
            let killed = target.killed.load(Ordering::SeqCst);
            let begun = Instant::now();
            match self.ask(&mut connection, at, &id, sample) {
                Ok(wait) => thread::park_timeout(wait),
                Err(error) => {
                    connection = None;
                    // A frontend that was killed at any time since.
                    if target.killed.load(Ordering::SeqCst) > killed || killed % 2 == 1 {
                        self.broken.fetch_add(1, Ordering::Relaxed);
                        thread::park_timeout(Duration::from_millis(20));
                        continue;
                    }
                    let fault = format!("{id} of {}: {error}, after {:?}", sample.model, begun.elapsed());
                    self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
                }
            }
        }
    }

    /// Sends a request, and counts its answer. Returns the time to wait before the next one.
    fn ask(&self, kept: &mut Option<HttpClient>, at: usize, id: &str, sample: &Sample) -> io::Result<Duration> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => HttpClient::connect(&self.frontends[at].http)?,
        };
        let HttpAnswer { status, retry_after, body } = connection.infer(id, sample)?;
        *kept = Some(connection);
        match (status, retry_after) {
            (200, _) => {
                let own = format!("\"id\":\"{id}\"");
                if !body.contains(&own) || meaning(&body) != sample.right {
                    return Err(io::Error::other(format!("a wrong answer: {body}")));
                }
                self.right[at].fetch_add(1, Ordering::Relaxed);
                Ok(Duration::from_millis(2))
            }
            (503, true) => {
                self.again.fetch_add(1, Ordering::Relaxed);
                Ok(Duration::from_millis(50))
            }
            _ => Err(io::Error::other(format!("{status}: {body}"))),
        }
    }
}
