//! A server of ours on free loopback ports, and the load generator.

use crate::steps::{output, root};
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The release build.
pub(crate) fn release() -> PathBuf {
    root().join("target/release/ripieno")
}

/// A server that runs until it is dropped or stopped.
pub(crate) struct Server {
    child: Child,
    pub(crate) http: String,
    pub(crate) grpc: String,
}

impl Server {
    /// Serves a repository, or one model, and waits until it is loaded.
    pub(crate) fn start(binary: &Path, repository: &Path, options: &[&str]) -> Result<Server> {
        let ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        let mut command = Command::new(binary);
        command.arg("serve").arg(repository).args(["--format", "json"]).args(ports).args(options);
        let mut child =
            command.current_dir(root()).stdout(Stdio::piped()).spawn().context("cannot start the server")?;
        let stdout = child.stdout.take().context("the server has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let ready: Value =
            serde_json::from_str(&line).map_err(|error| anyhow!("the server printed {line:?}: {error}"))?;
        let address = |key: &str| ready[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in {line}"));
        Ok(Server { child, http: format!("http://{}", address("http")?), grpc: format!("grpc://{}", address("grpc")?) })
    }

    /// Processor time of all its threads, in clock ticks.
    pub(crate) fn ticks(&self) -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The second field is the name in parentheses, which may hold anything; utime and stime are
        // the 14th and 15th.
        let after_name = stat.rsplit_once(')').context("an unexpected form of /proc/PID/stat")?.1;
        let field = |at: usize| after_name.split_whitespace().nth(at).and_then(|field| field.parse::<u64>().ok());
        field(11).zip(field(12)).map(|(user, system)| user + system).context("no times in /proc/PID/stat")
    }

    /// Lets it answer what is under way and end by itself, so that a recording is complete.
    pub(crate) fn stop(mut self) -> Result<()> {
        output(Command::new("kill").arg(self.child.id().to_string()))?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is in flight any more; there is nothing to drain.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Returns the JSON that `ripieno` prints with these arguments.
pub(crate) fn ask(binary: &Path, arguments: &[&str]) -> Result<Value> {
    let printed = output(Command::new(binary).args(arguments).args(["--format", "json"]).current_dir(root()))?;
    Ok(serde_json::from_str(&printed)?)
}
