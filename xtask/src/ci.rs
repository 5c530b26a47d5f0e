//! `cargo xtask ci`: what a change must pass, the quick checks first.

use crate::steps::{cargo, step};
use crate::{attack, deny, test, tidy};
use anyhow::Result;

/// Runs everything; stops at the first failure.
pub(crate) fn run() -> Result<()> {
    step("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    deny::run()?;
    step("lints", &mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    let mut docs = cargo(&["doc", "--workspace", "--no-deps"]);
    step("documentation", docs.env("RUSTDOCFLAGS", "-D warnings"))?;
    test::run(test::Which::All)?;
    attack::run(&["--short"])
}
