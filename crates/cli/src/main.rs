//! The `ripieno` binary: parses the command line, wires the crates together, prints results.

mod access;
mod bench;
mod bench_scheduler;
mod bench_wakeup;
mod bounds;
mod compare;
mod corpus;
mod demo;
mod devices;
mod goodput;
mod logs;
mod migrate;
mod models;
mod output;
mod overrides;
mod plan;
mod policy;
mod recording;
mod replay;
mod reproduce;
mod serve;
mod service;
mod simulate;
mod slice;
mod stages;
mod tables;

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
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Models(models::ModelsArgs),
    Migrate(migrate::MigrateArgs),
    Profile(models::ProfileArgs),
    Slice(slice::SliceArgs),
    Bench(bench::BenchArgs),
    Compare(compare::CompareArgs),
    BenchScheduler(bench_scheduler::BenchSchedulerArgs),
    BenchWakeup(bench_wakeup::BenchWakeupArgs),
    Replay(replay::ReplayArgs),
    Simulate(simulate::SimulateArgs),
    Goodput(goodput::GoodputArgs),
    Plan(plan::PlanArgs),
    Reproduce(reproduce::ReproduceArgs),
    /// Runs the engine of one model for the server that started this.
    #[command(hide = true)]
    EngineProcess {
        /// Its name, for whoever looks at the list of processes.
        #[arg(allow_hyphen_values = true)]
        model: String,
    },
}

fn main() -> ExitCode {
    logs::start();
    let outcome = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Models(args) => models::list(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Profile(args) => models::measure(&args),
        Command::Slice(args) => slice::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Compare(args) => compare::run(&args),
        Command::BenchScheduler(args) => bench_scheduler::run(&args),
        Command::BenchWakeup(args) => bench_wakeup::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Goodput(args) => goodput::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::EngineProcess { .. } => ripieno_executor::serve_engine().map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
