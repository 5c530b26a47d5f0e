//! The `ripieno` binary: parses the command line, wires the crates together, prints results.

mod bench;
mod goodput;
mod output;
mod policy;
mod simulate;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A DNN inference server whose product is batching: one number per model, the SLO, and it does the rest.
///
/// Start with `ripieno demo`: it needs no accelerator, no network and no configuration.
#[derive(Parser)]
#[command(name = "ripieno", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::BenchArgs),
    Simulate(simulate::SimulateArgs),
    Goodput(goodput::GoodputArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Bench(args) => bench::run(args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Goodput(args) => goodput::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
