//! Prose as the rules see it: paragraphs, across the lines in which they are wrapped, and their
//! sentences.
//!
//! A list item, a heading and each cell of a table is a paragraph. Fenced code is none. A code span
//! is one word, and so is a list of code spans: what a name says is not read as a sentence.

/// Text that belongs together, and the line on which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paragraph {
    pub(super) line: usize,
    pub(super) text: String,
}

/// Returns the paragraphs of Markdown, which is given line by line.
pub(super) fn paragraphs<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Paragraph> {
    let (mut found, mut fenced, mut open): (Vec<Paragraph>, bool, bool) = (Vec::new(), false, false);
    for (number, line) in lines {
        let line = line.trim();
        if line.starts_with("```") {
            (fenced, open) = (!fenced, false);
        } else if fenced || line.is_empty() {
            open = false;
        } else if let Some(row) = line.strip_prefix('|') {
            let cells = row.split('|').map(str::trim).filter(|cell| cell.contains(char::is_alphanumeric));
            found.extend(cells.map(|cell| Paragraph { line: number, text: cell.to_owned() }));
            open = false;
        } else if let Some(last) = found.last_mut().filter(|_| open && list_item(line).is_none()) {
            last.text.push(' ');
            last.text.push_str(line);
        } else {
            let text = list_item(line).unwrap_or(line).trim_start_matches(['#', ' ']);
            found.push(Paragraph { line: number, text: text.to_owned() });
            open = !line.starts_with('#');
        }
    }
    found
}

/// Returns the text of a list item without its mark.
fn list_item(line: &str) -> Option<&str> {
    let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let mark = if numbered.len() < line.len() { numbered.strip_prefix(". ") } else { None };
    mark.or_else(|| line.strip_prefix("- ")).or_else(|| line.strip_prefix("* "))
}

/// Returns the number of words of each sentence, with its first words. A sentence ends at a full
/// stop, question mark, exclamation mark or colon before a space.
pub(super) fn sentences(paragraph: &str) -> Vec<(usize, String)> {
    let (mut sentences, mut words, mut first) = (Vec::new(), 0, String::new());
    let plain = without_code_and_links(paragraph);
    for token in plain.split_whitespace() {
        if token.contains(char::is_alphanumeric) {
            words += 1;
            if words <= FIRST_WORDS {
                first.push_str(token);
                first.push(' ');
            }
        }
        let end = token.trim_end_matches(['"', '\'', ')', '*', ']']);
        if end.ends_with(['.', '?', '!', ':']) || token == "·" {
            sentences.push((std::mem::take(&mut words), std::mem::take(&mut first)));
        }
    }
    sentences.push((words, first));
    sentences.retain(|(words, _)| *words > 0);
    sentences
}

/// Words of a sentence that a finding quotes.
const FIRST_WORDS: usize = 6;

/// Replaces each code span, or list of them, by the word `code`, and each link by its text.
fn without_code_and_links(paragraph: &str) -> String {
    let (mut plain, mut listed) = (String::with_capacity(paragraph.len()), false);
    for (part, is_code) in paragraph.split('`').zip([false, true].into_iter().cycle()) {
        if is_code {
            if !listed {
                plain.push_str("code");
            }
            listed = true;
        } else {
            listed = listed && matches!(part.trim(), "," | "" | ", and" | "and" | "or");
            if !listed {
                plain.push_str(part);
            }
        }
    }
    let mut text = String::with_capacity(plain.len());
    for (at, part) in plain.split("](").enumerate() {
        let shown = if at == 0 { part } else { part.split_once(')').map_or(part, |(_, rest)| rest) };
        text.push_str(shown);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        paragraphs((1..).zip(text.lines())).into_iter().map(|paragraph| paragraph.text).collect()
    }

    fn counts(text: &str) -> Vec<usize> {
        sentences(text).into_iter().map(|(words, _)| words).collect()
    }

    #[test]
    fn paragraphs_are_joined_across_lines_and_items_are_apart() {
        assert_eq!(texts("a b\nc\n\nd\n"), ["a b c", "d"]);
        assert_eq!(texts("# Head\ntext\n- one\n  more\n2. two\n"), ["Head", "text", "one more", "two"]);
        assert_eq!(texts("| a | b c |\n|---|---|\nx\n```\ncode\n```\n"), ["a", "b c", "x"]);
        assert_eq!(paragraphs([(4, "a"), (5, "b"), (6, ""), (7, "c")].into_iter())[1].line, 7);
    }

    #[test]
    fn sentences_end_at_a_full_stop_or_a_colon_before_a_space() {
        assert_eq!(counts("One two. Three: four five? (Six.) 1.5 is no end"), [2, 1, 2, 1, 4]);
        assert_eq!(counts("a - b"), [2]);
    }

    #[test]
    fn code_spans_and_links_are_the_words_that_are_read() {
        assert_eq!(counts("the call `f(a, b. c)` ends"), [4]);
        assert_eq!(counts("`a`, `b`, `c` and `d` are flags"), [3]);
        assert_eq!(counts("see [the long page](docs/a b.md) for it"), [6]);
        assert_eq!(counts("[one](a) · [two](b)"), [1, 1]);
    }
}
