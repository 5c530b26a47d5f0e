//! `cargo xtask ci`: what a change must pass, the quick checks first.
//!
//! The lints of the whole come with the build of the tests. So the dependencies are compiled once,
//! and read once more for the documentation.

use crate::python::{CLIENTS, Environment};
use crate::steps::{cargo, lint_builds, output, step};
use crate::{attack, deny, judge, test, tidy};
use anyhow::{Result, anyhow};
use std::process::Command;

/// Runs everything; stops at the first failure. The packages of the Python clients are fetched
/// meanwhile: that waits for the network, the lints for the processor.
pub(crate) fn run() -> Result<()> {
    std::thread::scope(|scope| {
        let packages = scope.spawn(|| Environment::prepare(&CLIENTS));
        checks()?;
        packages.join().map_err(|_| anyhow!("fetching the Python packages panicked"))??;
        lint_builds()?;
        test::run(test::Which::Rust)?;
        judge::run()?;
        // Both wait for clocks most of the time.
        let attacks = scope.spawn(attack::short);
        test::run(test::Which::Python)?;
        let table = attacks.join().map_err(|_| anyhow!("the attacks panicked"))??;
        println!("\n=== attacks, short form\n{table}");
        Ok(())
    })
}

fn checks() -> Result<()> {
    step("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    spelling()?;
    step("kernels", Command::new("scripts/ptx").arg("--check"))?;
    deny::run()?;
    let mut docs = cargo(&["doc", "--workspace", "--no-deps"]);
    step("documentation", docs.env("RUSTDOCFLAGS", "-D warnings"))?;
    let without = ["clippy", "--package", "ripieno-cli", "--no-default-features", "--", "-D", "warnings"];
    step("lints without features", &mut cargo(&without))
}

/// Checks the spelling with typos, where it is installed.
fn spelling() -> Result<()> {
    if output(Command::new("typos").arg("--version")).is_err() {
        eprintln!("\n=== spelling: skipped: typos is not installed; cargo install --locked typos-cli");
        return Ok(());
    }
    step("spelling", &mut Command::new("typos"))
}
