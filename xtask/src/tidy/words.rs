//! Comments that a stranger reads once: bounded width, no word or opening of the list in
//! `words.txt`.
//!
//! The list names the word to write instead, so that the finding teaches. It holds for comments of
//! Rust files and for the docs; ADRs are records and keep their words.

use super::Finding;
use super::source::Source;

/// Last column of a comment line, and of a line of the docs.
const WIDTH: usize = 100;
/// Last column of a table row in the docs, which cannot be wrapped.
const TABLE_WIDTH: usize = 160;
const LIST: &str = include_str!("words.txt");
/// Documents that the rules hold for; paths that end in a slash are folders.
const DOCS: [&str; 5] = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/"];
/// Documents and generated tables that they do not hold for.
const EXEMPT: [&str; 2] = ["docs/internals/adr/", "docs/research/reproduce"];

/// An entry of the list: what is banned, and the text to write instead.
struct Entry {
    banned: &'static str,
    instead: &'static str,
}

/// The list, by kind.
struct Words {
    words: Vec<Entry>,
    openings: Vec<Entry>,
}

impl Words {
    fn parse(list: &'static str) -> Words {
        let mut parsed = Words { words: Vec::new(), openings: Vec::new() };
        for line in list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let [kind, banned, instead] = cells[..] else { panic!("words.txt: not 'kind | word | instead': {line}") };
            let entries = match kind {
                "word" => &mut parsed.words,
                "opening" => &mut parsed.openings,
                _ => panic!("words.txt: {kind:?} is neither 'word' nor 'opening'"),
            };
            entries.push(Entry { banned, instead });
        }
        parsed
    }

    fn judge(&self, text: &str, opens: bool) -> Vec<String> {
        let lower = text.to_lowercase();
        let words = self.words.iter().filter(|entry| has_word(&lower, entry.banned));
        let openings = self.openings.iter().filter(|entry| opens && begins_with(text, entry.banned));
        let word = |entry: &Entry| format!("\"{}\": write {}", entry.banned, entry.instead);
        let opening = |entry: &Entry| format!("opens with \"{}\": begin with {}", entry.banned, entry.instead);
        words.map(word).chain(openings.map(opening)).collect()
    }
}

/// Checks comments and documents.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let words = Words::parse(LIST);
    let rust = sources.iter().filter(|source| source.is("rs") && !source.is_generated());
    let docs = sources.iter().filter(|source| is_document(&source.path));
    rust.flat_map(|source| comments(source, &words)).chain(docs.flat_map(|source| document(source, &words))).collect()
}

fn is_document(path: &str) -> bool {
    let under = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    path.ends_with(".md") && under(&DOCS) && !under(&EXEMPT)
}

fn comments(source: &Source, words: &Words) -> Vec<Finding> {
    let (mut findings, mut before) = (Vec::new(), "");
    for ((line, code), number) in source.text.lines().zip(source.code.lines()).zip(1..) {
        let text = line.trim_start();
        let kind = ["///", "//!", "//"].into_iter().find(|kind| text.starts_with(kind)).unwrap_or_default();
        // Behind code, a comment begins where the blanked text does; a literal is not one.
        let end = code.trim_end().len();
        let trailing = line.get(end..).filter(|rest| rest.trim_start().starts_with("//"));
        let Some(comment) = (if kind.is_empty() { trailing } else { Some(text) }) else {
            before = "";
            continue;
        };
        if line.chars().count() > WIDTH && !comment.contains("://") {
            let message = format!("{} columns; wrap comments at {WIDTH}", line.chars().count());
            findings.push(source.finding(number, "comment-width", message));
        }
        let opens = before != kind && matches!(kind, "///" | "//!");
        let said = comment.trim_start().trim_start_matches(['/', '!']).trim();
        findings.extend(words.judge(said, opens).into_iter().map(|message| source.finding(number, "words", message)));
        before = kind;
    }
    findings
}

fn document(source: &Source, words: &Words) -> Vec<Finding> {
    let (mut findings, mut fenced) = (Vec::new(), false);
    for (line, number) in source.text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let width = line.chars().count();
        let most = if line.starts_with('|') { TABLE_WIDTH } else { WIDTH };
        if width > most && !fenced && !line.contains("](") && !line.contains("://") {
            findings.push(source.finding(number, "comment-width", format!("{width} columns; wrap at {most}")));
        }
        let judged = if fenced { Vec::new() } else { words.judge(line, false) };
        findings.extend(judged.into_iter().map(|message| source.finding(number, "words", message)));
    }
    findings
}

fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(is_letter);
        let after = text[at + word.len()..].chars().next().is_some_and(is_letter);
        !before && !after
    })
}

fn begins_with(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| !rest.starts_with(is_letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let source = Source::new(path, Some(text.into()));
        check(&[source]).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_banned_word_is_found_in_comments_and_says_what_to_write() {
        let found = messages("crates/a/src/b.rs", "/// The request that nobody waits for.\nlet door = \"door\";\n");
        assert_eq!(found, ["\"nobody\": write no client, no request, no model"]);
        assert_eq!(messages("crates/a/src/b.rs", "f(); // the door\n").len(), 1);
        assert!(messages("crates/a/src/b.rs", "f(\"the door\"); // indoors\n").is_empty());
    }

    #[test]
    fn an_opening_is_found_on_the_first_line_of_a_doc_comment() {
        let opens = |text: &str| messages("crates/a/src/b.rs", text).len();
        assert_eq!(opens("/// What a task takes.\n"), 1);
        assert_eq!(opens("/// The time that a task takes.\n/// What follows is said elsewhere.\n"), 0);
        assert_eq!(opens("// What a task takes.\n"), 0);
        assert_eq!(opens("/// Whatever a task takes.\n"), 0);
    }

    #[test]
    fn wide_comments_are_found_and_wide_code_is_not() {
        let wide = "x".repeat(WIDTH);
        assert_eq!(messages("crates/a/src/b.rs", &format!("/// {wide}\n")).len(), 1);
        assert_eq!(messages("crates/a/src/b.rs", &format!("f(); // {wide}\n")).len(), 1);
        assert!(messages("crates/a/src/b.rs", &format!("f(\"{wide}\");\n")).is_empty());
        assert!(messages("crates/a/src/b.rs", &format!("// see https://{wide}\n")).is_empty());
    }

    #[test]
    fn documents_are_held_to_it_but_not_their_code_nor_records() {
        let wide = format!("The door.\n```\nthe door {}\n```\n", "x".repeat(WIDTH));
        for (path, count) in [("README.md", 1), ("docs/guide/a.md", 1), ("docs/internals/adr/1.md", 0), ("a.md", 0)] {
            assert_eq!(messages(path, &wide).len(), count, "{path}");
        }
        assert_eq!(messages("README.md", &format!("{}\n", "x".repeat(WIDTH + 1))).len(), 1);
        assert!(messages("README.md", &format!("|{}|\n", "x".repeat(WIDTH + 1))).is_empty());
    }

    #[test]
    fn the_list_is_well_formed() {
        let Words { words, openings } = Words::parse(LIST);
        assert!(words.len() > 20 && openings.len() > 5);
        assert!(words.iter().all(|entry| entry.banned == entry.banned.to_lowercase() && !entry.instead.is_empty()));
    }
}
