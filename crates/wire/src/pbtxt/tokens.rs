//! Lexer of protobuf's text format.

/// A token and its byte offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl Token<'_> {
    pub(super) fn opens(self) -> bool {
        matches!(self.text, "{" | "<")
    }

    pub(super) fn closes(self) -> bool {
        matches!(self.text, "}" | ">")
    }

    pub(super) fn is_string(self) -> bool {
        self.text.starts_with(['"', '\''])
    }
}

/// Iterates over the tokens of a text, without whitespace and comments. Terminates on any input.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0 }
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = &self.text[self.at..];
            let first = rest.chars().next()?;
            if first == '#' {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if first.is_whitespace() {
                self.at += first.len_utf8();
            } else {
                let length = match first {
                    '"' | '\'' => string_length(rest, first),
                    _ if is_word(first) => rest.find(|next| !is_word(next)).unwrap_or(rest.len()),
                    _ => first.len_utf8(),
                };
                let token = Token { text: &rest[..length], at: self.at };
                self.at += length;
                return Some(token);
            }
        }
    }
}

fn is_word(next: char) -> bool {
    next.is_ascii_alphanumeric() || matches!(next, '_' | '.' | '+')
}

/// Returns the length up to and including the closing quote, or up to the end of the line, because
/// strings do not span lines.
fn string_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, next) in rest.char_indices().skip(1) {
        match next {
            '\n' => return at,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if next == quote => return at + next.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// Returns the byte offset at which the text nests deeper than `most`.
pub(super) fn beyond_depth(text: &str, most: usize) -> Option<usize> {
    let mut depth = 0_usize;
    Lexer::new(text).find_map(|token| {
        if token.opens() {
            depth += 1;
        } else if token.closes() {
            depth = depth.saturating_sub(1);
        }
        (depth > most).then_some(token.at)
    })
}

/// Inserts the colon between a field name and a list, which the format makes optional and the
/// parser requires. Line numbers are unchanged.
pub(super) fn with_colons(text: &str) -> String {
    let (mut with, mut copied, mut after_name) = (String::with_capacity(text.len() + 64), 0, false);
    for token in Lexer::new(text) {
        if after_name && token.text == "[" {
            with.push_str(&text[copied..token.at]);
            with.push(':');
            copied = token.at;
        }
        after_name = token.text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    }
    with + &text[copied..]
}

/// Returns the line, counted from one, of a byte offset.
pub(super) fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count()
}
