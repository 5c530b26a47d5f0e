//! `ripieno bench-scheduler`: how many requests a second the scheduler alone carries.

use crate::output::{self, print_json};
use clap::Args;
use ripieno_base::Nanos;
use ripieno_model::{Model, Profile};
use ripieno_report::{Format, Table, number};
use ripieno_runtime::Stress;
use ripieno_sched::Options;
use std::time::Duration;

/// Load the scheduler's own threads, shards and a matchmaker, with a generator in the same process and emulated devices
/// that cost nothing.
///
/// Every thread wants a core of its own: with S shards give it S + 1. The generator shares the shards' threads, so when
/// the scheduler is too slow, requests are handled late first: see the lag.
#[derive(Args, Debug)]
pub(crate) struct BenchSchedulerArgs {
    /// Offered requests per second; several, separated by commas, are run one after the other.
    #[arg(long, value_name = "R,…", value_delimiter = ',', default_values_t = [1e6, 2e6, 3e6, 4e6])]
    rate: Vec<f64>,

    /// Models, all alike: l(b) = 0.1 b + 5 ms, SLO 25 ms, batches of at most 64.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    models: u16,

    /// Emulated devices.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..))]
    devices: u16,

    /// Shard threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,

    /// Seconds counted of each run.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    duration: f64,

    /// How to print the result.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &BenchSchedulerArgs) -> anyhow::Result<()> {
    anyhow::ensure!((0.1..=600.0).contains(&args.duration), "--duration must be between 0.1 and 600");
    anyhow::ensure!(args.rate.iter().all(|rate| (1.0..=1e9).contains(rate)), "--rate must be between 1 and 1e9");
    let profile = Profile::linear(0.1, 5.0, 64)?;
    let model = |at: u16| Model::whole(&at.to_string(), profile.clone(), Nanos::from_millis(25));
    let mut table =
        Table::new(["offered/s", "handled/s", "bad %", "mean batch", "grants/s", "lag p50 us", "lag p99 us"]);
    let mut runs = Vec::new();
    for &rate in &args.rate {
        let stress = Stress {
            policy: "deferred".to_owned(),
            options: Options::new(),
            models: (0..args.models).map(model).collect(),
            devices: usize::from(args.devices),
            shards: usize::from(args.shards.min(args.models)),
            rate,
            duration: Duration::from_secs_f64(args.duration),
            warmup: Duration::from_millis(500),
        };
        let report = stress.run()?;
        let micros = |quantile: f64| report.lag.quantile_ms(quantile).unwrap_or(f64::NAN) * 1e3;
        let (p50, p99) = (micros(0.5), micros(0.99));
        table.row([
            number(rate),
            number(report.handled_rps),
            number(100.0 * report.bad_rate),
            number(report.mean_batch),
            number(report.grants_per_s),
            number(p50),
            number(p99),
        ]);
        runs.push(serde_json::json!({
            "offered_rps": rate, "handled_rps": report.handled_rps, "bad_rate": report.bad_rate,
            "mean_batch": report.mean_batch, "grants_per_s": report.grants_per_s, "lag_p50_us": p50, "lag_p99_us": p99,
        }));
    }
    if args.format == Format::Json {
        return print_json(&serde_json::json!({
            "models": args.models, "devices": args.devices, "shards": args.shards, "runs": runs,
        }));
    }
    output::print(table)
}
