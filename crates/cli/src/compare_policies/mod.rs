//! `ripieno compare`: compares the server's own choice of a policy with the best one, on
//! the user's workloads.
//!
//! The promise "one policy, one number per model" is worth only what a user can check. So nothing
//! here is tuned to our scenarios: `contestants.rs` defines the candidates, `contest.rs` the
//! measures.

mod contest;
mod contestants;
mod inputs;
mod pool;
mod print;
mod random;

use crate::policy::{ObjectiveArg, PolicyArgs};
use crate::report_file::{self, ReportArgs};
use anyhow::bail;
use clap::Args;
use clap::builder::PossibleValuesParser;
use contest::{ContestPlan, Measure};
use contestants::ContestRules;
use pool::Pool;
use print::ContestResults;
use random::Kind;
use ripieno_report::Format;
use ripieno_sched::{CATALOGUE, Options, find};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Compare the server's own choice of a policy with the best of all, on scenarios of your own.
///
/// Each scenario is simulated as `ripieno serve` would run it (as `ripieno simulate --as-served`
/// does), and under every policy that can serve it, with a few settings each: windows from 1 to 50
/// ms, ways to gather, orders, widths. A ratio of 1 is as good as the best of them all, chosen anew
/// for each scenario and measure; below 1 is worse, for rates and latencies alike. No single policy
/// is the best everywhere, so a ratio of 1 on average is more than any of them has.
///
/// Measures: `goodput`, the highest rate at which at most 1 % of any model's requests are dropped
/// or late. The best goodput of the others sets the loads: up to 100 % of it latencies are
/// compared, `mean`, `median` and `p99` (of several models the geometric mean of theirs); beyond,
/// `in-time`, the fraction answered within the SLO, of the model with the lowest. A policy that
/// drops or delays more than 1 % of any model's requests counts as overloaded; its latencies are
/// not compared. If that is the server's choice, its ratio is 0, and counts as 0.05 in the
/// geometric mean.
///
/// The others run without the server's admission control, margins and fitted batches, and drop
/// requests that can no longer be in time; --all-as-served adds the server's admission control and
/// margins. With --policy another policy takes the place of the server's choice, as `ripieno serve
/// --policy` would run it. Differences of about 1 % are chance, and larger ones where a model has
/// few requests: raise --requests.
///
/// For example, on all scenarios of a folder, and on 30 random workloads of whole models:
///
///   ripieno compare my-scenarios --requests 20000
///   ripieno compare --random whole --seed 1 --cases 30
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct ComparePoliciesArgs {
    /// Compare live on this machine instead: see `ripieno compare --live --help`.
    #[arg(long)]
    live: bool,

    /// Scenario files, and folders of them. Those whose load cannot be varied (with a
    /// requests_file, phases or a plan) are skipped.
    #[arg(required_unless_present = "random", conflicts_with = "random")]
    paths: Vec<PathBuf>,

    /// Workloads drawn from seeds instead of files.
    #[arg(long, value_name = "KIND", value_enum)]
    random: Option<Kind>,

    /// The first seed of random workloads.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "random")]
    seed: u64,

    /// Number of random workloads, one per seed.
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

    /// Compare with this policy only, in all its settings; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(CATALOGUE.iter().map(|policy| policy.name)))]
    against: Vec<String>,

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
    debug_assert!(!args.live, "main gives --live to its own command");
    let (workloads, skipped) = match args.random {
        None => inputs::read(&args.paths, args.requests)?,
        Some(kind) => {
            let requests = args.requests.unwrap_or(REQUESTS);
            (inputs::draw(kind, args.seed, args.cases, requests, args.keep.as_deref())?, Vec::new())
        }
    };
    let options = args.policy.over(Options::new());
    if args.policy.policy.is_none() && !options.is_empty() {
        bail!(
            "--option is of the policy that --policy names; the server's own choice has the options that suit the models"
        );
    }
    let chosen = args.policy.policy.as_deref().map(find).transpose()?.map(|policy| (policy, &options));
    let (objective, against) = (args.objective.into(), args.against.as_slice());
    let rules = ContestRules { objective, chosen, against, all_as_served: args.all_as_served, lanes: args.lanes };
    let plan = ContestPlan { rules, measures: args.measures.clone(), loads: args.loads.clone() };
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let pool = Pool::new(args.jobs.map_or(cores, NonZeroUsize::get), workloads.len())?;
    pool.catch_interrupt()?;

    let mut comparison = ContestResults::new(args.objective.into(), &plan, skipped);
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
    Ok(())
}
