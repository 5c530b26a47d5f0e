//! Names and messages in the field's words: identifiers, file names and string literals are judged
//! by the list of `words.txt`, like comments.
//!
//! An identifier is split at `_` and before capitals, so `nobodyWaits` and `nobody_waits` are two
//! words each. Of strings only those with a space are messages; a word alone may be a key of a
//! format.

use super::Finding;
use super::source::Source;
use super::vocabulary::{Vocabulary, banned_in};
use std::collections::BTreeSet;

/// The list is tested here with what it bans.
const EXEMPT: &str = "xtask/src/tidy/";

/// Checks all three.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let words = Vocabulary::read();
    let checked = sources.iter().filter(|source| !source.is_generated() && !source.path.starts_with(EXEMPT));
    checked
        .flat_map(|source| [file_name(source, &words), names(source, &words), messages(source, &words)].concat())
        .collect()
}

fn file_name(source: &Source, words: &Vocabulary) -> Vec<Finding> {
    let name = source.path.rsplit('/').next().unwrap_or_default();
    judge(&in_words(name), words).map(|message| source.finding(1, "file-names", message)).collect()
}

/// Judges each identifier once a file, where it stands first.
fn names(source: &Source, words: &Vocabulary) -> Vec<Finding> {
    let (mut findings, mut seen) = (Vec::new(), BTreeSet::new());
    for (line, number) in source.code.lines().zip(1..) {
        let found = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
        for name in found.filter(|name| seen.insert((*name).to_owned())).collect::<Vec<_>>() {
            let judged = judge(&in_words(name), words);
            findings.extend(judged.map(|message| source.finding(number, "names", format!("`{name}`: {message}"))));
        }
    }
    findings
}

fn messages(source: &Source, words: &Vocabulary) -> Vec<Finding> {
    let lines = source.strings.lines().zip(1..).filter(|(line, _)| line.trim().contains(' '));
    let judged = lines.flat_map(|(line, number)| banned_in(&words.words, line).map(move |message| (number, message)));
    judged.map(|(number, message)| source.finding(number, "messages", message)).collect()
}

fn judge<'a>(text: &str, words: &'a Vocabulary) -> impl Iterator<Item = String> + use<'a> {
    banned_in(&words.words, text).chain(banned_in(&words.names, text))
}

/// Returns the words of a name, separated by spaces.
fn in_words(name: &str) -> String {
    let (mut split, mut lower) = (String::with_capacity(2 * name.len()), false);
    for c in name.chars() {
        if c.is_uppercase() && lower {
            split.push(' ');
        }
        lower = c.is_lowercase() || c.is_ascii_digit();
        split.push(if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let findings = check(&[Source::new(path, Some(text.to_owned()))]);
        findings.into_iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn identifiers_are_judged_by_their_words() {
        let code =
            "fn nobody_waits() {}\nstruct WhoeverWaits;\nconst AT_ONCE: u8 = 2;\nlet indoors = nobody_waits();\n";
        assert_eq!(found("crates/a/src/b.rs", code), [("names", 1), ("names", 2), ("names", 3)]);
        assert!(found("crates/a/src/b.rs", "let nobodyish = 1; // fine\n").is_empty());
    }

    #[test]
    fn file_names_are_judged_in_every_language() {
        assert_eq!(found("tests/attack/doors.py", "x = 1\n"), [("file-names", 1)]);
        assert_eq!(found("tests/python/test_culprits.py", "x = 1\n"), [("file-names", 1)]);
        assert!(found("tests/python/test_indoors.py", "x = 1\n").is_empty());
    }

    #[test]
    fn messages_are_judged_and_keys_are_not() {
        let code = "bail!(\"nobody waits\");\nlet key = \"door\";\n";
        assert_eq!(found("crates/a/src/b.rs", code), [("messages", 1)]);
        assert!(found("xtask/src/tidy/words.rs", code).is_empty());
    }
}
