//! The `ripieno` binary: parses the command line, wires the crates together, prints results.

mod access;
mod address;
mod bench;
mod bounds;
mod cluster_demo;
mod compare;
mod compare_policies;
mod control;
mod corpus;
mod demo;
mod devices;
mod doctor;
mod documents;
mod environment;
mod flight;
mod goodput;
#[cfg(test)]
mod guides;
mod health;
mod help;
mod logs;
#[cfg(test)]
mod manifests;
mod migrate;
mod models;
mod output;
mod overrides;
mod plan;
mod policies;
mod policy;
mod recording;
mod replay;
mod replies;
mod report_file;
mod reproduce;
mod roles;
mod serve;
mod server_threads;
mod service;
mod settings;
mod simulate;
mod slice;
mod stages;
mod tables;
mod try_command;
mod what_if;
mod why;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use logs::LogFormat;
use settings::ServerSettings;
use std::ffi::OsString;
use std::process::ExitCode;

/// The version, and the commit that it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("RIPIENO_BUILT_FROM"), ")");

/// A DNN inference server whose product is batching: one number per model, the SLO, and it does the
/// rest.
///
/// Start with `ripieno demo`: it needs no accelerator, no network and no configuration.
#[derive(Parser)]
#[command(name = "ripieno", version = VERSION, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    ClusterDemo(cluster_demo::ClusterDemoArgs),
    Serve(Box<serve::ServeArgs>),
    Frontend(roles::frontend::FrontendArgs),
    Scheduler(roles::scheduler::SchedulerArgs),
    Backend(roles::backend::BackendArgs),
    Models(models::ModelsArgs),
    Health(health::HealthArgs),
    Migrate(migrate::MigrateArgs),
    Profile(models::ProfileArgs),
    Slice(slice::SliceArgs),
    Bench(ripieno_bench::BenchArgs),
    Compare(compare_policies::ComparePoliciesArgs),
    // The form of `compare` with --live, which has flags of its own.
    #[command(
        hide = true,
        name = LIVE,
        override_usage = "ripieno compare --live REPOSITORY --model NAME --policy NAME[,KEY=VALUE]... [OPTIONS]"
    )]
    CompareLive(compare::CompareArgs),
    Policies(policies::PoliciesArgs),
    Replay(replay::ReplayArgs),
    Why(why::WhyArgs),
    Doctor(doctor::DoctorArgs),
    Simulate(simulate::SimulateArgs),
    Goodput(goodput::GoodputArgs),
    Plan(plan::PlanArgs),
    Reproduce(reproduce::ReproduceArgs),
    Completions(documents::CompletionsArgs),
    Man(documents::ManArgs),
    /// Runs the engine of one model for the server that started this.
    #[command(hide = true)]
    EngineProcess {
        /// Name of the model, for the list of processes.
        #[arg(allow_hyphen_values = true)]
        model: String,
    },
}

fn command() -> clap::Command {
    help::arrange(environment::for_servers(Cli::command()))
}

/// The name under which the parser knows `compare --live`.
const LIVE: &str = "compare-live";

/// Turns `compare --live …` into the command of that mode: its flags differ from those for
/// scenarios.
fn with_modes(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_compare = words.get(1).is_some_and(|word| word == "compare");
    if let Some(at) = words.iter().position(|word| word == "--live").filter(|_| is_compare) {
        words.remove(at);
        words[1] = LIVE.into();
    }
    words
}

/// The exit status of a wrong command line, as clap's.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let words = with_modes(std::env::args_os().collect());
    let settings = match ServerSettings::read(words, &command()) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    let matches = command().try_get_matches_from(&settings.words).unwrap_or_else(|error| settings.exit(&error));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let format = match &cli.command {
        Command::Serve(args) => args.log_format,
        Command::Frontend(args) => args.log_format,
        Command::Scheduler(args) => args.log_format,
        Command::Backend(args) => args.log_format,
        _ => LogFormat::Text,
    };
    let level = if let Command::Models(_) = &cli.command { models::LOG_LEVEL } else { logs::LEVEL };
    logs::start(format, level);
    settings.log();
    let outcome = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::ClusterDemo(args) => cluster_demo::run(&args),
        Command::Serve(args) => serve::run(*args),
        Command::Frontend(args) => roles::frontend::run(&args),
        Command::Scheduler(args) => roles::scheduler::run(&args),
        Command::Backend(args) => roles::backend::run(&args),
        Command::Models(args) => models::list(&args),
        Command::Health(args) => health::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Profile(args) => models::measure(&args),
        Command::Slice(args) => slice::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compare(args) => compare_policies::run(&args),
        Command::CompareLive(args) => compare::run(&args),
        Command::Policies(args) => policies::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Goodput(args) => goodput::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Completions(args) => documents::completions(&args, command()),
        Command::Man(args) => documents::man(&args, command()),
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
