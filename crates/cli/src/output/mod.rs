//! The printed results of commands on stdout, JSON or text: tables, reports, help, and replies of a
//! server. Logs go to stderr.

pub(crate) mod help;
pub(crate) mod replies;
pub(crate) mod report_file;
pub(crate) mod tables;

use serde::Serialize;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// Prints a line on stdout. It is no error if the reader has closed the pipe, like `head`.
pub(crate) fn print(line: impl Display) -> anyhow::Result<()> {
    match writeln!(std::io::stdout().lock(), "{line}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Prints `value` as one JSON object on a line.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(serde_json::to_string(value)?)
}
