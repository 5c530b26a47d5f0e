//! Plain words and lines of one width: comments and docs keep to the field's words and end at
//! column 100.
//!
//! The list `words.txt` names the word to write instead, so that the finding teaches. ADRs are
//! records and keep their words.

use super::Finding;
use super::prose::paragraphs;
use super::source::Source;
use super::vocabulary::{Vocabulary, banned_first, banned_in};

/// Last column of a comment line, and of a line of the docs.
const WIDTH: usize = 100;
/// Last column of a table row in the docs, which cannot be wrapped.
const TABLE_WIDTH: usize = 160;
/// Documents that the rules hold for; paths that end in a slash are folders.
const DOCS: [&str; 6] = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md", "docs/"];
/// Documents that keep their words.
const RECORDS: &str = "docs/internals/adr/";
/// Generated tables.
const TABLES: &str = "docs/research/reproduce";
const MARKS: [&str; 3] = ["///", "//!", "//"];

/// Comment lines of one kind that follow each other.
pub(super) struct CommentBlock<'a> {
    /// Mark of the comment: `///`, `//!` or `//`.
    mark: &'a str,
    /// Text of each line without its mark, with the line's number.
    pub(super) lines: Vec<(usize, &'a str)>,
}

/// Checks comments and documents.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let words = Vocabulary::read();
    let rust = sources.iter().filter(|source| source.is("rs") && !source.is_generated());
    let docs = sources.iter().filter(|source| is_prose(&source.path));
    rust.flat_map(|source| comments(source, &words)).chain(docs.flat_map(|source| document(source, &words))).collect()
}

/// Returns true for documents that people write.
pub(super) fn is_prose(path: &str) -> bool {
    path.ends_with(".md") && DOCS.iter().any(|folder| path.starts_with(folder)) && !path.starts_with(TABLES)
}

/// Returns the comments of a Rust file.
pub(super) fn comment_blocks(source: &Source) -> Vec<CommentBlock<'_>> {
    let mut blocks: Vec<CommentBlock> = Vec::new();
    let mut before = None;
    for ((line, code), number) in source.text.lines().zip(source.code.lines()).zip(1..) {
        let text = line.trim_start();
        let alone = MARKS.into_iter().find(|mark| text.starts_with(mark));
        // Behind code, a comment begins where the blanked text does; a literal is not one.
        let trailing = line.get(code.trim_end().len()..).map(str::trim_start).filter(|rest| rest.starts_with("//"));
        let Some(text) = (if alone.is_some() { Some(text) } else { trailing }) else {
            before = None;
            continue;
        };
        let said = (number, text.trim_start_matches(['/', '!']));
        match blocks.last_mut() {
            Some(block) if alone.is_some() && before == alone => block.lines.push(said),
            _ => blocks.push(CommentBlock { mark: alone.unwrap_or("//"), lines: vec![said] }),
        }
        before = alone;
    }
    blocks
}

fn comments(source: &Source, words: &Vocabulary) -> Vec<Finding> {
    let mut findings = Vec::new();
    for block in comment_blocks(source) {
        for (number, said) in &block.lines {
            let width = source.text.lines().nth(number - 1).map_or(0, |line| line.chars().count());
            if width > WIDTH && !said.contains("://") {
                let message = format!("{width} columns; wrap comments at {WIDTH}");
                findings.push(source.finding(*number, "comment-width", message));
            }
            findings.extend(banned_in(&words.words, said).map(|message| source.finding(*number, "words", message)));
        }
        let (first, said) = block.lines[0];
        if block.mark != "//" {
            let opens = banned_first(&words.openings, said.trim());
            findings.extend(opens.map(|message| source.finding(first, "words", message)));
            let opens = banned_first(&words.pronouns, said.trim());
            findings.extend(opens.map(|message| source.finding(first, "pronouns", message)));
        }
        for paragraph in paragraphs(block.lines.into_iter()) {
            let phrases = banned_in(&words.phrases, &paragraph.text);
            findings.extend(phrases.map(|message| source.finding(paragraph.line, "phrases", message)));
        }
    }
    findings
}

fn document(source: &Source, words: &Vocabulary) -> Vec<Finding> {
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
    }
    if source.path.starts_with(RECORDS) {
        return findings;
    }
    for paragraph in paragraphs((1..).zip(source.text.lines())) {
        let judged = banned_in(&words.words, &paragraph.text);
        findings.extend(judged.map(|message| source.finding(paragraph.line, "words", message)));
        let judged = banned_in(&words.phrases, &paragraph.text);
        findings.extend(judged.map(|message| source.finding(paragraph.line, "phrases", message)));
        let judged = banned_first(&words.pronouns, &paragraph.text);
        findings.extend(judged.map(|message| source.finding(paragraph.line, "pronouns", message)));
    }
    findings
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
    fn a_pronoun_before_its_noun_is_found_where_a_text_begins() {
        for opening in ["Its queue.", "Whether it runs.", "Whether they run.", "Sum of their costs."] {
            assert_eq!(messages("crates/a/src/b.rs", &format!("/// {opening}\n")).len(), 1, "{opening}");
            assert_eq!(messages("docs/guide/a.md", &format!("Text.\n\n- {opening}\n")).len(), 1, "{opening}");
        }
        assert!(messages("docs/guide/a.md", "The model waits. Its queue is full.\n").is_empty());
    }

    #[test]
    fn phrases_are_found_across_lines() {
        assert_eq!(messages("crates/a/src/b.rs", "/// The end; none\n/// without one.\n").len(), 1);
        assert_eq!(messages("crates/a/src/b.rs", "// The cost is that\n// of a batch.\n").len(), 1);
        assert_eq!(messages("docs/guide/a.md", "The costs are those of\nothers.\n").len(), 1);
    }
}
