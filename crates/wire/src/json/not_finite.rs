//! The words `NaN`, `Infinity` and `-Infinity` in requests, which Python's `json` writes and JSON
//! does not have.

use std::borrow::Cow;

/// The words, the longer ones that contain a shorter one first.
const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Returns the number of a word without its quotes.
pub(super) fn number(word: &str) -> Option<f64> {
    match word {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Returns the text with each word outside of strings put into quotes, so that it is JSON.
pub(super) fn quoted(text: &[u8]) -> Cow<'_, [u8]> {
    if !WORDS[1..].iter().any(|word| text.windows(word.len()).any(|part| part == *word)) {
        return Cow::Borrowed(text);
    }
    let (mut made, mut at, mut inside) = (Vec::with_capacity(text.len() + 64), 0, false);
    while at < text.len() {
        let word = WORDS.iter().find(|word| !inside && text[at..].starts_with(word));
        let length = match (word, text[at]) {
            (Some(word), _) => {
                made.push(b'"');
                word.len()
            }
            (None, b'\\') if inside => 2,
            (None, byte) => {
                inside ^= byte == b'"';
                1
            }
        };
        let end = (at + length).min(text.len());
        made.extend_from_slice(&text[at..end]);
        if word.is_some() {
            made.push(b'"');
        }
        at = end;
    }
    Cow::Owned(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted_text(text: &str) -> String {
        String::from_utf8(quoted(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn words_outside_of_strings_are_quoted() {
        let text = r#"{"a": [NaN, -Infinity,Infinity, 1], "NaN": "Infinity \" NaN", "b": "x"}"#;
        let made = r#"{"a": ["NaN", "-Infinity","Infinity", 1], "NaN": "Infinity \" NaN", "b": "x"}"#;
        assert_eq!(quoted_text(text), made);
        let is_json = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        assert!(is_json(made) && !is_json(text));
    }

    #[test]
    fn a_text_without_words_is_left_as_it_is() {
        assert!(matches!(quoted(b"{\"a\": [1.5]}"), Cow::Borrowed(_)));
        assert_eq!(quoted_text(r#"["NaN\"#), r#"["NaN\"#, "cut within an escape");
    }
}
