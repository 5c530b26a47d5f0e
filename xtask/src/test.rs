//! `cargo xtask test`: every test there is, in Rust and with the stock Python clients. The
//! exporter's tests want PyTorch and run when asked for.
//!
//! The Python environment comes first, because the Rust tests of the `onnxruntime` engine load
//! their library from its wheel. Binaries and tests are built in one go, so that cargo settles on
//! one set of features and builds nothing twice.

use crate::programs;
use crate::python::{CLIENTS, EXPORT, Environment};
use crate::steps::{cargo, root, step, timed};
use anyhow::Result;
use std::process::Command;

/// Which tests to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    Rust,
    Python,
    /// The exporter's tests alone.
    Export,
}

/// The model checker on the parts of the runtime that share memory without locks, as the tests of
/// the workspace build it.
const LOOM: &str = "target/debug/examples/loom";

/// Runs them; an error if one fails.
pub(crate) fn run(which: Which) -> Result<()> {
    if which == Which::Export {
        return export_tests();
    }
    let environment = Environment::prepare(&CLIENTS)?;
    build()?;
    if which != Which::Python {
        timed("Rust tests", || programs::run(&environment.onnxruntime()?))?;
        step("examples in the documentation", &mut cargo(&["test", "--workspace", "--doc"]))?;
        step("every order of lock-free steps", &mut Command::new(root().join(LOOM)))?;
    }
    if which != Which::Rust {
        python_tests(&environment)?;
    }
    println!("\nAll tests passed.");
    Ok(())
}

/// Builds binaries and tests.
pub(crate) fn build() -> Result<()> {
    step("build the server and the tests", &mut cargo(&["build", "--workspace", "--all-targets"]))
}

/// Files run side by side, since a test mostly waits for its server. The KServe client has a
/// process to itself: it and Triton's register protobuf messages of the same names.
fn python_tests(environment: &Environment) -> Result<()> {
    let mut side_by_side = environment.pytest(&["tests/python"])?;
    side_by_side.args(["--numprocesses", "3", "--dist", "loadfile"]);
    step("Python client tests", &mut side_by_side)?;
    step("KServe client tests", &mut environment.pytest(&["tests/python/test_kserve_client.py"])?)
}

fn export_tests() -> Result<()> {
    let environment = Environment::prepare(&EXPORT)?;
    step("build the server", &mut cargo(&["build", "--workspace", "--bins"]))?;
    step("exporter tests", &mut environment.pytest(&["tests/export"])?)
}
