//! The processes of the demo. None outlives it, however it ends: each is started by a shell that
//! waits for the end of its input, which only the demo holds open, and then kills it.

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A script that starts the given command, prints its process id, and kills it at the end of the
/// input. Interrupts are the demo's. The output belongs to the process alone from then on, and ends
/// with it. A demo that is killed meanwhile reads no process id: the script outlives that.
const GUARD: &str =
    r#"trap "" INT TERM; "$@" & child=$!; trap "" PIPE; echo $child; exec >&-; read -r _; kill -9 $child"#;

/// Longest time for a process to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A process, with its command for restarting it.
pub(crate) struct Process {
    words: Vec<String>,
    log: Option<String>,
    speaks: bool,
    guard: Child,
    pid: Pid,
    /// Discards the output, and ends with the process.
    #[cfg_attr(not(feature = "reproduce"), expect(dead_code, reason = "only `reproduce --live` waits"))]
    output: Option<JoinHandle<()>>,
    /// The JSON that it printed when it was ready, if it does.
    pub(crate) ready: Value,
}

impl Process {
    /// Starts a role of our own, which prints JSON when it is ready.
    pub(crate) fn role(words: &[&str], log: String) -> anyhow::Result<Process> {
        let own = std::env::current_exe().context("cannot find this program")?;
        let own = own.to_str().context("the path of this program is no text")?;
        let words = [own].iter().chain(words).chain(&["--format", "json"]).map(|word| (*word).to_owned()).collect();
        Process::start(words, Some(log), true)
    }

    fn start(words: Vec<String>, log: Option<String>, speaks: bool) -> anyhow::Result<Process> {
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "sh"]).args(&words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let append = |path: &String| File::options().append(true).create(true).open(path);
        let stderr = log.as_ref().map(append).transpose().context("cannot write a log")?;
        command.stderr(stderr.map_or(Stdio::null(), Stdio::from));
        let mut guard = command.spawn().context("cannot start sh")?;
        let mut lines = BufReader::new(guard.stdout.take().context("it has an output")?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).context("the shell says no number")?;
        line.clear();
        if speaks {
            lines.read_line(&mut line)?;
        }
        // The rest of the output is discarded.
        let output = Some(thread::spawn(move || lines.lines().map_while(Result::ok).for_each(drop)));
        let ready = if speaks { serde_json::from_str(&line) } else { Ok(Value::Null) };
        let mut process = Process { words, log, speaks, guard, pid, output, ready: Value::Null };
        process.ready = ready.with_context(|| format!("{} did not start", process.words.join(" ")))?;
        Ok(process)
    }

    /// Returns a field of the JSON that it printed.
    pub(crate) fn says(&self, name: &str) -> &str {
        self.ready[name].as_str().unwrap_or_default()
    }

    /// Sends a signal to the process itself, whose id is valid until its shell has ended.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("cannot signal {}", self.words.join(" ")))
    }

    /// Waits for the end of the process, which a signal has asked for.
    #[cfg(feature = "reproduce")]
    pub(crate) fn wait(mut self) {
        if let Some(output) = self.output.take() {
            // A thread that only reads does not panic.
            let _ = output.join();
        }
    }

    /// Restarts the process.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.end();
        *self = Process::start(self.words.clone(), self.log.clone(), self.speaks)?;
        Ok(())
    }

    fn end(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns ports of loopback that are free at this moment.
pub(crate) fn free(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let bound: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    Ok(bound.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}

/// An etcd of three nodes.
pub(crate) struct Etcd {
    pub(crate) nodes: Vec<Process>,
    pub(crate) urls: Vec<String>,
}

/// Returns the named etcd program, or the one in the path, if there is one.
pub(crate) fn find_etcd(named: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    if let Some(path) = named {
        ensure!(path.is_file(), "{} does not exist (--etcd)", path.display());
        return Ok(Some(path.to_owned()));
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::split_paths(&paths).map(|folder| folder.join("etcd")).find(|path| path.is_file()))
}

impl Etcd {
    pub(crate) fn start(program: &Path, folder: &Path) -> anyhow::Result<Etcd> {
        let url = |address: &SocketAddr| format!("http://{address}");
        let (clients, peers) = (free(3)?, free(3)?);
        let all: Vec<String> = (0..3).map(|at| format!("n{at}={}", url(&peers[at]))).collect();
        let start = |at: usize| {
            let data = folder.join(format!("etcd-{at}"));
            let (client, peer) = (url(&clients[at]), url(&peers[at]));
            let words = [program.as_os_str(), OsStr::new("--data-dir"), data.as_os_str()];
            let mut words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            let settings = [
                ("--name", format!("n{at}")),
                ("--listen-client-urls", client.clone()),
                ("--advertise-client-urls", client),
                ("--listen-peer-urls", peer.clone()),
                ("--initial-advertise-peer-urls", peer),
                ("--initial-cluster", all.join(",")),
                ("--heartbeat-interval", "20".to_owned()),
                ("--election-timeout", "200".to_owned()),
            ];
            words.extend(settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
            Process::start(words, None, false)
        };
        let nodes = (0..3).map(start).collect::<anyhow::Result<_>>()?;
        Ok(Etcd { nodes, urls: clients.iter().map(url).collect() })
    }
}

/// A folder, and whether it is kept at the end.
pub(crate) struct DemoFolder(pub(crate) PathBuf, bool);

impl DemoFolder {
    /// Returns the folder to keep, or a temporary one.
    pub(crate) fn new(keep: Option<&Path>) -> anyhow::Result<DemoFolder> {
        let own = || std::env::temp_dir().join(format!("ripieno-cluster-demo-{}", std::process::id()));
        let path = keep.map_or_else(own, Path::to_owned);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(DemoFolder(path, keep.is_some()))
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for DemoFolder {
    fn drop(&mut self) {
        if !self.1 {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Returns the answer of a server to a GET, with its head.
pub(crate) fn get(http: &SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(http)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Polls until the condition holds.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is()? {
        if begun.elapsed() > START_TIMEOUT {
            bail!("it does not happen: {what}");
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reader of the process id has gone before it is printed, and so has the input.
    #[test]
    fn a_process_ends_with_a_demo_that_is_killed_while_it_starts_one() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "sh", "sh", "-c", "sleep 3; echo survived >&2"])
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        guard.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        guard.wait().unwrap();
        assert!(!said.contains("survived"), "{said}");
    }
}
