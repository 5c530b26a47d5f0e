//! Compares policies: the same model, devices and requests, on one live server after the other.

use super::Live;
use super::lateness::Lateness;
use crate::args::devices::{DeviceArgs, DeviceKind};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_base::{ModelId, Nanos, Time};
use ripieno_bench::inputs::{BenchTensor, Filling, requests};
use ripieno_bench::load::{LoadReport, LoadSchedule, open_loop};
use ripieno_bench::target::tls::ClientAuth;
use ripieno_bench::target::{Client, Protocol};
use ripieno_model::bounds::staggered_bound;
use ripieno_model::zoo::ZooDevice;
use ripieno_model::{DataType, Profile, TensorSpec};
use ripieno_report::{Table, number};
use ripieno_sched::{OptionValue, Options};
use ripieno_workload::{ArrivalProcess, Arrivals, LengthDistribution, stream};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const GPU: &str = "1080ti";
/// Warm-up at the start of each run, which is not counted.
const WARMUP: Nanos = Nanos::from_millis(500);
const SEED: u64 = 1;

/// Lateness of the machine above which a comparison is chance: a tenth of the shorter SLO.
const TOLERABLE_MS: f64 = 2.7;

/// A policy's title, its name in the catalogue, and its options.
type DemoContestant = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// One of each: no batching, today's servers, no window, Symphony's deferral, the default.
const WHOLE: [DemoContestant; 5] = [
    ("serial", "serial", &[]),
    ("timeout 5 ms, as most servers", "timeout", &[("gather", "fifo"), ("drop", "expired")]),
    ("eager", "eager", &[]),
    ("deferred, as published", "deferred", &[]),
    ("unified (default)", "unified", &[("objective", "latency")]),
];
/// Model, devices and load for whole models, as a fraction of the rate for evenly spaced requests.
const WHOLE_LOAD: (&str, u16, f64) = ("ResNet50", 2, 0.75);

/// Padding as in a server without knowledge of lengths, padding by length, merged graphs, cells,
/// the default.
const CELLS: [DemoContestant; 5] = [
    ("padding to the longest in the batch", "bucketed", &[("width", "330"), ("pad", "longest")]),
    ("padding in buckets of 10 lengths", "bucketed", &[("width", "10")]),
    ("graph-merge", "graph-merge", &[]),
    ("cellular", "cellular", &[]),
    ("unified (default)", "unified", &[("objective", "latency")]),
];
/// Model, devices and load for cells, as a fraction of the rate for full batches.
const CELLS_LOAD: (&str, u16, f64) = ("LSTM", 1, 0.25);
/// ℓ(b) of a step of the emulated cell, as in its model.toml, and its SLO there.
const CELL: (f64, f64, usize, f64) = (0.02, 1.0, 64, 250.0);
/// Lengths of sentences, as published for WMT-15 Europarl: mean 24, up to 330.
const SENTENCES: (f64, f64, u32, u32) = (2.919, 0.72, 1, 330);
/// Number of different requests, which are sent in turn.
const VARIANTS: usize = 512;

/// The common setup of the policies.
struct Arena<'a> {
    repository: &'a Path,
    title: String,
    model: &'static str,
    devices: u16,
    gpu: Option<ZooDevice>,
    slo: Nanos,
    rate: f64,
    /// Whether rows may be wasted, which is then printed.
    unfolds: bool,
    requests: Vec<Vec<BenchTensor>>,
    seconds: f64,
}

/// All runs, with their common properties.
#[derive(Serialize)]
pub(super) struct DemoComparison {
    model: &'static str,
    title: String,
    devices: u16,
    slo_ms: f64,
    offered_rps: f64,
    /// The machine's own lateness at the 99th percentile, in the worst of the runs.
    lateness_ms: f64,
    policies: Vec<DemoRow>,
}

impl DemoComparison {
    /// Returns true if the machine was too busy.
    fn is_void(&self) -> bool {
        self.lateness_ms > TOLERABLE_MS
    }
}

/// The results of one policy.
#[derive(Serialize)]
struct DemoRow {
    policy: &'static str,
    goodput_rps: f64,
    bad_rate: f64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    mean_batch: f64,
    busy_fraction: f64,
    /// Fraction of steps that were padding or came after the end; `None` where requests do not
    /// unfold.
    #[serde(skip_serializing_if = "Option::is_none")]
    useless_fraction: Option<f64>,
}

/// Compares on a model that runs whole.
pub(super) async fn whole(repository: &Path, seconds: f64, show_progress: bool) -> anyhow::Result<DemoComparison> {
    let (model, devices, load) = WHOLE_LOAD;
    let gpu = ZooDevice::from_name(GPU).context("the demo's GPU is in the published tables")?;
    let published = gpu.find(model).context("the demo's model is in the published tables")?;
    let slo = Nanos::from_millis_f64(published.slo_ms);
    let rate = load
        * staggered_bound(&Profile::linear(published.alpha_ms, published.beta_ms, 64)?, slo, usize::from(devices))
            .goodput_rps;
    let input = TensorSpec { name: "features".to_owned(), datatype: DataType::Fp32, shape: vec![-1, 64] };
    let requests = requests(&[input], &Filling { rows: 1, seed: SEED, ..Filling::default() })?;
    let title = format!("{model}, SLO {} ms, on {devices} emulated {GPU} GPUs", published.slo_ms);
    let gpu = Some(gpu);
    let arena = Arena { repository, title, model, devices, gpu, slo, rate, unfolds: false, requests, seconds };
    arena.run(&WHOLE, show_progress).await
}

/// Compares on a model in cells, with sequences of many lengths.
pub(super) async fn cells(repository: &Path, seconds: f64, show_progress: bool) -> anyhow::Result<DemoComparison> {
    let (model, devices, load) = CELLS_LOAD;
    let (alpha_ms, beta_ms, max_batch, slo_ms) = CELL;
    let (mu, sigma, min, max) = SENTENCES;
    let lengths = LengthDistribution::log_normal(mu, sigma, min, max)?;
    let mut random = stream(SEED, 0);
    let lengths: Vec<u32> = (0..VARIANTS).map(|_| lengths.draw(&mut random)).collect();
    let mean = lengths.iter().sum::<u32>() as f64 / lengths.len() as f64;
    let step_s = Profile::linear(alpha_ms, beta_ms, max_batch)?.latency(max_batch).as_secs_f64();
    let rate = load * f64::from(devices) * max_batch as f64 / (step_s * mean);
    let request = |&length: &u32| {
        let (name, datatype, shape) = ("token".to_owned(), DataType::Int32, vec![1, i64::from(length)]);
        vec![BenchTensor { name, datatype, shape, data: vec![0; 4 * length as usize].into() }]
    };
    let requests = lengths.iter().map(request).collect();
    let title = format!(
        "an LSTM over sequences of mean length {mean:.0}, up to {max}, SLO {slo_ms} ms,\n\
         on one emulated device where a step of b rows takes {beta_ms} + {alpha_ms}·b ms"
    );
    let slo = Nanos::from_millis_f64(slo_ms);
    let arena = Arena { repository, title, model, devices, gpu: None, slo, rate, unfolds: true, requests, seconds };
    arena.run(&CELLS, show_progress).await
}

/// Parses an option's value as on the command line.
fn value(text: &str) -> OptionValue {
    text.parse().map_or_else(|_| OptionValue::Text(text.to_owned()), OptionValue::Int)
}

impl Arena<'_> {
    async fn run(self, contestants: &[DemoContestant], show_progress: bool) -> anyhow::Result<DemoComparison> {
        let bar = if show_progress { ProgressBar::new(contestants.len() as u64) } else { ProgressBar::hidden() };
        bar.set_style(ProgressStyle::with_template("  under load: {msg} [{bar:25}] {elapsed}")?);
        let (mut policies, mut lateness_ms) = (Vec::new(), 0.0_f64);
        for &(name, policy, options) in contestants {
            bar.set_message(name);
            let options = options.iter().map(|&(key, text)| (key.to_owned(), value(text))).collect();
            let lateness = Lateness::measure()?;
            policies.push(self.contest(name, policy, options).await?);
            lateness_ms = lateness_ms.max(lateness.p99_ms()?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let Arena { model, title, devices, slo, rate, .. } = self;
        Ok(DemoComparison {
            model,
            title,
            devices,
            slo_ms: slo.as_millis_f64(),
            offered_rps: rate,
            lateness_ms,
            policies,
        })
    }

    async fn contest(&self, name: &'static str, policy: &str, options: Options) -> anyhow::Result<DemoRow> {
        let device = DeviceKind::Emulated(self.gpu);
        let devices = DeviceArgs { device, devices: self.devices, ..DeviceArgs::default() };
        let live = Live::start(self.repository, devices, policy, options).await?;
        let mut client = Client::new(&live.http.to_string(), Protocol::Http, self.model, 256, &ClientAuth::default())?;
        client.prepare(&self.requests, false)?;
        let end = WARMUP + Nanos::from_secs_f64(self.seconds);
        let due = Arrivals::new(ArrivalProcess::Poisson, self.rate, SEED, 0)?
            .take_while(move |&due| due < Time::ORIGIN + end);
        let plan = LoadSchedule {
            due: Box::new(due),
            warmup: WARMUP,
            end,
            slo: Some(self.slo),
            timeout: Duration::from_secs(5),
            max_in_flight: 256,
            max_outstanding: 5_000,
        };
        let begun = Instant::now();
        let report = open_loop(Arc::new(client), plan, &ProgressBar::hidden()).await?;
        let row = self.row(name, &report, &live, begun.elapsed());
        live.stop().await?;
        row
    }

    /// Returns the row of a run that took `span`, until its last answer. Batches and busy time are
    /// counted over the whole run, warm-up included: policies and devices start empty.
    fn row(&self, policy: &'static str, report: &LoadReport, live: &Live, span: Duration) -> anyhow::Result<DemoRow> {
        let model = live.engine.model_metrics(ModelId(0)).context("the demo's model is loaded")?;
        let busy: u64 = live.engine.device_metrics().iter().map(|device| device.busy_ns).sum();
        let rows = model.batch_rows.sum as f64;
        let useless = (model.wasted_rows + model.padding_rows) as f64 / (model.executed_rows as f64).max(1.0);
        Ok(DemoRow {
            policy,
            goodput_rps: report.per_second(report.answered - report.late),
            bad_rate: report.bad_rate(),
            p50_ms: report.latencies.p50_ms(),
            p99_ms: report.latencies.p99_ms(),
            mean_batch: rows / (model.batch_rows.count as f64).max(1.0),
            busy_fraction: busy as f64 / (span.as_nanos() as f64 * f64::from(self.devices)),
            useless_fraction: self.unfolds.then_some(useless),
        })
    }
}

pub(super) fn show(comparison: &DemoComparison) -> String {
    if comparison.is_void() {
        return void(comparison);
    }
    let DemoComparison { title, offered_rps, policies, .. } = comparison;
    let unfolds = policies.iter().any(|row| row.useless_fraction.is_some());
    let headings = ["policy", "in time/s", "bad %", "p50 ms", "p99 ms", "mean batch", "device busy %"];
    let mut table = Table::new(headings.into_iter().chain(unfolds.then_some("useless steps %")));
    for row in policies {
        let optional = |value: Option<f64>| value.map_or("-".to_owned(), number);
        let cells = [
            row.policy.to_owned(),
            number(row.goodput_rps),
            number(100.0 * row.bad_rate),
            optional(row.p50_ms),
            optional(row.p99_ms),
            number(row.mean_batch),
            number(100.0 * row.busy_fraction),
        ];
        table.row(cells.into_iter().chain(row.useless_fraction.map(|useless| number(100.0 * useless))));
    }
    format!(
        "Policies under the same load: {offered_rps:.0} requests/s (open loop, Poisson), {title};\n\
         bad = late, refused or dropped:\n\n{table}\n"
    )
}

/// Returns the message that replaces a table of chance results.
fn void(comparison: &DemoComparison) -> String {
    let DemoComparison { title, lateness_ms, .. } = comparison;
    format!(
        "Policies were not compared on {title}:\n\
         this machine is too busy. A thread that slept for a millisecond was {} ms late (p99), more than the {TOLERABLE_MS} ms\n\
         up to which differences are those of policies. Run the demo again when less else runs.\n",
        number(*lateness_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_late_itself_compares_nothing() {
        let row = DemoRow {
            policy: "deferred",
            goodput_rps: 511.0,
            bad_rate: 0.03,
            p50_ms: Some(20.6),
            p99_ms: Some(26.4),
            mean_batch: 4.6,
            busy_fraction: 0.8,
            useless_fraction: None,
        };
        let title = "ResNet50".to_owned();
        let mut comparison = DemoComparison {
            model: "m",
            title,
            devices: 2,
            slo_ms: 27.0,
            offered_rps: 509.0,
            lateness_ms: TOLERABLE_MS,
            policies: vec![row],
        };
        assert!(show(&comparison).contains("511"));
        comparison.lateness_ms = 8.3;
        let said = show(&comparison);
        assert!(said.contains("too busy") && said.contains("8.3") && !said.contains("511"), "{said}");
    }
}
