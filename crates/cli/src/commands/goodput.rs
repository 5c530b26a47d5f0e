//! `ripieno goodput`: the highest load that a scenario's devices carry.

use crate::args::overrides::Overrides;
use crate::args::policy::POLICIES;
use crate::output::report_file::{self, ReportArgs};
use crate::output::{self, print_json};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ripieno_report::{Format, Summary, policies_table};
use ripieno_sim::{Goodput, goodput};
use std::path::PathBuf;
use std::time::Instant;

/// Search for the goodput of a scenario: the highest offered rate at which every model's bad rate
/// (dropped or late) stays within 1 %.
///
/// The rate in the scenario is ignored; everything else is as in `ripieno simulate`.
#[derive(Args, Debug)]
#[command(after_help = POLICIES)]
pub(crate) struct GoodputArgs {
    /// The scenario file; see scenarios/ for examples.
    scenario: PathBuf,

    #[command(flatten)]
    overrides: Overrides,

    #[command(flatten)]
    report: ReportArgs,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &GoodputArgs) -> anyhow::Result<()> {
    let scenario = args.overrides.read(&args.scenario)?;
    scenario.check_goodput(&args.scenario.display().to_string())?;
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{spinner} {msg}")?);
    let mut started = Instant::now();
    let found = goodput(&scenario, |summary| {
        summary.wall_s = std::mem::replace(&mut started, Instant::now()).elapsed().as_secs_f64();
        let (rate, bad) = (summary.total.offered_rps, 100.0 * summary.worst_bad_rate);
        bar.set_message(format!("{rate:.0} requests/s: worst bad rate {bad:.2} %"));
        bar.tick();
    })?;
    bar.finish_and_clear();
    args.report.write(|| {
        let runs = [&found.good, &found.bad].into_iter().flatten().map(|trial| &trial.run);
        let title = format!("Goodput of {}: {:.1} requests/s", scenario.policy, found.goodput_rps());
        report_file::of_runs(&title, "the last rate that was good, and the first that was not", runs)
    })?;
    print(&scenario.policy, &found, args.format)
}

fn print(policy: &str, found: &Goodput, format: Format) -> anyhow::Result<()> {
    let run = |trial: &Option<ripieno_report::RateTrial<Summary>>| trial.as_ref().map(|trial| trial.run.clone());
    let (good, bad) = (run(&found.good), run(&found.bad));
    if format == Format::Json {
        return print_json(&serde_json::json!({
            "policy": policy,
            "goodput_rps": found.goodput_rps(),
            "last_good": good,
            "first_bad": bad,
            "runs": found.runs,
        }));
    }
    output::print(format!(
        "goodput of {policy}: {:.1} requests/s ({} runs; the last good and the first bad one:)",
        found.goodput_rps(),
        found.runs
    ))?;
    output::print(policies_table(good.iter().chain(&bad)))?;
    if bad.is_none() {
        output::print("no rate was too much: so few requests are all answered within one SLO; raise requests")?;
    }
    Ok(())
}
