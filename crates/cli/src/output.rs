//! Output of commands: a table for people, or one JSON object on stdout for programs; logs go to
//! stderr.

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
