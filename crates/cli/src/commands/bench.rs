//! `ripieno bench`: open-loop load on any server of the Open Inference Protocol.

use crate::output::report_file;
use crate::output::{print, print_json};
use anyhow::Context;
use clap::error::ErrorKind;
use ripieno_bench::{BenchArgs, measure, table};
use ripieno_report::Format;

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if let Err(message) = args.check() {
        clap::Error::raw(ErrorKind::ArgumentConflict, format!("{message}\n\nFor more, try '--help'.\n")).exit();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start tokio")?;
    let results = measure(args, &runtime)?;
    report_file::write(args.report.as_ref(), || report_file::of_bench(&results))?;
    match args.format {
        Format::Json => print_json(&results),
        Format::Table => print(table(&results)),
    }
}
