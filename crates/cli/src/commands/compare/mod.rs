//! `ripieno compare --live`: compares policies on a model of the user, on this machine, in one
//! interleaved run.
//!
//! Each contestant is a runtime of its own with its own device threads and its own copy of the
//! model; only one is under load at a time. They take turns, round after round, so that other load
//! on the machine affects all alike; medians over rounds are compared. Requests go directly into
//! the runtime: protocol and network cost every policy the same and are measured elsewhere.

mod contest;
mod predictions;
mod requests;

use crate::args::devices::DeviceArgs;
use crate::output::{self, print_json};
use anyhow::{Context, ensure};
use clap::{Args, Command, FromArgMatches as _};
use contest::{LiveContestant, LoadedContestant, PerTask, TurnLoad, TurnOutcome};
use indicatif::{ProgressBar, ProgressStyle};
use predictions::Predictions;
use requests::RequestArgs;
use ripieno_report::{Format, Table, number};
use serde::Serialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Compare policies live on this machine: the same model, device and requests, in one interleaved
/// run.
///
/// For example, cells against padding and merging, at saturation and at 200 requests/s:
///
///   ripieno compare --live models/repository --model sentiment --policy cellular --policy
///   bucketed,width=10
///       --policy graph-merge --rate 200
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompareArgs {
    /// The model repository.
    repository: PathBuf,

    /// The model.
    #[arg(long, value_name = "NAME")]
    model: String,

    /// A contestant: a policy, and its options after commas; repeat it for each. model=NAME among
    /// them sets a model of its own, to compare ways to cut one, and slo_ms=N an SLO of its own.
    #[arg(long = "policy", value_name = "NAME[,KEY=VALUE]...", required = true)]
    policies: Vec<LiveContestant>,

    /// Open-loop Poisson load in requests per second; may be repeated. Without it, saturation.
    #[arg(long = "rate", value_name = "R")]
    rates: Vec<f64>,

    /// Requests that are always outstanding at saturation.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    outstanding: u16,

    /// Number of turns of each contestant under each load.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    /// Length of a turn, in seconds; its first fifth is not counted.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,

    /// Time after which a request counts as failed, in seconds. The model's own SLO holds as well.
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    timeout: f64,

    #[command(flatten)]
    requests: RequestArgs,

    #[command(flatten)]
    pub(crate) devices: DeviceArgs,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

/// The complete results.
#[derive(Serialize)]
pub(crate) struct CompareResults {
    model: String,
    rounds: u16,
    seconds: f64,
    device: String,
    pub(crate) results: Vec<CompareRow>,
}

/// One contestant under one load: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CompareRow {
    pub(crate) policy: String,
    /// The offered rate; `None` at saturation.
    pub(crate) offered_rps: Option<f64>,
    pub(crate) answered_rps: f64,
    answered_rps_min: f64,
    answered_rps_max: f64,
    bad_rate: f64,
    /// Fraction of requests without an answer within the model's SLO.
    violation_rate: f64,
    p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) mean_ms: f64,
    rows_per_task: f64,
    tasks_per_s: f64,
    busy_fraction: f64,
    useless_fraction: f64,
    /// Fraction of computed elements that was padding, for requests that differ in length.
    padding_fraction: f64,
    rows_gathered_per_row: f64,
    tasks_without_copy_fraction: f64,
    /// Fraction of tasks that were gathered while another one computed.
    tasks_gathered_ahead_fraction: f64,
    /// Mean costs of a task.
    task: PerTask,
    /// Prediction errors, if the policy predicts.
    predictions: Option<Predictions>,
}

impl CompareArgs {
    /// Parses arguments as on the command line: the repository, then the words after it.
    #[cfg_attr(not(feature = "reproduce"), expect(dead_code, reason = "only `reproduce` calls it"))]
    pub(crate) fn from_words<'a>(
        repository: &'a Path,
        words: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<CompareArgs> {
        let command = CompareArgs::augment_args(Command::new("compare").no_binary_name(true));
        let words = std::iter::once(repository.as_os_str()).chain(words.into_iter().map(OsStr::new));
        Ok(CompareArgs::from_arg_matches(&command.try_get_matches_from(words)?)?)
    }
}

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let comparison = measure(args)?;
    match args.format {
        Format::Json => print_json(&comparison),
        Format::Table => output::print(show(&comparison)),
    }
}

/// Runs all turns of all contestants.
pub(crate) fn measure(args: &CompareArgs) -> anyhow::Result<CompareResults> {
    ensure!((0.2..=3600.0).contains(&args.seconds), "--seconds must be between 0.2 and 3600");
    ensure!((0.001..=3600.0).contains(&args.timeout), "--timeout must be between 0.001 and 3600");
    let odd = args.rates.iter().find(|rate| !(rate.is_finite() && **rate > 0.0 && **rate <= 1e7));
    ensure!(odd.is_none(), "--rate must be above 0 and at most 10,000,000");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(compare(args))
}

async fn compare(args: &CompareArgs) -> anyhow::Result<CompareResults> {
    let mut contests = Vec::new();
    for contestant in &args.policies {
        contests.push(
            LoadedContestant::start(contestant, &args.repository, &args.model, &args.devices, &args.requests).await?,
        );
    }
    let mut loads: Vec<TurnLoad> = args.rates.iter().copied().map(TurnLoad::Rate).collect();
    if loads.is_empty() {
        loads.push(TurnLoad::Saturated(usize::from(args.outstanding)));
    }
    let turns = contests.len() * loads.len() * usize::from(args.rounds);
    let bar = ProgressBar::new(turns as u64);
    bar.set_style(ProgressStyle::with_template("  {msg} [{bar:30}] {pos}/{len} turns, {eta} left")?);
    let mut results = Vec::new();
    for load in loads {
        let mut outcomes: Vec<Vec<TurnOutcome>> = contests.iter().map(|_| Vec::new()).collect();
        for round in 0..args.rounds {
            for (contest, outcomes) in contests.iter().zip(&mut outcomes) {
                bar.set_message(contest.title().to_owned());
                let seed = u64::from(round);
                let (span, timeout) = (Duration::from_secs_f64(args.seconds), Duration::from_secs_f64(args.timeout));
                outcomes.push(contest.turn(load, span, timeout, seed).await?);
                bar.inc(1);
            }
        }
        let rows = contests.iter().zip(outcomes).map(|(contest, outcomes)| row(contest.title(), load, &outcomes));
        results.extend(rows);
    }
    bar.finish_and_clear();
    let device = contests[0].device().to_owned();
    for contest in contests {
        contest.stop().await?;
    }
    Ok(CompareResults { model: args.model.clone(), rounds: args.rounds, seconds: args.seconds, device, results })
}

fn row(policy: &str, load: TurnLoad, outcomes: &[TurnOutcome]) -> CompareRow {
    let median = |value: &dyn Fn(&TurnOutcome) -> f64| {
        let mut values: Vec<f64> = outcomes.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let rates = outcomes.iter().map(|outcome| outcome.answered_rps);
    CompareRow {
        policy: policy.to_owned(),
        offered_rps: load.rate(),
        answered_rps: median(&|outcome| outcome.answered_rps),
        answered_rps_min: rates.clone().fold(f64::INFINITY, f64::min),
        answered_rps_max: rates.fold(0.0, f64::max),
        bad_rate: median(&|outcome| outcome.bad_rate),
        violation_rate: median(&|outcome| outcome.violations),
        p50_ms: median(&|outcome| outcome.p50_ms),
        p90_ms: median(&|outcome| outcome.p90_ms),
        p99_ms: median(&|outcome| outcome.p99_ms),
        mean_ms: median(&|outcome| outcome.mean_ms),
        rows_per_task: median(&|outcome| outcome.rows_per_task),
        tasks_per_s: median(&|outcome| outcome.tasks_per_s),
        busy_fraction: median(&|outcome| outcome.busy_fraction),
        useless_fraction: median(&|outcome| outcome.useless_fraction),
        padding_fraction: median(&|outcome| outcome.padding_fraction),
        rows_gathered_per_row: median(&|outcome| outcome.rows_gathered_per_row),
        tasks_without_copy_fraction: median(&|outcome| outcome.tasks_without_copy_fraction),
        tasks_gathered_ahead_fraction: median(&|outcome| outcome.tasks_gathered_ahead_fraction),
        task: PerTask {
            scheduling_us: median(&|outcome| outcome.task.scheduling_us),
            gather_us: median(&|outcome| outcome.task.gather_us),
            scatter_us: median(&|outcome| outcome.task.scatter_us),
            compute_us: median(&|outcome| outcome.task.compute_us),
            overhead_fraction: median(&|outcome| outcome.task.overhead_fraction),
        },
        predictions: Predictions::mean(outcomes.iter().filter_map(|outcome| outcome.predictions)),
    }
}

fn show(comparison: &CompareResults) -> String {
    let CompareResults { model, rounds, seconds, device, results } = comparison;
    let headings = [
        "policy",
        "offered/s",
        "answered/s",
        "(min-max)",
        "bad %",
        "over SLO %",
        "mean ms",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "rows/task",
        "busy %",
        "useless rows %",
        "padding %",
        "gathered/row",
        "no copy %",
        "predicted, % off: mean / p99 (bias)",
    ];
    let mut table = Table::new(headings);
    for row in results {
        table.row([
            row.policy.clone(),
            row.offered_rps.map_or("all".to_owned(), number),
            number(row.answered_rps),
            format!("{}-{}", number(row.answered_rps_min), number(row.answered_rps_max)),
            number(100.0 * row.bad_rate),
            number(100.0 * row.violation_rate),
            number(row.mean_ms),
            number(row.p50_ms),
            number(row.p90_ms),
            number(row.p99_ms),
            number(row.rows_per_task),
            number(100.0 * row.busy_fraction),
            number(100.0 * row.useless_fraction),
            number(100.0 * row.padding_fraction),
            number(row.rows_gathered_per_row),
            number(100.0 * row.tasks_without_copy_fraction),
            row.predictions.map_or_else(String::new, Predictions::show),
        ]);
    }
    let per_task = show_tasks(results);
    format!(
        "{model} on {device}: medians of {rounds} rounds of {seconds} s, policies in turn; latencies from the due time.\n\n\
         {table}\n\nWhat a task takes on average, in us; overhead is all but computing, over computing.\n\n{per_task}\n"
    )
}

fn show_tasks(results: &[CompareRow]) -> Table {
    let mut table =
        Table::new(["policy", "offered/s", "tasks/s", "scheduling", "gather", "scatter", "compute", "overhead %"]);
    for row in results {
        let PerTask { scheduling_us, gather_us, scatter_us, compute_us, overhead_fraction } = row.task;
        table.row([
            row.policy.clone(),
            row.offered_rps.map_or("all".to_owned(), number),
            number(row.tasks_per_s),
            number(scheduling_us),
            number(gather_us),
            number(scatter_us),
            number(compute_us),
            number(100.0 * overhead_fraction),
        ]);
    }
    table
}
