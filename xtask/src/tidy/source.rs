//! A file of the repository, and its code without comments and strings.

use super::Finding;

/// Files written by a program; only rules about their place hold for them.
const GENERATED: [&str; 1] = ["crates/wire/src/generated"];
/// Files that are read as text. Others (models, pictures) are only known to exist.
const TEXT: [&str; 18] = [
    "rs",
    "toml",
    "md",
    "py",
    "sh",
    "c",
    "yml",
    "yaml",
    "json",
    "proto",
    "txt",
    "html",
    "css",
    "js",
    "justfile",
    "run",
    "gitignore",
    "svg",
];

/// A file of the repository.
pub(super) struct Source {
    /// Path from the root, with forward slashes.
    pub(super) path: String,
    /// The text; empty for a file that is none.
    pub(super) text: String,
    /// The text of a Rust file with comments, strings and character literals blanked out, line by
    /// line the same.
    pub(super) code: String,
    /// The text within the string literals of a Rust file, line by line at the same place.
    pub(super) strings: String,
}

impl Source {
    pub(super) fn new(path: &str, text: Option<String>) -> Source {
        let extension = path.rsplit(['.', '/']).next().unwrap_or_default();
        let text = text.filter(|_| TEXT.contains(&extension)).unwrap_or_default();
        let (code, strings) = if extension == "rs" { parts_of(&text) } else { Default::default() };
        Source { path: path.into(), text, code, strings }
    }

    pub(super) fn is(&self, extension: &str) -> bool {
        self.path.ends_with(&format!(".{extension}"))
    }

    pub(super) fn is_generated(&self) -> bool {
        GENERATED.iter().any(|folder| self.path.starts_with(folder))
    }

    /// Whether the whole file is test code.
    pub(super) fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/") || self.path.contains("/benches/")
    }

    /// The code ahead of the file's test module, which stands last by our custom.
    pub(super) fn code_without_tests(&self) -> &str {
        if self.is_test() {
            return "";
        }
        let start = self.code.find("#[cfg(test)]\nmod tests {").unwrap_or(self.code.len());
        &self.code[..start]
    }

    pub(super) fn finding(&self, line: usize, rule: &'static str, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, rule, message: message.into() }
    }
}

/// The numbers, from 1, of the lines in which `word` stands alone, not as a part of a longer word.
pub(super) fn lines_with<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.lines().enumerate().filter(move |(_, line)| has_word(line, word)).map(|(index, _)| index + 1)
}

fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let closed = |text: &str| part_of_word(text.chars().next_back());
    line.match_indices(word).any(|(at, _)| {
        let before = part_of_word(line[..at].chars().next_back()) && part_of_word(word.chars().next());
        let after = part_of_word(line[at + word.len()..].chars().next()) && closed(word);
        !before && !after
    })
}

/// Returns the code and the strings of a text, each with all else blanked but line breaks.
fn parts_of(text: &str) -> (String, String) {
    let blank = |taken: &str| taken.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect::<String>();
    let mut rest = text;
    let (mut code, mut strings) = (String::with_capacity(text.len()), String::with_capacity(text.len()));
    while let Some(first) = rest.chars().next() {
        let hidden = hidden_prefix(rest, code.chars().next_back());
        let length = hidden.unwrap_or(first.len_utf8());
        let (taken, remaining) = rest.split_at(length);
        code.push_str(&if hidden.is_some() { blank(taken) } else { taken.to_owned() });
        let is_string = hidden.is_some() && taken.starts_with(['"', 'r']);
        strings.push_str(&if is_string { taken.to_owned() } else { blank(taken) });
        rest = remaining;
    }
    (code, strings)
}

/// The length of the comment or literal that `text` begins with, if it begins with one.
fn hidden_prefix(text: &str, before: Option<char>) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    if text.starts_with('"') {
        return Some(quoted(text, 1, '"'));
    }
    if text.starts_with('r') && !before.is_some_and(|c| c.is_alphanumeric() && c != 'b' || c == '_') {
        return raw_string(text);
    }
    if text.starts_with('\'') {
        return character(text);
    }
    None
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        let step = if rest.starts_with(b"/*") {
            depth += 1;
            2
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            2
        } else {
            1
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length up to and including the closing quote, with escapes skipped.
fn quoted(text: &str, start: usize, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text[start..].char_indices() {
        if !escaped && c == quote {
            return start + at + c.len_utf8();
        }
        escaped = !escaped && c == '\\';
    }
    text.len()
}

fn raw_string(text: &str) -> Option<usize> {
    let hashes = text[1..].chars().take_while(|&c| c == '#').count();
    let body = text[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(1 + hashes + 1 + length)
}

/// A character literal, and not a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut rest = text[1..].chars();
    let first = rest.next()?;
    if first == '\\' {
        return Some(quoted(text, 1, '\''));
    }
    (rest.next()? == '\'').then(|| 1 + first.len_utf8() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        parts_of(text).0
    }

    #[test]
    fn strings_are_kept_apart_in_their_places() {
        assert_eq!(parts_of("f(\"a\") // \"b\"").1, "  \"a\"        ");
        assert_eq!(parts_of("g(r#\"a\"#,\n'b')").1, "  r#\"a\"# \n    ");
    }

    #[test]
    fn comments_are_blanked() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */\n */ d"), "a             \n    d");
    }

    #[test]
    fn strings_are_blanked() {
        assert_eq!(code(r#"f("a\"b") + c"#), "f(      ) + c");
        assert_eq!(code(r##"f(r#"a"b"#) + c"##), "f(        ) + c");
        assert_eq!(code("f(\"// no comment\") + c"), "f(               ) + c");
    }

    #[test]
    fn characters_are_blanked_and_lifetimes_are_not() {
        assert_eq!(code("f('\"', '\\'') + c"), "f(   ,     ) + c");
        assert_eq!(code("f<'a>(x: &'a str)"), "f<'a>(x: &'a str)");
    }

    #[test]
    fn names_that_end_in_r_are_no_raw_strings() {
        assert_eq!(code("for r in var { r# }"), "for r in var { r# }");
    }

    #[test]
    fn words_are_whole_words() {
        assert_eq!(
            lines_with("Instant\nInstantly\nan Instant::now\nmy_Instant", "Instant").collect::<Vec<_>>(),
            [1, 3]
        );
        assert_eq!(lines_with("f64::from", "f64").count(), 1);
        assert_eq!(lines_with("todo!()", "todo!(").count(), 1);
    }

    #[test]
    fn the_test_module_is_cut_off() {
        let source =
            Source::new("crates/base/src/a.rs", Some("fn a() {}\n#[cfg(test)]\nmod tests {\n    f64\n}\n".into()));
        assert_eq!(source.code_without_tests(), "fn a() {}\n");
    }

    #[test]
    fn what_is_no_text_is_only_known_by_name() {
        assert_eq!(Source::new("a/model.onnx", Some("text".into())).text, "");
        assert_eq!(Source::new(".ci/run", Some("text".into())).text, "text");
        assert_eq!(Source::new("justfile", Some("text".into())).text, "text");
    }
}
