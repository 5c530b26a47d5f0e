//! What a request costs outside the model: server processor time and latency, with a model of one small layer.
//!
//! Starts the release server on free loopback ports, drives it with its own load generator at fixed rates, and
//! reads the server's processor time from the system before and after. What the server uses when idle is measured for
//! as long and taken off. Linux only, for `/proc`.

use crate::steps::{cargo, output, root, step};
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// One dense layer.
const MODEL: &str = "crates/executor/tests/models/mlp_first.onnx";
const NAME: &str = "mlp_first";
/// A low load, and one at which wake-ups are shared by many requests.
const RATES: [f64; 2] = [500.0, 4000.0];
const SECONDS: u32 = 10;

pub(crate) fn run() -> Result<()> {
    step("build the server", &mut cargo(&["build", "--release", "--package", "ripieno-cli"]))?;
    let ticks_per_s: f64 = output(Command::new("getconf").arg("CLK_TCK"))?.trim().parse().context("getconf CLK_TCK")?;
    let server = Server::start()?;
    let cpu_s = || Ok::<_, anyhow::Error>(server.ticks()? as f64 / ticks_per_s);
    let before = cpu_s()?;
    sleep(Duration::from_secs(u64::from(SECONDS)));
    let idle_s = cpu_s()? - before;
    println!("idle: {:.2} % of a core", 100.0 * idle_s / f64::from(SECONDS));
    println!("{:<14}{:>12}{:>10}{:>10}{:>24}", "protocol", "requests/s", "p50 ms", "p99 ms", "CPU us per request");
    for (name, address) in [("HTTP, binary", &server.http), ("gRPC", &server.grpc)] {
        for rate in RATES {
            let before = cpu_s()?;
            let report = bench(address, rate)?;
            let used_s = cpu_s()? - before - idle_s;
            let number = |key: &str| report[key].as_f64().with_context(|| format!("the load report has no {key}"));
            let (requests, p50, p99) = (number("requests")?, number("p50_ms")?, number("p99_ms")?);
            let (per_s, each_us) = (requests / f64::from(SECONDS), 1e6 * used_s / requests);
            println!("{name:<14}{per_s:>12.0}{p50:>10.3}{p99:>10.3}{each_us:>24.0}");
        }
    }
    Ok(())
}

fn bench(address: &str, rate: f64) -> Result<Value> {
    let (rate, seconds) = (rate.to_string(), SECONDS.to_string());
    let arguments = [
        "bench",
        address,
        "--model",
        NAME,
        "--rate",
        &rate,
        "--duration",
        &seconds,
        "--warmup",
        "0",
        "--format",
        "json",
    ];
    Ok(serde_json::from_str(&output(Command::new(binary()).args(arguments).current_dir(root()))?)?)
}

fn binary() -> std::path::PathBuf {
    root().join("target/release/ripieno")
}

struct Server {
    child: Child,
    http: String,
    grpc: String,
}

impl Server {
    fn start() -> Result<Server> {
        let ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
        let mut command = Command::new(binary());
        command.args(["serve", MODEL, "--format", "json"]).args(ports).current_dir(root()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("the server has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let ready: Value =
            serde_json::from_str(&line).map_err(|error| anyhow!("the server printed {line:?}: {error}"))?;
        let address = |key: &str| ready[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in {line}"));
        Ok(Server { child, http: format!("http://{}", address("http")?), grpc: format!("grpc://{}", address("grpc")?) })
    }

    /// Processor time of all its threads, in clock ticks.
    fn ticks(&self) -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The second field is the name in parentheses, which may hold anything; utime and stime are the 14th and 15th.
        let after_name = stat.rsplit_once(')').context("an unexpected form of /proc/PID/stat")?.1;
        let field = |at: usize| after_name.split_whitespace().nth(at).and_then(|field| field.parse::<u64>().ok());
        field(11).zip(field(12)).map(|(user, system)| user + system).context("no times in /proc/PID/stat")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is in flight any more; there is nothing to drain.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}
