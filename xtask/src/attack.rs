//! `cargo xtask attack`: builds the server, and has `tests/attack` do to it what a hostile client
//! or model would.
//!
//! The attacks are Python, because the clients that a server meets are: the stock ones are
//! installed anyway, and what they cannot be made to do is a socket and a few bytes.

use crate::python::{CLIENTS, Environment};
use crate::steps::{cargo, step};
use anyhow::{Context, Result, bail};
use std::process::Command;

/// Attacks the release server, or the development one with `--short`; an error if anything did not
/// hold. The options go to `tests/attack`.
pub(crate) fn run(options: &[&str]) -> Result<()> {
    let environment = Environment::prepare(&CLIENTS)?;
    let short = options.contains(&"--short");
    // The tests are built with the features of the whole workspace, so their build is used.
    let build: &[&str] =
        if short { &["build", "--workspace", "--bins"] } else { &["build", "--package", "ripieno-cli", "--release"] };
    step("build the server", &mut cargo(build))?;
    step("attacks", attacks(&environment, short)?.args(options))
}

/// The short form against the development server that stands, without a word but for the table: the
/// caller does something else meanwhile.
pub(crate) fn short() -> Result<String> {
    let environment = Environment::prepare(&CLIENTS)?;
    let output = attacks(&environment, true)?.arg("--short").output().context("the attacks cannot be started")?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("attacks: {}\n{table}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(table)
}

fn attacks(environment: &Environment, short: bool) -> Result<Command> {
    let mut attacks = environment.script("tests/attack")?;
    attacks.arg("--binary").arg(environment.target().join(if short { "debug" } else { "release" }).join("ripieno"));
    Ok(attacks)
}
