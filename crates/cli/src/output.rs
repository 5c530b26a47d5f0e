//! How every command prints: a table for people, or one JSON object on stdout for programs; logs go to stderr.

use serde::Serialize;

/// Prints `value` as one JSON object on a line.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}
