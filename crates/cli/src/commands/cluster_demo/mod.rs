//! `ripieno cluster-demo`: a cluster on this machine's loopback, a part of which fails or hangs
//! under load, and the effect on its clients.
//!
//! Everything is real except the devices: an etcd of three nodes if it is installed, schedulers,
//! frontends and backends as processes of this program, with clients over HTTP. The time at which a
//! spare takes over, and that there are never two primaries, are taken from the backends' records
//! of accepted orders.

mod cluster;
mod load;
mod orders;
pub(crate) mod processes;

use crate::output::{self, print_json};
use anyhow::Context;
use clap::{Args, ValueEnum};
use cluster::Cluster;
use indicatif::{ProgressBar, ProgressStyle};
use load::{ClientLoad, ClientOutcome};
use ripieno_cluster::handover::Timing;
use ripieno_report::Format;
use ripieno_workload::{SeededRng, below, stream};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const HELP: &str = "Examples:\n  ripieno cluster-demo\n  ripieno cluster-demo --hang primary --runs 20 --backends 64\n  \
                    ripieno cluster-demo --kill any --hang any --runs 20 --rate 500\n";

/// Show a cluster under load that loses a part: schedulers with a spare, frontends and emulated
/// backends as processes on loopback, one of which is killed or hangs, and the effect on clients.
///
/// The epoch is in an etcd of three nodes, if there is an etcd; else in a file. All processes end
/// with the demo.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct ClusterDemoArgs {
    /// Number of emulated backends, in at most eight processes.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    backends: u16,

    /// Number of frontends.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    frontends: u16,

    /// Number of schedulers; all but one are spares.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=8))]
    schedulers: u16,

    /// Number of sub-clusters, each with a model and an event loop of its own. The backends load
    /// only what the plan has for them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    sub_clusters: u16,

    /// Number of scheduler threads, with the policy deferred, for two models each.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "sub_clusters", value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: u16,

    /// Process to kill, as by kill -9, and to start again [default: primary, if none is to hang].
    #[arg(long, value_enum, value_name = "WHO")]
    kill: Option<FaultTarget>,

    /// Process to hang for half a second. With --kill, each run draws one of both.
    #[arg(long, value_enum, value_name = "WHO")]
    hang: Option<FaultTarget>,

    /// Number of faults.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,

    /// Time under load before and after each fault, in seconds.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,

    /// Requests per second.
    #[arg(long, value_name = "R", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rate: u32,

    /// Seed of random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// The program etcd [default: the one in the path, if there is one].
    #[arg(long, value_name = "FILE")]
    etcd: Option<PathBuf>,

    /// Keep the logs of the processes, and the backends' records of accepted orders, in this
    /// folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

impl ClusterDemoArgs {
    /// Returns the number of models.
    fn models(&self) -> u16 {
        if self.shards > 1 { 2 * self.shards } else { self.sub_clusters }
    }
}

/// The process that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FaultTarget {
    /// The scheduler that is the primary.
    Primary,
    /// A backend's process.
    Backend,
    /// A frontend.
    Frontend,
    /// A node of etcd.
    Etcd,
    /// Any of them, drawn for each run.
    Any,
}

/// Time for which a deposed primary rests.
const REST: Duration = Duration::from_nanos(Timing::SHARED_HOSTS.rest.0 as u64);

/// A fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DemoFault {
    who: FaultTarget,
    hangs: bool,
}

/// The output.
#[derive(Serialize)]
struct DemoResults {
    backends: usize,
    requests: u64,
    answered: u64,
    lost: u64,
    duplicated: u64,
    /// Number of orders that backends accepted and should not have.
    split_brain: usize,
    /// Times from each fault of a primary until all backends followed the next one.
    handover_ms: Vec<f64>,
    /// The longest times without a right answer around each fault.
    gap_ms: Vec<f64>,
    outcomes: BTreeMap<&'static str, u64>,
    store: &'static str,
}

pub(crate) fn run(args: &ClusterDemoArgs) -> anyhow::Result<()> {
    anyhow::ensure!((0.2..=60.0).contains(&args.seconds), "--seconds must be between 0.2 and 60");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start tokio")?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&interrupted);
    runtime.spawn(async move {
        // Without signals there is nothing to wait for.
        if crate::commands::roles::shutdown_signal().await.is_ok() {
            told.store(true, Ordering::Relaxed);
        }
    });
    let etcd = processes::find_etcd(args.etcd.as_deref())?;
    let store = if etcd.is_some() { "etcd" } else { "file" };
    let people = args.format == Format::Table;
    if people {
        let of = match store {
            "etcd" => "an etcd of three nodes",
            _ => "a file, since there is no etcd in the path (Debian: etcd-server; or --etcd FILE)",
        };
        output::print(format!("The epoch is in {of}."))?;
    }
    let start = || Cluster::start(args, etcd.as_deref(), Arc::clone(&interrupted));
    // A free port may have been taken meanwhile.
    let mut cluster = start().or_else(|_| start())?;
    let load = Arc::new(ClientLoad::new(cluster.http.clone(), args.models()));
    let sending = runtime.spawn(Arc::clone(&load).run(args.rate));
    let mut demo = Demo { args, people, bar: bar(args, people), random: stream(args.seed, 0), interrupted };
    let measured = demo.measure(&mut cluster, &load);
    load.over.store(true, Ordering::Relaxed);
    let waited = runtime.block_on(sending);
    demo.bar.finish_and_clear();
    let (handover_ms, gap_ms) = measured?;
    waited.context("the load broke off")?;
    cluster.orders.read()?;
    let lost = load.count(ClientOutcome::Lost);
    let results = DemoResults {
        backends: usize::from(args.backends),
        requests: load.sent.load(Ordering::Relaxed),
        answered: [ClientOutcome::Right, ClientOutcome::Retry, ClientOutcome::Failed]
            .map(|outcome| load.count(outcome))
            .iter()
            .sum(),
        lost,
        duplicated: load.count(ClientOutcome::Duplicated),
        split_brain: cluster.orders.split.len(),
        handover_ms,
        gap_ms,
        outcomes: load.outcomes(),
        store,
    };
    cluster.orders.split.iter().for_each(|split| tracing::error!("orders of two schedulers were accepted: {split}"));
    if people { show(&results) } else { print_json(&results) }
}

struct Demo<'a> {
    args: &'a ClusterDemoArgs,
    people: bool,
    bar: ProgressBar,
    random: SeededRng,
    interrupted: Arc<AtomicBool>,
}

impl Demo<'_> {
    /// Makes all runs; returns the hand-over times and the gaps.
    fn measure(&mut self, cluster: &mut Cluster, load: &ClientLoad) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
        let (mut handovers, mut gaps) = (Vec::new(), Vec::new());
        let around = Duration::from_secs_f64(self.args.seconds);
        for run in 1..=self.args.runs {
            self.wait(run, around, cluster, load)?;
            let fault = self.draw(cluster.etcd.is_some());
            if fault.hangs && fault.who == FaultTarget::Primary {
                // The spare may have been deposed, and does not stand before it has rested.
                self.wait(run, REST, cluster, load)?;
            }
            load.take_gap();
            let took = cluster.inject(fault, &mut self.random, load)?;
            self.wait(run, around, cluster, load)?;
            let gap = load.take_gap();
            if self.people {
                let took = took.map_or(String::new(), |took| format!(", the next commands all after {} ms", ms(took)));
                let what = if fault.hangs { "stands still" } else { "is killed" };
                let gap = ms(gap);
                let line = format!("{} {what}{took}; longest time without an answer {gap} ms", name(fault));
                self.bar.suspend(|| output::print(line))?;
            }
            handovers.extend(took.map(millis));
            gaps.push(millis(gap));
            cluster.repair(fault)?;
        }
        Ok((handovers, gaps))
    }

    /// Waits under load for a while, with a progress display.
    fn wait(&self, run: u16, span: Duration, cluster: &mut Cluster, load: &ClientLoad) -> anyhow::Result<()> {
        let until = Instant::now() + span;
        while Instant::now() < until {
            anyhow::ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
            cluster.orders.read()?;
            let epoch = cluster.orders.latest().map_or(0, |(epoch, _)| epoch);
            let [right, retry] = [ClientOutcome::Right, ClientOutcome::Retry].map(|outcome| load.count(outcome));
            let sent = load.sent.load(Ordering::Relaxed);
            self.bar.set_message(format!("epoch {epoch}: {sent} requests, {right} right, {retry} told to try again"));
            self.bar.set_position(u64::from(run));
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn draw(&mut self, has_etcd: bool) -> DemoFault {
        let hangs = match (self.args.kill, self.args.hang) {
            (Some(_), Some(_)) => below(&mut self.random, 2) == 1,
            (_, hang) => hang.is_some(),
        };
        let who = if hangs { self.args.hang } else { self.args.kill };
        let all = [FaultTarget::Primary, FaultTarget::Backend, FaultTarget::Frontend, FaultTarget::Etcd];
        let who = match who.unwrap_or(FaultTarget::Primary) {
            FaultTarget::Any => all[below(&mut self.random, 3 + u64::from(has_etcd)) as usize],
            who => who,
        };
        DemoFault { who, hangs }
    }
}

fn bar(args: &ClusterDemoArgs, people: bool) -> ProgressBar {
    if !people {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("  run {pos}/{len}  {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(u64::from(args.runs)).with_style(style)
}

fn name(fault: DemoFault) -> &'static str {
    match fault.who {
        FaultTarget::Primary => "The primary",
        FaultTarget::Backend => "A backend's process",
        FaultTarget::Frontend => "A frontend",
        FaultTarget::Etcd => "A node of etcd",
        FaultTarget::Any => "A process",
    }
}

fn millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e4).round() / 10.0
}

fn ms(span: Duration) -> String {
    format!("{:.1}", millis(span))
}

fn show(results: &DemoResults) -> anyhow::Result<()> {
    let DemoResults { requests, answered, lost, duplicated, split_brain, outcomes, .. } = results;
    output::print(format!(
        "\n{requests} requests: {answered} answered, {lost} lost, {duplicated} answered as another; orders accepted of two \
         schedulers: {split_brain}"
    ))?;
    for (outcome, count) in outcomes {
        output::print(format!("  {count:>8} {outcome}"))?;
    }
    for (what, times) in
        [("a spare commands all backends", &results.handover_ms), ("without an answer", &results.gap_ms)]
    {
        let mut times = times.clone();
        times.sort_by(f64::total_cmp);
        if let (Some(median), Some(most)) = (times.get(times.len() / 2), times.last()) {
            output::print(format!("{what}: median {median:.1} ms, most {most:.1} ms of {} runs", times.len()))?;
        }
    }
    Ok(())
}
