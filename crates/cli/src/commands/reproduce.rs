//! `ripieno reproduce`: the papers' experiments from the command line, with this machine for
//! measurements.

mod cluster;
mod incast;
mod scaling;
#[cfg(test)]
mod tests;

use crate::args::devices::EngineName;
use crate::commands::compare::{self, CompareArgs};
use crate::commands::models::{self, ProfileArgs};
use crate::output;
use anyhow::Context as _;
use clap::Args;
use ripieno_report::Format;
use ripieno_reproduce::{
    ClusterSetup, Effort, Incast, JobQueue, LiveCluster, LiveMachine, Maker, PolicyResult, ReproduceContext,
    ResultsFile, StressLoad, StressResult, chosen, list_as_json, list_as_text, reproduce_live,
};
use ripieno_sched::Options;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Rerun a figure or table of a paper: prints the paper's value, ours and their ratio, and writes a
/// plot.
///
/// Rows marked "fitted" depend on a constant that was fitted to a result of the paper: they are no
/// evidence. Every run is a simulation with the scheduling code of the live server; equal seeds
/// give equal results. Runs are cached in DIR/cache, so that an interrupted command continues where
/// it stopped. Only symphony/figure13-left, --measured and --live are measured on a wall clock.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// The item: `list` names them all, `all` runs them all, symphony/table2 runs one.
    #[arg(value_name = "list|PAPER/ITEM|all")]
    what: String,

    /// Fewer requests and points: everything within two minutes, with rougher numbers.
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// All runs of the paper, where the default is a sample. May take hours.
    #[arg(long)]
    full: bool,

    /// Measure each peak again in runs twice as long; the two should differ by at most 2 %.
    #[arg(long, conflicts_with = "quick")]
    double: bool,

    /// Also measure cells with a state of 1,024 and random weights on this machine, for items that
    /// support it (batchmaker/figure7a, figure13, figure14). Each takes a minute or two, on an
    /// otherwise idle machine. With --models, real models of lazybatching and dvabatch, too.
    #[arg(long, value_name = "ENGINE", num_args = 0..=1, default_missing_value = "cpu")]
    measured: Option<EngineName>,

    /// Serve the item's load by a cluster on this machine: frontends, a scheduler and emulated
    /// backends on loopback. Delays are measured first; the simulation beside it has them, too. For
    /// the items that `list` marks, on an otherwise idle machine, one to ten minutes each.
    #[arg(long, conflicts_with_all = ["full", "double", "measured"])]
    live: bool,

    /// Folder for plots, finished runs, and the rows of all items in results.jsonl, by which `all`
    /// continues where it stopped.
    #[arg(long, value_name = "DIR", default_value = "reproduce")]
    out: PathBuf,

    /// Number of concurrent simulations [default: the number of cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Seeds per point, instead of the item's own number. Rows get the mean, and the lowest and
    /// highest value.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,

    /// Measure the models of this repository, too, with --measured; at most two minutes each with
    /// --quick, else ten. For lazybatching/figure12, figure13, figure16:
    /// tests/python/measured_models.py writes resnet50, bert and transformer with random weights,
    /// whole and in blocks. For dvabatch/figure14 to figure17: tests/python/dva_models.py writes
    /// bert, unet and resnet, whole and in stages.
    #[arg(long, value_name = "DIR", requires = "measured")]
    models: Option<PathBuf>,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

/// This machine with the live driver.
#[derive(Debug)]
struct ThisMachine;

pub(crate) fn run(args: &ReproduceArgs) -> anyhow::Result<()> {
    if args.what == "list" {
        return match args.format {
            Format::Table => output::print(list_as_text()),
            Format::Json => output::print_json(&list_as_json()),
        };
    }
    let items = chosen(&args.what, args.live)?;
    let queue = queue(args)?;
    let mut results = results(args, queue.program())?;
    let context = context(args, queue);
    let (mut done, count, all) = (Vec::new(), items.len(), args.what == "all");
    for (place, item) in (1..).zip(items) {
        if let Some((results, line)) = results.as_ref().filter(|_| all).and_then(|it| Some((it, it.line(item)?))) {
            eprintln!("{} ({place} of {count}) is in {} already", item.id, results.file().display());
            done.push(line.clone());
            continue;
        }
        context.head(item.id, place, count);
        let report = match args.live {
            true => reproduce_live(item, &context, &args.out)?,
            false => item.reproduce(&context, &args.out)?,
        };
        if let Some(results) = &mut results {
            results.put(&report)?;
        }
        if args.format == Format::Table {
            output::print(&report)?;
        }
        done.push(report.json());
    }
    match (args.format, done.as_slice()) {
        (Format::Table, _) => Ok(()),
        (Format::Json, [only]) if args.what != "all" => output::print_json(only),
        (Format::Json, all) => output::print_json(&serde_json::json!({ "items": all })),
    }
}

fn queue(args: &ReproduceArgs) -> anyhow::Result<JobQueue> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    JobQueue::new(args.out.join("cache"), args.jobs.map_or(cores, NonZeroUsize::get))
}

/// Returns the results file; `None` for quick runs, whose numbers are rough, and for runs with
/// measurements of this machine.
fn results(args: &ReproduceArgs, program: &str) -> anyhow::Result<Option<ResultsFile>> {
    if args.quick || args.double || args.live || args.measured.is_some() {
        return Ok(None);
    }
    let effort = if args.full { "full" } else { "usual" };
    let maker = Maker { commit: commit(), program: program.to_owned(), effort, seeds: args.seeds };
    Ok(Some(ResultsFile::open(args.out.join("results.jsonl"), &maker)?))
}

/// Returns the commit of the current checkout, if there is one.
fn commit() -> Option<String> {
    let git = |words: &[&str]| {
        let output =
            std::process::Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    };
    let id = git(&["rev-parse", "--short=12", "HEAD"])?;
    let differs = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|changes| !changes.is_empty());
    Some(format!("{}{}", id.trim(), if differs { ", changed" } else { "" }))
}

fn context(args: &ReproduceArgs, queue: JobQueue) -> ReproduceContext {
    let effort = match (args.quick, args.full) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Full,
        _ => Effort::Usual,
    };
    ReproduceContext::new(effort, args.seeds, queue, Box::new(ThisMachine))
        .with_doublings(u32::from(args.double))
        .measuring(args.measured.map(|engine| engine.to_string()))
        .with_models(args.models.clone(), args.what == "all")
}

impl LiveMachine for ThisMachine {
    fn compare(&self, repository: &Path, words: &[String]) -> anyhow::Result<Vec<PolicyResult>> {
        let args = CompareArgs::from_words(repository, words.iter().map(String::as_str))?;
        let rows = compare::measure(&args)?.results.into_iter();
        let row = |row| {
            let compare::CompareRow { policy, answered_rps, mean_ms, p90_ms, p99_ms, .. } = row;
            PolicyResult { policy, answered_rps, mean_ms, p90_ms, p99_ms }
        };
        Ok(rows.map(row).collect())
    }

    fn costs(&self, repository: &Path, words: &[String]) -> anyhow::Result<Vec<f64>> {
        let models = ProfileArgs::from_words(repository, words.iter().map(String::as_str))?.models()?;
        models::check_all(repository, &models)?;
        let first = models.into_iter().next().context("the repository holds a model")?;
        let of =
            first.blocks.into_iter().next().or(first.profile).context("a model that was measured has a profile")?;
        Ok(of.latency_ms)
    }

    fn cluster(&self, setup: &ClusterSetup) -> anyhow::Result<Box<dyn LiveCluster>> {
        Ok(Box::new(cluster::LoopbackCluster::start(setup)?))
    }

    fn incast(&self, incast: Incast) -> anyhow::Result<Vec<f64>> {
        incast::measure(incast)
    }

    fn stress(&self, stress: StressLoad) -> anyhow::Result<StressResult> {
        let StressLoad { policy, models, devices, shards, rate, duration, warmup } = stress;
        let (policy, options) = (policy.to_owned(), Options::new());
        let report =
            ripieno_stress::SchedulerStress { policy, options, models, devices, shards, rate, duration, warmup }
                .run()?;
        Ok(StressResult { bad_rate: report.bad_rate, handled_rps: report.handled_rps })
    }
}
