//! `ripieno compare`: compares the default policy with the best one, on
//! the user's workloads.
//!
//! The promise "one policy, one number per model" is worth only what a user can check. So nothing
//! here is tuned to our scenarios: `contestants.rs` defines the candidates, `contest.rs` the
//! measures.

mod contest;
mod contestants;
mod inputs;
mod judge;
mod pool;
mod print;
mod random;
mod ratios;
mod worlds;

use crate::args::policy::{ObjectiveArg, PolicyArgs};
use crate::output::report_file::{self, ReportArgs};
use anyhow::bail;
use clap::Args;
use clap::builder::PossibleValuesParser;
use contest::{ContestPlan, Measure};
use contestants::{ContestRules, SIMPLE_ONES};
use inputs::RandomWorkloads;
use pool::Pool;
use print::ContestResults;
use random::{Kind, Kinds};
use ripieno_policies::{CATALOGUE, find};
use ripieno_report::Format;
use ripieno_sched::Options;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::SystemTime;
use worlds::TaskWorld;

/// Compare the default policy with the best of all, on scenarios of your own.
///
/// Each scenario is simulated as `ripieno serve` would run it (as `ripieno simulate --as-served`
/// does), and under every policy that can serve it, with a few settings each: windows from 1 to 50
/// ms, ways to gather, orders, widths. A ratio of 1 is as good as the best of them all, chosen anew
/// for each scenario and measure; below 1 is worse, for rates and latencies alike. No single policy
/// is the best everywhere, so a ratio of 1 on average is more than any of them has.
///
/// Measures: `goodput`, the highest rate at which at most 1 % of any model's requests are dropped
/// or late. The best goodput of the others sets the loads: up to 100 % of it latencies are
/// compared, `mean`, `median` and `p99` (of several models the geometric mean). Beyond, `in-time`
/// is compared: the fraction answered within the SLO, of the model with the lowest. A policy that
/// drops or delays more than 1 % of any model's requests, and more than chance explains, counts as
/// overloaded; its latencies are not compared. If that is the default policy, its ratio is 0, and
/// counts as 0.05 in the geometric mean.
///
/// The others run without the admission control and margins of the server, and drop
/// requests that can no longer be in time; --all-as-served adds the server's admission control and
/// margins. With --policy another policy takes the place of the default policy, as `ripieno serve
/// --policy` would run it. Differences of about 1 % are chance, and larger ones where a model has
/// few requests: raise --requests.
///
/// The last table has a line for each kind of models and world: the geometric mean, the minimum and
/// the share of at least 0.98 of all ratios but the ratios of p99, whose mean stands beside. With
/// --floor the command fails if a line's geometric mean is lower.
///
/// For example, on all scenarios of a folder; on 30 random workloads of whole models; on all kinds,
/// exact and late, and recordings, against what a user would run otherwise:
///
///   ripieno compare my-scenarios --requests 20000
///   ripieno compare --random whole --seed 1 --cases 30
///   ripieno compare --random all --worlds exact,late my-recordings --against simple
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct ComparePoliciesArgs {
    /// Scenario files, recordings (.jsonl, .jsonl.gz), and folders of them. Scenarios whose load
    /// cannot be varied (with a requests_file, phases or a plan) are skipped. A recording is
    /// replayed: its arrivals and delays are as they were, and only answers in time are compared.
    #[arg(required_unless_present = "random")]
    paths: Vec<PathBuf>,

    /// Workloads drawn from seeds, beside files or instead.
    #[arg(long, value_name = "KIND,...", value_enum, value_delimiter = ',')]
    random: Vec<Kinds>,

    /// The worlds in which each scenario and random workload runs.
    #[arg(long, value_name = "WORLD,...", value_enum, value_delimiter = ',', default_value = "exact")]
    worlds: Vec<TaskWorld>,

    /// The first seed of random workloads of each kind [default: another one each time, which is
    /// printed].
    #[arg(long, value_name = "N", requires = "random")]
    seed: Option<u64>,

    /// Number of random workloads of each kind, one per seed.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "random", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    cases: u64,

    /// Write the random workloads into this folder as scenario files, to simulate them one by one.
    #[arg(long, value_name = "DIR", requires = "random")]
    keep: Option<PathBuf>,

    /// Requests of a run, at least as many as come within ten SLOs at full load [default: the
    /// scenario's; 20000 for random workloads].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    requests: Option<u64>,

    /// Loads, in percent of the highest goodput of any other policy.
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "30,60,85,110", value_parser = load)]
    loads: Vec<f64>,

    /// The measures.
    #[arg(
        long = "measure",
        value_name = "NAME,...",
        value_enum,
        value_delimiter = ',',
        default_value = "goodput,mean,p99,in-time"
    )]
    measures: Vec<Measure>,

    /// The server's objective.
    #[arg(long, value_enum, default_value = "latency")]
    objective: ObjectiveArg,

    #[command(flatten)]
    policy: PolicyArgs,

    /// Compare with this policy only, in all its settings; may be repeated. `simple` stands for
    /// the published policies of one plain rule.
    #[arg(long, value_name = "NAME", value_parser = rivals())]
    against: Vec<String>,

    /// Fail if the geometric mean of any kind in any world is below this ratio.
    #[arg(long, value_name = "RATIO")]
    floor: Option<f64>,

    /// Run the others as a server would, too, with its admission control and margins, so that only
    /// the policies differ.
    #[arg(long)]
    all_as_served: bool,

    /// Let the others run several batches in parallel on a device. Simulated devices share their
    /// time ideally, as real ones seldom do.
    #[arg(long)]
    lanes: bool,

    /// Number of concurrent simulations [default: the number of cores]. The results do not depend
    /// on it.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    #[command(flatten)]
    report: ReportArgs,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

/// Number of requests in a run of a random workload.
const REQUESTS: u64 = 20_000;

fn load(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 1000.0 => Ok(percent / 100.0),
        _ => Err("it must be a number of percent above 0 and at most 1000".to_owned()),
    }
}

pub(crate) fn run(args: &ComparePoliciesArgs) -> anyhow::Result<()> {
    let (mut workloads, skipped) = inputs::read(&args.paths, &args.worlds, args.requests)?;
    let seed = (!args.random.is_empty()).then(|| args.seed.unwrap_or_else(fresh_seed));
    if let Some(seed) = seed {
        let kinds: Vec<Kind> = args.random.iter().flat_map(Kinds::kinds).copied().collect();
        let (worlds, cases, keep) = (args.worlds.as_slice(), args.cases, args.keep.as_deref());
        let requests = args.requests.unwrap_or(REQUESTS);
        workloads.extend(inputs::draw(RandomWorkloads { kinds: &kinds, worlds, seed, cases, requests, keep })?);
        eprintln!("random workloads from seed {seed}; --seed {seed} repeats them");
    }
    let options = args.policy.over(Options::new());
    if args.policy.policy.is_none() && !options.is_empty() {
        bail!("--option needs --policy NAME; without it the options of the default policy follow from the models");
    }
    let chosen = args.policy.policy.as_deref().map(find).transpose()?.map(|policy| (policy, &options));
    let (objective, against) = (args.objective.into(), args.against.as_slice());
    let rules = ContestRules { objective, chosen, against, all_as_served: args.all_as_served, lanes: args.lanes };
    let plan = ContestPlan { rules, measures: args.measures.clone(), loads: args.loads.clone() };
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let pool = Pool::new(args.jobs.map_or(cores, NonZeroUsize::get), workloads.len())?;
    pool.catch_interrupt()?;

    let mut comparison = ContestResults::new(args.objective.into(), &plan, skipped);
    comparison.seed = seed;
    let count = workloads.len();
    for (place, workload) in (1..).zip(&workloads) {
        match plan.hold(workload, &pool) {
            Ok(Ok(contest)) => {
                pool.say(&format!("{place}/{count} {}", print::line(&contest)));
                comparison.contests.push(contest);
            }
            Ok(Err(skipped)) => comparison.skipped.push(skipped),
            Err(_) if pool.is_stopped() => break,
            Err(error) => return Err(error.context(workload.name.clone())),
        }
        pool.next();
    }
    pool.finish();
    for skipped in &comparison.skipped {
        eprintln!("skipped {}: {}", skipped.scenario, skipped.why);
    }
    if comparison.contests.is_empty() && !pool.is_stopped() {
        bail!("nothing to compare: every scenario was skipped, for the reasons above");
    }
    args.report.write(|| report_file::of_comparison(&comparison.rows_of_report()))?;
    comparison.print(args.format)?;
    if pool.is_stopped() {
        let done = comparison.contests.len();
        bail!("interrupted: these are the first {done} of {count} scenarios");
    }
    let below = args.floor.map(|floor| comparison.below(floor)).unwrap_or_default();
    match (args.floor, below.as_slice()) {
        (Some(floor), [_, ..]) => bail!("below the floor of {floor}: {}", below.join(", ")),
        _ => Ok(()),
    }
}

/// Returns a seed that no earlier comparison had.
fn fresh_seed() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs())
}

/// Returns the names of policies to compare with.
fn rivals() -> PossibleValuesParser {
    PossibleValuesParser::new(CATALOGUE.iter().map(|policy| policy.name).chain([SIMPLE_ONES]))
}
