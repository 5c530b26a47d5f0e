//! The `ripieno` binary: parses the command line, wires the crates together, prints results.

mod args;
mod commands;
mod download;
#[cfg(test)]
mod guides;
#[cfg(test)]
mod manifests;
mod output;
mod service;

use args::logs::LogFormat;
use args::settings::ServerSettings;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
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
    Demo(commands::demo::DemoArgs),
    ClusterDemo(commands::cluster_demo::ClusterDemoArgs),
    Serve(Box<commands::serve::ServeArgs>),
    Frontend(commands::roles::frontend::FrontendArgs),
    Scheduler(commands::roles::scheduler::SchedulerArgs),
    Backend(commands::roles::backend::BackendArgs),
    Models(commands::models::ModelsArgs),
    Health(commands::health::HealthArgs),
    Migrate(commands::migrate::MigrateArgs),
    New(commands::new::NewArgs),
    Profile(commands::models::ProfileArgs),
    Slice(commands::slice::SliceArgs),
    Bench(ripieno_bench::BenchArgs),
    Compare(Box<CompareCommand>),
    Policies(commands::policies::PoliciesArgs),
    Replay(commands::replay::ReplayArgs),
    Why(commands::why::WhyArgs),
    Doctor(commands::doctor::DoctorArgs),
    Simulate(commands::simulate::SimulateArgs),
    Goodput(commands::goodput::GoodputArgs),
    Plan(commands::plan::PlanArgs),
    Reproduce(commands::reproduce::ReproduceArgs),
    Completions(commands::documents::CompletionsArgs),
    Man(commands::documents::ManArgs),
    /// Runs the engine of one model for the server that started this.
    #[command(hide = true)]
    EngineProcess {
        /// Name of the model, for the list of processes.
        #[arg(allow_hyphen_values = true)]
        model: String,
    },
}

/// `compare` on scenarios; with --live it has flags of its own.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, disable_help_subcommand = true)]
struct CompareCommand {
    #[command(subcommand)]
    mode: Option<CompareMode>,

    #[command(flatten)]
    scenarios: commands::compare_policies::ComparePoliciesArgs,
}

#[derive(Subcommand)]
enum CompareMode {
    #[command(
        long_flag = "live",
        override_usage = "ripieno compare --live REPOSITORY --model NAME --policy NAME[,KEY=VALUE]... [OPTIONS]"
    )]
    Live(commands::compare::CompareArgs),
}

fn command() -> clap::Command {
    output::help::arrange(args::environment::for_servers(Cli::command()))
}

/// The exit status of a wrong command line, as clap's.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    args::environment::begin_without_telemetry();
    let settings = match ServerSettings::read(std::env::args_os().collect(), &command()) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    let matches =
        command().try_get_matches_from(&settings.words).unwrap_or_else(|error| settings.exit(&error, &command()));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let format = match &cli.command {
        Command::Serve(args) => args.log_format,
        Command::Frontend(args) => args.log_format,
        Command::Scheduler(args) => args.log_format,
        Command::Backend(args) => args.log_format,
        _ => LogFormat::Text,
    };
    let level = match &cli.command {
        Command::Models(_) => commands::models::LOG_LEVEL,
        // The frontends of a live item are in this process.
        Command::Reproduce(_) => "warn",
        _ => args::logs::LEVEL,
    };
    args::logs::start(format, level);
    settings.log();
    let outcome = match cli.command {
        Command::Demo(args) => commands::demo::run(&args),
        Command::ClusterDemo(args) => commands::cluster_demo::run(&args),
        Command::Serve(args) => commands::serve::run(*args),
        Command::Frontend(args) => commands::roles::frontend::run(&args),
        Command::Scheduler(args) => commands::roles::scheduler::run(&args),
        Command::Backend(args) => commands::roles::backend::run(&args),
        Command::Models(args) => commands::models::list(&args),
        Command::Health(args) => commands::health::run(&args),
        Command::Migrate(args) => commands::migrate::run(&args),
        Command::New(args) => commands::new::run(&args),
        Command::Profile(args) => commands::models::measure(&args),
        Command::Slice(args) => commands::slice::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Compare(args) => match &args.mode {
            Some(CompareMode::Live(live)) => commands::compare::run(live),
            None => commands::compare_policies::run(&args.scenarios),
        },
        Command::Policies(args) => commands::policies::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Why(args) => commands::why::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
        Command::Goodput(args) => commands::goodput::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Reproduce(args) => commands::reproduce::run(&args),
        Command::Completions(args) => commands::documents::completions(&args, command()),
        Command::Man(args) => commands::documents::man(&args, command()),
        Command::EngineProcess { .. } => ripieno_executor::serve_engine().map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            match format {
                LogFormat::Text => eprintln!("error: {error:#}"),
                // The log's reader finds why the server ended.
                LogFormat::Json => tracing::error!("{error:#}"),
            }
            ExitCode::FAILURE
        }
    }
}
