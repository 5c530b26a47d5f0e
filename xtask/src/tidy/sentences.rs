//! Sentences that are read once: at most 30 words in a comment, 35 in the docs.

use super::Finding;
use super::prose::{Paragraph, paragraphs, sentences};
use super::source::Source;
use super::words::{comment_blocks, is_prose};

/// Most words of a sentence in a comment.
const IN_COMMENTS: usize = 30;
/// Most words of a sentence in a document.
const IN_DOCS: usize = 35;

/// Checks comments and documents.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    sources.iter().flat_map(in_source).collect()
}

fn in_source(source: &Source) -> Vec<Finding> {
    if source.is("rs") && !source.is_generated() {
        let blocks = comment_blocks(source).into_iter();
        let texts = blocks.flat_map(|block| paragraphs(block.lines.into_iter()));
        return texts.flat_map(|paragraph| too_long(source, &paragraph, IN_COMMENTS)).collect();
    }
    if is_prose(&source.path) {
        let lines = (1..).zip(source.text.lines());
        return paragraphs(lines).iter().flat_map(|paragraph| too_long(source, paragraph, IN_DOCS)).collect();
    }
    Vec::new()
}

fn too_long(source: &Source, paragraph: &Paragraph, most: usize) -> Vec<Finding> {
    let long = sentences(&paragraph.text).into_iter().filter(|(words, _)| *words > most);
    let message = |(words, first): (usize, String)| {
        format!("{words} words from \"{}…\": split the sentence, {most} is the most", first.trim_end())
    };
    long.map(|sentence| source.finding(paragraph.line, "sentence-length", message(sentence))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let findings = check(&[Source::new(path, Some(text.to_owned()))]);
        findings.into_iter().map(|finding| (finding.line, finding.message)).collect()
    }

    fn wrapped(mark: &str, words: usize) -> String {
        let lines = ["word ".repeat(words / 2), "word ".repeat(words - words / 2)];
        lines.map(|line| format!("{mark}{}\n", line.trim_end())).concat()
    }

    #[test]
    fn a_long_sentence_is_found_across_the_lines_of_a_comment() {
        let text = format!("struct A;\n{}", wrapped("/// ", 31));
        let expected = "31 words from \"word word word word word word…\": split the sentence, 30 is the most";
        assert_eq!(found("crates/a/src/b.rs", &text), [(2, expected.to_owned())]);
        assert!(found("crates/a/src/b.rs", &wrapped("//! ", 30)).is_empty());
        assert!(found("crates/a/src/b.rs", &format!("{}//\n{}", wrapped("// ", 20), wrapped("// ", 20))).is_empty());
        assert!(found("crates/a/src/b.rs", &format!("f(\"{}\");\n", "word ".repeat(40))).is_empty());
    }

    #[test]
    fn documents_may_have_five_more() {
        assert!(found("docs/guide/a.md", &wrapped("", 35)).is_empty());
        assert_eq!(found("docs/guide/a.md", &wrapped("", 36)).len(), 1);
        assert_eq!(found("docs/internals/adr/1.md", &wrapped("", 36)).len(), 1);
        assert!(found("models/a.md", &wrapped("", 36)).is_empty());
    }
}
