//! Holds `docs/reference/cli.md` to the program: the same commands, and the same flags of each.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/reference/cli.md");
const SERVERS: [&str; 4] = ["serve", "frontend", "scheduler", "backend"];
/// Flags that every command has.
const COMMON: [&str; 3] = ["--help", "--help-all", "--version"];

fn printed(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ripieno")).args(words).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

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
    let flag = |line: &str| {
        let words = line.split_whitespace().map(|word| word.trim_matches([',', '[', ']']));
        let first = words.take(2).find(|word| word.starts_with('-'))?.to_owned();
        let long = line.split_whitespace().take(2).find(|word| word.starts_with("--"));
        // A wrapped description may begin with a flag that it mentions.
        Some(long.map_or(first, |long| long.trim_end_matches(',').to_owned())).filter(|flag| flag.starts_with("--"))
    };
    let starts = help.lines().filter(|line| line.trim_start().starts_with('-') && line.starts_with(' '));
    starts.filter_map(flag).filter(|flag| !COMMON.contains(&flag.as_str())).collect()
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
