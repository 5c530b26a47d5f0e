//! The request rate that the scheduler alone carries, its decision
//! latency, and the growth of its cost.

mod sweep;

use clap::Parser;
use ripieno_base::Nanos;
use ripieno_model::{Model, Profile};
use ripieno_report::{Format, Latencies, Table, number};
use ripieno_sched::Options;
use ripieno_stress::{SchedulerStress, StressReport, arguments, print_json};
use serde_json::{Value, json};
use std::time::Duration;

/// Load the scheduler's own threads, shards and a matchmaker, with a generator in the same process
/// and emulated devices that cost nothing.
///
/// Every thread needs a core of its own: S shards need S + 1. The generator shares the shards'
/// threads, so if the scheduler is too slow, requests are handled late: see the lag. "Start" is the
/// decision latency, from the time at which a batch could start, with its window open and its
/// requests present, to the shard's dispatch of it. For the eager policy that is each batch's
/// longest time from arrival to start. "Away" is the time in which the threads did not have their
/// cores: results with more than a percent of it say more about the machine.
#[derive(Parser, Debug)]
struct SchedulerBench {
    /// Offered requests per second; several, separated by commas, are run one after the other.
    #[arg(long, value_name = "R,…", value_delimiter = ',', default_values_t = [1e6, 2e6, 3e6, 4e6])]
    rate: Vec<f64>,

    /// Models, all alike: l(b) = 0.1 b + 5 ms, SLO 25 ms, batches of at most 64. [default: 20]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    models: Vec<u16>,

    /// Emulated devices. [default: 1000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    devices: Vec<u16>,

    /// Shard threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,

    /// The policy, one that runs in shards.
    #[arg(long, value_name = "NAME", default_value = "deferred")]
    policy: String,

    /// Seconds counted of each run. [default: 3, and 0.5 in a sweep]
    #[arg(long, value_name = "S")]
    duration: Option<f64>,

    /// Show the cost of a request for 1 to 1,000 models and 8 to 10,000 devices, or those given, at
    /// the first rate. Batches have 16 requests and devices are busy half of the time at any of
    /// these sizes.
    #[arg(long)]
    sweep: bool,

    /// Sweep on one thread in virtual time: every thread has a turn each microsecond of it. Runs
    /// repeat instruction by instruction, and need no cores of their own.
    #[arg(long, requires = "sweep")]
    in_turns: bool,

    /// Number of sweeps, of which the medians are printed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    repeat: u16,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

fn main() -> anyhow::Result<()> {
    run(&arguments())
}

fn run(args: &SchedulerBench) -> anyhow::Result<()> {
    let fits = args.duration.is_none_or(|duration| (0.1..=600.0).contains(&duration));
    anyhow::ensure!(fits, "--duration must be between 0.1 and 600");
    anyhow::ensure!(args.rate.iter().all(|rate| (1.0..=1e9).contains(rate)), "--rate must be between 1 and 1e9");
    if args.sweep {
        return sweep::run(args);
    }
    let mut table = Table::new([
        "offered/s",
        "models",
        "devices",
        "handled/s",
        "bad %",
        "mean batch",
        "batches/s",
        "lag p99 us",
        "start p50 us",
        "p90",
        "p99",
        "max",
        "ns/request",
        "away %",
    ]);
    let mut runs = Vec::new();
    for &models in or_default(&args.models, &[20]) {
        for &devices in or_default(&args.devices, &[1_000]) {
            for &rate in &args.rate {
                let report = stress(args, rate, models, devices)?.run()?;
                table.row(row(rate, models, devices, &report));
                runs.push(record(rate, models, devices, &report));
            }
        }
    }
    if args.format == Format::Json {
        print_json(&json!({ "policy": args.policy, "shards": args.shards, "runs": runs }));
        return Ok(());
    }
    println!("{table}");
    Ok(())
}

fn or_default<'a>(given: &'a [u16], default: &'a [u16]) -> &'a [u16] {
    if given.is_empty() { default } else { given }
}

fn stress(args: &SchedulerBench, rate: f64, models: u16, devices: u16) -> anyhow::Result<SchedulerStress> {
    let profile = Profile::linear(0.1, 5.0, 64)?;
    let model = |at: u16| Model::whole(&at.to_string(), profile.clone(), Nanos::from_millis(25));
    Ok(SchedulerStress {
        policy: args.policy.clone(),
        options: Options::new(),
        models: (0..models).map(model).collect(),
        devices: usize::from(devices),
        shards: usize::from(args.shards.min(models)),
        rate,
        duration: Duration::from_secs_f64(args.duration.unwrap_or(3.0)),
        warmup: Duration::from_millis(500),
    })
}

fn row(rate: f64, models: u16, devices: u16, report: &StressReport) -> [String; 14] {
    [
        number(rate),
        number(f64::from(models)),
        number(f64::from(devices)),
        number(report.handled_rps),
        number(100.0 * report.bad_rate),
        number(report.mean_batch),
        number(report.batches_per_s),
        number(micros(&report.lag, 0.99)),
        number(micros(&report.decision, 0.5)),
        number(micros(&report.decision, 0.9)),
        number(micros(&report.decision, 0.99)),
        number(micros(&report.decision, 1.0)),
        number(report.shard_ns + report.matchmaker_ns),
        number(100.0 * report.away),
    ]
}

fn record(rate: f64, models: u16, devices: u16, report: &StressReport) -> Value {
    let quantiles = |latencies: &Latencies| {
        json!({
            "count": latencies.count(), "p50": micros(latencies, 0.5), "p90": micros(latencies, 0.9),
            "p99": micros(latencies, 0.99), "p999": micros(latencies, 0.999), "max": micros(latencies, 1.0),
        })
    };
    json!({
        "offered_rps": rate, "models": models, "devices": devices, "handled_rps": report.handled_rps,
        "bad_rate": report.bad_rate, "mean_batch": report.mean_batch, "batches_per_s": report.batches_per_s,
        "lag_us": quantiles(&report.lag), "decision_us": quantiles(&report.decision),
        "shard_ns_per_request": report.shard_ns, "matchmaker_ns_per_request": report.matchmaker_ns,
        "away": report.away,
    })
}

fn micros(latencies: &Latencies, quantile: f64) -> f64 {
    latencies.quantile_ms(quantile).unwrap_or(f64::NAN) * 1e3
}
