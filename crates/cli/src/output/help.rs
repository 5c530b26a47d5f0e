//! Help that fits a page: commands in groups, and of servers the flags that most people need.
//!
//! `ripieno --help` shows the commands by what a reader wants to do. `--help` of `serve` and of the
//! roles of a cluster shows the [`ESSENTIAL`] flags, `--help-all` shows all of them.

use clap::{Arg, ArgAction, Command};
use std::fmt::Write as _;

/// A heading, and commands with what each is for.
type Group = (&'static str, &'static [(&'static str, &'static str)]);

/// Commands by what a reader wants to do, in the order of `ripieno --help`.
const GROUPS: [Group; 4] = [
    (
        "Serve",
        &[
            ("demo", "see it work in half a minute: models answer, policies compete"),
            ("serve", "serve a repository of models, or one ONNX file, over HTTP and gRPC"),
            ("models", "list a repository's models, with errors"),
            ("health", "ask a server of this machine whether it is alive, or ready"),
            ("profile", "measure latency by batch size"),
            ("migrate", "explain the config.pbtxt files of a Triton repository"),
            ("new", "write the folder of a model in Python"),
            ("slice", "cut a model into a chain of blocks"),
        ],
    ),
    (
        "Understand",
        &[
            ("bench", "load a server, open loop, and measure the answers"),
            ("compare", "compare policies on scenarios, or with --live on a model of yours"),
            ("policies", "list the scheduling policies, or explain one"),
            ("simulate", "run a scenario or a recording in virtual time"),
            ("goodput", "find the highest load that a scenario's devices carry"),
            ("plan", "compute the devices that a load needs, and which models share them"),
            ("why", "name the cause of each late, refused or failed request"),
            ("doctor", "find the smallest change that removes the late requests of a recording"),
            ("replay", "repeat a recorded run decision by decision"),
        ],
    ),
    (
        "Cluster",
        &[
            ("frontend", "accept requests for a scheduler on another machine"),
            ("scheduler", "schedule for frontends and backends"),
            ("backend", "run models for a scheduler"),
            ("cluster-demo", "lose a part of a cluster under load, and see what clients notice"),
        ],
    ),
    (
        "Research and tools",
        &[
            ("reproduce", "run a figure or table of a paper, beside the paper's values"),
            ("completions", "print completions for a shell"),
            ("man", "write the manual pages"),
        ],
    ),
];

/// Commands with two pages of help.
const SERVERS: [&str; 4] = ["serve", "frontend", "scheduler", "backend"];

/// Flags of servers that stand on the first page.
const ESSENTIAL: [&str; 20] = [
    "repository",
    "http",
    "grpc",
    "metrics",
    "device",
    "devices",
    "engine",
    "threads",
    "policy",
    "options",
    "objective",
    "tls_cert",
    "tls_key",
    "tokens",
    "admin",
    "epoch",
    "schedulers",
    "listen",
    "config",
    "help",
];

/// Arranges the help of a command line.
pub(crate) fn arrange(command: Command) -> Command {
    let command = SERVERS.into_iter().fold(command, |command, name| command.mut_subcommand(name, two_pages));
    let listed = listed();
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}\nOptions:\n{{options}}"
    ))
}

fn two_pages(command: Command) -> Command {
    let all = Arg::new("help_all").long("help-all").action(ArgAction::HelpLong).help("Print help on all flags");
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print this help");
    let command = command.mut_args(|arg| {
        let essential = ESSENTIAL.contains(&arg.get_id().as_str()) || arg.is_required_set();
        arg.hide_short_help(!essential)
    });
    command.disable_help_flag(true).arg(help).arg(all)
}

/// The commands in their groups, one a line.
fn listed() -> String {
    let mut text = String::new();
    for (group, commands) in GROUPS {
        let _ = writeln!(text, "{group}:");
        for (name, purpose) in commands {
            let _ = writeln!(text, "  {name:14} {purpose}");
        }
        text.push('\n');
    }
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group_and_its_line_fits() {
        let command = crate::command();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help");
        let mut names: Vec<&str> = shown.map(Command::get_name).collect();
        let mut grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, commands)| commands.iter().map(|(name, _)| *name)).collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(names, grouped);
        let help = crate::command().render_help().to_string();
        assert!(help.lines().count() <= 50, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }

    #[test]
    fn the_help_of_a_server_fits_a_page_and_the_rest_is_one_flag_away() {
        for name in SERVERS {
            let mut command = crate::command();
            command.build();
            let server = command.find_subcommand_mut(name).unwrap();
            let (page, all) = (server.render_help().to_string(), server.render_long_help().to_string());
            assert!(page.lines().count() <= 60, "{name}: {} lines\n{page}", page.lines().count());
            assert!(page.contains("--help-all") && all.lines().count() > page.lines().count(), "{name}");
        }
    }
}
