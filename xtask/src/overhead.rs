//! Cost of a request outside the model: server processor time and latency, with a model of one
//! small layer.
//!
//! Starts the release server on free loopback ports, drives it with its own load generator at fixed
//! rates, and reads the server's processor time from the system before and after. What the server
//! uses when idle is measured for as long and taken off. Linux only, for `/proc`.

use crate::server::{Server, ask, release};
use crate::steps::{cargo, output, step};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
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
    let server = Server::start(&release(), Path::new(MODEL), &[])?;
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
    ask(&release(), &["bench", address, "--model", NAME, "--rate", &rate, "--duration", &seconds, "--warmup", "0"])
}
