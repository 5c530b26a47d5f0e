//! `ripieno simulate`: runs a scenario in virtual time, with the scheduling code of the live
//! server.

use crate::args::overrides::Overrides;
use crate::args::policy::POLICIES;
use crate::commands::recording::{ReadRecording, RecordingArgs, Replayed};
use crate::commands::what_if::{self, Change, WhatIfRun};
use crate::output::report_file::{self, ReportArgs};
use crate::output::{self, print_json};
use anyhow::{Context, bail};
use clap::Args;
use ripieno_report::{Format, Summary, models_table, policies_table, windows_table};
use ripieno_sim::{Trace, simulate};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Run a scenario in virtual time, to predict the performance of models on these devices, under
/// this load and policy.
///
/// The simulator runs the same scheduling code as the live server. Equal seeds give equal results,
/// bit for bit.
#[derive(Args, Debug)]
#[command(after_help = POLICIES)]
pub(crate) struct SimulateArgs {
    /// The scenario file; see scenarios/ for examples.
    #[arg(required_unless_present = "recording", conflicts_with = "recording")]
    scenario: Option<PathBuf>,

    #[command(flatten)]
    recording: RecordingArgs,

    #[command(flatten)]
    overrides: Overrides,

    /// Simulate a recording with this change, too, and print the difference: policy=NAME,
    /// devices=N, slo.MODEL=MS or max_batch.MODEL=ROWS. May be repeated: each is tried alone.
    #[arg(long, value_name = "KEY=VALUE", requires = "recording", conflicts_with = "trace_out")]
    what_if: Vec<Change>,

    #[command(flatten)]
    report: ReportArgs,

    /// Write requests.csv and tasks.csv of the run into this folder.
    #[arg(long, value_name = "DIR")]
    trace_out: Option<PathBuf>,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    if let Some(file) = args.recording.recording.as_ref().filter(|_| !args.what_if.is_empty()) {
        return compare(args, file);
    }
    let (scenario, measured, file) = match (&args.scenario, &args.recording.recording) {
        (Some(file), _) => {
            args.recording.check_absent()?;
            (args.overrides.read(file)?, None, file)
        }
        (None, Some(file)) => {
            let Replayed { scenario, measured } = args.recording.read(file, &args.overrides)?;
            (scenario, Some(measured), file)
        }
        (None, None) => bail!("there is nothing to simulate; give a scenario file or --recording FILE"),
    };
    scenario.check_run(&file.display().to_string())?;
    let traced = args.trace_out.is_some() || args.report.report.is_some();
    let mut trace = traced.then(|| Trace::new(&scenario.setup.models));
    let started = Instant::now();
    let mut summary = simulate(&scenario, trace.as_mut())?;
    summary.wall_s = started.elapsed().as_secs_f64();
    if let Some(trace) = &trace {
        let runs: Vec<&Summary> = measured.iter().chain([&summary]).collect();
        args.report.write(|| report_file::of_simulation(&scenario, trace, &runs))?;
    }
    if let Some((trace, folder)) = trace.zip(args.trace_out.as_ref()) {
        trace.write(folder).with_context(|| format!("cannot write the trace into {}", folder.display()))?;
    }
    print(&SimulateOutput { summary, measured }, args.format)
}

/// Simulates a recording as it was and with each change.
fn compare(args: &SimulateArgs, file: &Path) -> anyhow::Result<()> {
    let read = ReadRecording::open(file)?;
    let mut runs = vec![WhatIfRun::measured(&read), what_if::run(&read, &args.recording, &args.overrides, &[])?];
    for change in &args.what_if {
        runs.push(what_if::run(&read, &args.recording, &args.overrides, std::slice::from_ref(change))?);
    }
    args.report.write(|| {
        let summaries = runs.iter().map(|run| &run.summary);
        report_file::of_runs("What if", &format!("changes to {}, each alone", file.display()), summaries)
    })?;
    match args.format {
        Format::Json => print_json(&runs),
        Format::Table => output::print(what_if::table(&runs)),
    }
}

/// The results of a run, with the measurement if it repeats a recording.
#[derive(Serialize)]
struct SimulateOutput {
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Summary>,
}

fn print(simulated: &SimulateOutput, format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        return print_json(simulated);
    }
    let SimulateOutput { summary, measured } = simulated;
    output::print(policies_table(measured.iter().chain([summary])))?;
    if summary.models.len() > 1 {
        output::print(models_table(summary))?;
    }
    if !summary.windows.is_empty() {
        output::print(windows_table(&summary.windows))?;
    }
    Ok(())
}
