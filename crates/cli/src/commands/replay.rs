//! `ripieno replay`: passes a recorded live run through the scheduler again.

use crate::output::{self, print_json};
use anyhow::{Context, bail};
use clap::Args;
use ripieno_policies::{ServedPolicy, build_shards};
use ripieno_report::Format;
use ripieno_runtime::{Header, ReplayReport, replay};
use ripieno_sched::Options;
use std::path::PathBuf;

/// Replay a recording of `ripieno serve --record FILE`, and check that the scheduler makes the same
/// decisions.
///
/// A recording holds every input of the scheduler with its instant, and every decision. If the
/// replay agrees, the live run can be examined offline; a difference means that this build decides
/// differently from the recorded one.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// The recording.
    #[arg(value_name = "FILE")]
    recording: PathBuf,

    /// Output format.
    #[arg(long, default_value_t, value_name = "table|json")]
    format: Format,
}

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let replayed = replay(&args.recording, scheduler)?;
    let ReplayReport { inputs, settles, truncated, difference } = &replayed;
    if args.format == Format::Json {
        print_json(&serde_json::json!({
            "inputs": inputs, "settles": settles, "truncated": truncated,
            "equal": difference.is_none(), "first_difference_line": difference.as_ref().map(|found| found.line),
        }))?;
    } else {
        let end = if *truncated { "; the recording lacks its end" } else { "" };
        output::print(format!("{settles} settles over {inputs} inputs decided as recorded{end}"))?;
    }
    match difference {
        None => Ok(()),
        Some(found) => bail!(
            "line {}, at {:?}: recorded {:?}, but decided {:?}",
            found.line,
            found.now,
            found.recorded,
            found.decided
        ),
    }
}

fn scheduler(header: &Header) -> anyhow::Result<ServedPolicy> {
    let options: Options = serde_json::from_value(header.options.clone()).context("the options in its first line")?;
    Ok(build_shards(&header.policy, &header.setup, &options, header.shards)?)
}
