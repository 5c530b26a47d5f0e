//! `cargo xtask attack`: builds the server, and has `tests/attack` do to it what a hostile client or model would.
//!
//! The attacks are Python, because the clients that a server meets are: the stock ones are installed anyway, and what
//! they cannot be made to do is a socket and a few bytes.

use crate::python::{CLIENTS, Environment};
use crate::steps::{cargo, step};
use anyhow::Result;

/// Attacks the release server, or the development one with `--short`; an error if anything did not hold. The options are
/// those of `tests/attack`.
pub(crate) fn run(options: &[&str]) -> Result<()> {
    let environment = Environment::prepare(&CLIENTS)?;
    let short = options.contains(&"--short");
    // The development build is that of the tests, whose features are those of the whole workspace.
    let build: &[&str] =
        if short { &["build", "--workspace", "--bins"] } else { &["build", "--package", "ripieno-cli", "--release"] };
    step("build the server", &mut cargo(build))?;
    let mut attacks = environment.script("tests/attack")?;
    attacks.arg("--binary").arg(environment.target().join(if short { "debug" } else { "release" }).join("ripieno"));
    step("attacks", attacks.args(options))
}
