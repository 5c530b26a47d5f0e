//! Holds `docs/reference/cli.md` to the program: the same commands, and the same flags of each.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/reference/cli.md");
const SERVERS: [&str; 4] = ["serve", "frontend", "scheduler", "backend"];
/// Flags that every command has.
const COMMON: [&str; 3] = ["--help", "--help-all", "--version"];

fn printed(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ripieno")).args(words).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Indentation of flags; the text before them has none, descriptions are deeper.
const FLAG_INDENT: std::ops::RangeInclusive<usize> = 2..=6;

/// Returns the commands that `ripieno --help` lists, and the live form of `compare`.
fn commands() -> Vec<String> {
    let help = printed(&["--help"]);
    let indented = help.lines().filter_map(|line| line.strip_prefix("  "));
    let listed = indented.filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
    let names = listed.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    names.chain(["compare --live".to_owned()]).collect()
}

/// Returns the long flags with which lines of a help text begin.
fn flags_of(command: &str) -> BTreeSet<String> {
    let all = if SERVERS.contains(&command) { "--help-all" } else { "--help" };
    let words: Vec<&str> = command.split(' ').chain([all]).collect();
    let help = printed(&words);
    let is_flag = |line: &&str| {
        let text = line.trim_start();
        FLAG_INDENT.contains(&(line.len() - text.len())) && text.starts_with('-')
    };
    let words = help.lines().filter(is_flag).flat_map(|line| line.split_whitespace().take(2));
    let flags = words.filter(|word| word.starts_with("--") && !COMMON.contains(word));
    flags.map(str::to_owned).collect()
}

/// Returns the sections of the page, and the flags that each names in a code span of its own.
fn sections() -> BTreeMap<String, BTreeSet<String>> {
    let section = |text: &str| {
        let (name, body) = text.split_once('\n').unwrap_or((text, ""));
        let spans = body.split('`').skip(1).step_by(2);
        let flags = spans.filter(|span| span.starts_with("--") && !span.contains(char::is_whitespace));
        (name.trim().to_owned(), flags.map(str::to_owned).collect())
    };
    PAGE.split("\n### ").skip(1).map(|text| section(text.split("\n## ").next().unwrap_or(text))).collect()
}

#[test]
fn the_page_has_the_commands_and_flags_of_the_program() {
    let known: BTreeMap<String, BTreeSet<String>> =
        commands().into_iter().map(|command| (command.clone(), flags_of(&command))).collect();
    let page = sections();
    assert!(known.len() > 15 && known["serve"].contains("--http"), "{known:?}");
    assert_eq!(page.keys().collect::<Vec<_>>(), known.keys().collect::<Vec<_>>(), "commands of docs/reference/cli.md");
    for (command, flags) in known {
        assert_eq!(page[&command], flags, "flags of {command} in docs/reference/cli.md");
    }
}
