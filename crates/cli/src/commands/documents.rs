//! Completions for shells, and manual pages, generated from the command line itself so that they
//! cannot be outdated.

use crate::output;
use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::{Path, PathBuf};

/// Print the completions for a shell.
///
/// For bash: ripieno completions bash > ~/.local/share/bash-completion/completions/ripieno
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Write the manual pages: ripieno.1 and one for each command.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The folder to write to, made if need be; without it, the page of ripieno itself is printed.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ripieno", &mut text);
    output::print(String::from_utf8(text)?.trim_end())
}

pub(crate) fn man(args: &ManArgs, mut command: Command) -> anyhow::Result<()> {
    command.build();
    let Some(folder) = &args.output else { return output::print(page(&command)?.trim_end()) };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    write(folder, "ripieno", &command)?;
    for part in command.get_subcommands().filter(|part| !part.is_hide_set() && part.get_name() != "help") {
        write(folder, &format!("ripieno-{}", part.get_name()), part)?;
    }
    Ok(())
}

fn write(folder: &Path, name: &str, command: &Command) -> anyhow::Result<()> {
    let file = folder.join(format!("{name}.1"));
    std::fs::write(&file, page(command)?).with_context(|| format!("cannot write {}", file.display()))
}

fn page(command: &Command) -> anyhow::Result<String> {
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text)?;
    Ok(String::from_utf8(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_command_is_in_the_completions_of_every_shell_and_in_the_manual() {
        let command = crate::command();
        for shell in Shell::value_variants() {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut command.clone(), "ripieno", &mut text);
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("migrate") && text.contains("exit-on-error"), "{shell}");
        }
        let folder = std::env::temp_dir().join(format!("ripieno-man-{}", std::process::id()));
        man(&ManArgs { output: Some(folder.clone()) }, command).unwrap();
        let serve = std::fs::read_to_string(folder.join("ripieno-serve.1")).unwrap();
        assert!(serve.contains("max\\-live") && serve.contains("ripieno\\-serve"), "{serve}");
        assert!(folder.join("ripieno-migrate.1").is_file() && !folder.join("ripieno-engine-process.1").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
