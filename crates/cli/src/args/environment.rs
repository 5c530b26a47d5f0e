//! Flags of `serve`, and of the roles of a cluster, from the environment: `--max-live 500` is
//! `RIPIENO_MAX_LIVE=500`, for images and unit files.
//!
//! A flag on the command line takes precedence over a variable, a variable over the file of
//! [`crate::args::settings`]. One rule names all variables, so
//! that no flag is forgotten.

use clap::builder::{BoolishValueParser, OsStr};
use clap::{Arg, ArgAction, Command, value_parser};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

/// The flag whose variable is not named by the rule: `RIPIENO_TOKENS` holds tokens, not the name of
/// their file.
const TOKENS: (&str, &str) = ("tokens", "RIPIENO_TOKENS_FILE");

/// The long-running commands.
pub(crate) const SERVERS: [&str; 4] = ["serve", "frontend", "scheduler", "backend"];

/// The id of the flag that names the file of settings.
pub(crate) const CONFIG: &str = "config";

/// The variable that keeps ONNX Runtime from sending reports.
const NO_TELEMETRY: &str = "ORT_DISABLE_TELEMETRY";

/// Starts this program anew with ONNX Runtime's reports switched off, unless they are already.
///
/// Some builds of that library queue a report of the machine and the program as soon as they are
/// loaded, before any call can switch that off. They send it over the network. A variable keeps
/// them from it, and a process cannot safely set its own. The process keeps its id.
pub(crate) fn begin_without_telemetry() {
    if std::env::var_os(NO_TELEMETRY).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut words = std::env::args_os();
    let mut again = std::process::Command::new(program);
    again.env(NO_TELEMETRY, "1");
    if let Some(name) = words.next() {
        again.arg0(name);
    }
    // On success it does not return; a program whose file is gone goes on as it is.
    drop(again.args(words).exec());
}

/// Adds the file of settings to every server, and to each of its flags its variable.
pub(crate) fn for_servers(command: Command) -> Command {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("File of settings: flags as keys, with _ for - [default: ripieno.toml here, if there is one].");
    SERVERS.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |one| one.arg(config.clone()).mut_args(with_variable))
    })
}

fn with_variable(arg: Arg) -> Arg {
    let name = match arg.get_long() {
        Some("help" | "version") => return arg,
        Some(long) => variable(long),
        None if arg.get_id() == "repository" => variable("repository"),
        None => return arg,
    };
    let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
    let arg = arg.env(OsStr::from(name)).hide_env(true);
    if is_flag { arg.value_parser(BoolishValueParser::new()) } else { arg }
}

fn variable(long: &str) -> String {
    match long == TOKENS.0 {
        true => TOKENS.1.to_owned(),
        false => format!("RIPIENO_{}", long.replace('-', "_").to_uppercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_flag_of_a_server_has_a_variable_of_its_own() {
        let command = for_servers(crate::Cli::command());
        command.clone().debug_assert();
        for server in SERVERS {
            let names = names(command.find_subcommand(server).unwrap());
            // Variables that have another meaning already.
            assert!(!names.contains(&"RIPIENO_LOG".to_owned()) && !names.contains(&"RIPIENO_TOKENS".to_owned()));
        }
        let names = names(command.find_subcommand("serve").unwrap());
        assert!(names.len() > 30 && names.contains(&"RIPIENO_MAX_LIVE".to_owned()), "{names:?}");
        assert!(names.contains(&"RIPIENO_TOKENS_FILE".to_owned()));
        assert!(command.find_subcommand("models").unwrap().get_arguments().all(|arg| arg.get_env().is_none()));
    }
    /// Returns the variables of a command, one for each of its flags.
    fn names(command: &Command) -> Vec<String> {
        let flags: Vec<&Arg> = command.get_arguments().filter(|arg| arg.get_id() != "help").collect();
        let mut names: Vec<String> =
            flags.iter().filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned())).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), flags.len());
        names
    }
}
