//! Policies side by side: the same model, devices and requests, on one live server after the other.

use super::Live;
use crate::bench::inputs::{Filling, requests};
use crate::bench::load::{LoadReport, Plan, open_loop};
use crate::bench::target::{Client, Protocol};
use crate::devices::{Device, DeviceArgs};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::bounds::staggered_bound;
use ripieno_model::zoo::ZooDevice;
use ripieno_report::{Table, number};
use ripieno_sched::{OptionValue, Options};
use ripieno_workload::{Arrival, Arrivals};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MODEL: &str = "ResNet50";
const GPU: &str = "1080ti";
const DEVICES: u16 = 2;
/// Not counted at the start of each run.
const WARMUP: Nanos = Nanos::from_millis(500);
/// The offered load, of what the devices could answer if requests came evenly spaced.
const LOAD: f64 = 0.75;
const SEED: u64 = 1;
/// A policy's title, its name in the catalogue, and its options.
type Contestant = (&'static str, &'static str, &'static [(&'static str, &'static str)]);
/// One of each: nothing, today's servers, no window at all, ours for throughput, ours as served by default.
const CONTESTANTS: [Contestant; 5] = [
    ("serial", "serial", &[]),
    ("timeout 5 ms, as most servers", "timeout", &[("gather", "fifo"), ("drop", "expired")]),
    ("eager", "eager", &[]),
    ("deferred, for efficiency", "deferred", &[("objective", "efficiency")]),
    ("deferred, for latency (default)", "deferred", &[("objective", "latency")]),
];

/// All runs, and what they have in common.
#[derive(Serialize)]
pub(super) struct Comparison {
    model: &'static str,
    gpu: &'static str,
    devices: u16,
    slo_ms: f64,
    offered_rps: f64,
    policies: Vec<Row>,
}

/// One policy under the load.
#[derive(Serialize)]
struct Row {
    policy: &'static str,
    goodput_rps: f64,
    bad_rate: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    mean_batch: f64,
    busy_fraction: f64,
}

pub(super) async fn run(repository: &Path, seconds: f64, show_progress: bool) -> anyhow::Result<Comparison> {
    let gpu = ZooDevice::from_name(GPU).context("the demo's GPU is in the published tables")?;
    let published = gpu.find(MODEL).context("the demo's model is in the published tables")?;
    let slo = Nanos::from_millis_f64(published.slo_ms);
    let rate = LOAD * staggered_bound(&published.profile(64)?, slo, usize::from(DEVICES)).goodput_rps;
    let bar = if show_progress { ProgressBar::new(CONTESTANTS.len() as u64) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("  under load: {msg} [{bar:25}] {elapsed}")?);
    let mut policies = Vec::new();
    for (name, policy, options) in CONTESTANTS {
        bar.set_message(name);
        let options = options.iter().map(|&(key, value)| (key.to_owned(), OptionValue::Text(value.to_owned())));
        policies.push(contest(repository, gpu, (name, policy, options.collect()), rate, slo, seconds).await?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let slo_ms = published.slo_ms;
    Ok(Comparison { model: MODEL, gpu: GPU, devices: DEVICES, slo_ms, offered_rps: rate, policies })
}

async fn contest(
    repository: &Path,
    gpu: ZooDevice,
    (name, policy, options): (&'static str, &str, Options),
    rate: f64,
    slo: Nanos,
    seconds: f64,
) -> anyhow::Result<Row> {
    let devices = DeviceArgs { device: Device::Emulated(Some(gpu)), devices: DEVICES, ..DeviceArgs::default() };
    let live = Live::start(repository, devices, policy, options).await?;
    let mut client = Client::new(&live.http.to_string(), Protocol::Http, MODEL, 256)?;
    let inputs = client.describe().await?.inputs;
    client.prepare(&requests(&inputs, &Filling { rows: 1, seed: SEED, ..Filling::default() })?, false)?;
    let end = WARMUP + Nanos::from_secs_f64(seconds);
    let due = Arrivals::new(Arrival::Poisson, rate, SEED, 0)?.take_while(move |&due| due < Time::ORIGIN + end);
    let plan = Plan {
        due: Box::new(due),
        warmup: WARMUP,
        end,
        slo: Some(slo),
        timeout: Duration::from_secs(5),
        max_in_flight: 256,
        max_outstanding: 5_000,
    };
    let report = open_loop(Arc::new(client), plan, &ProgressBar::hidden()).await?;
    let row = row(name, &report, &live, end);
    live.stop().await?;
    row
}

/// Batches and busy time are those of the whole run, warm-up included: both policies and devices start from nothing.
fn row(policy: &'static str, report: &LoadReport, live: &Live, span: Nanos) -> anyhow::Result<Row> {
    let model = live.engine.model_metrics(ModelId(0)).context("the demo's model is loaded")?;
    let busy: u64 = live.engine.device_metrics().iter().map(|device| device.busy_ns).sum();
    Ok(Row {
        policy,
        goodput_rps: report.per_second(report.answered - report.late),
        bad_rate: report.bad_rate(),
        p50_ms: report.latencies.p50_ms(),
        p99_ms: report.latencies.p99_ms(),
        mean_batch: model.batch_rows.sum as f64 / (model.batch_rows.count as f64).max(1.0),
        busy_fraction: busy as f64 / (span.0 as f64 * f64::from(DEVICES)),
    })
}

pub(super) fn show(comparison: &Comparison) -> String {
    let Comparison { model, gpu, devices, slo_ms, offered_rps, .. } = comparison;
    let mut table = Table::new(["policy", "in time/s", "bad %", "p50 ms", "p99 ms", "mean batch", "device busy %"]);
    for row in &comparison.policies {
        let optional = |value: Option<f64>| value.map_or("-".to_owned(), number);
        table.row([
            row.policy.to_owned(),
            number(row.goodput_rps),
            number(100.0 * row.bad_rate),
            optional(row.p50_ms),
            optional(row.p99_ms),
            number(row.mean_batch),
            number(100.0 * row.busy_fraction),
        ]);
    }
    format!(
        "Policies under the same load: {offered_rps:.0} requests/s (open loop, Poisson), {model}, SLO {slo_ms} ms,\n\
         on {devices} emulated {gpu} GPUs; bad = late, refused or dropped:\n\n{table}\n"
    )
}
