//! The project's own commands: `cargo xtask tidy | test | judge | deny | ci | overhead |
//! attack | release`.
//!
//! They are a program, not shell scripts, so that the rules of the house can have tests of their
//! own and run wherever Rust runs. Every rule that a reader would otherwise have to remember in
//! review is a rule of [`tidy`].

mod attack;
mod ci;
mod deny;
mod fidelity;
mod judge;
mod overhead;
mod programs;
mod python;
mod release;
mod server;
mod steps;
mod test;
mod tidy;

use anyhow::{Result, bail};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  tidy                               check the rules of the house: dependency edges, clocks, sizes, docs, links
  test [--rust-only|--python-only]   run every test; makes a Python virtual environment under target/ on first use
  test --export                      the exporter's tests; its environment has PyTorch, several gigabytes on Linux
  venv                               only make that environment, and print the path of its onnxruntime library
  overhead                           measure what a request costs outside the model: CPU time and latency (Linux)
  fidelity [--seconds N] [--rounds N] [--binary FILE] [POLICY…]
                                     serve, record and simulate a load: is what is simulated what was served?
  attack [--short] [--format json]   attack a server as hostile clients and models would; says what held
  judge [--seed N]                   hold the default policy to its floor on random workloads of the day, in a minute
  deny                               licences, bans, sources and advisories of dependencies, with cargo-deny if it is there
  release [--dry-run]                check what a version must agree on, and write the checksums of its files
  ci                                 format, tidy, deny, lints, docs, every test: what a change must pass";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Result<()> {
    match words {
        ["tidy"] => tidy::run(),
        ["test"] => test::run(test::Which::All),
        ["test", "--rust-only"] => test::run(test::Which::Rust),
        ["test", "--python-only"] => test::run(test::Which::Python),
        ["test", "--export"] => test::run(test::Which::Export),
        ["venv"] => python::Environment::prepare(&python::CLIENTS)?.print(),
        ["overhead"] => overhead::run(),
        ["fidelity", options @ ..] => fidelity::run(options),
        ["attack", options @ ..] => attack::run(options),
        ["judge"] => judge::run(),
        ["judge", "--seed", seed] => judge::on(seed),
        ["deny"] => deny::run(),
        ["release"] => release::run(false),
        ["release", "--dry-run"] => release::run(true),
        ["ci"] => ci::run(),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("unknown command '{}'\n\n{USAGE}", words.join(" ")),
    }
}
