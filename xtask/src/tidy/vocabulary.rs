//! The list of words of `words.txt`: what is banned, where, and what to write instead.

const LIST: &str = include_str!("words.txt");

/// An entry of the list: what is banned, and the text to write instead.
pub(super) struct Entry {
    pub(super) banned: &'static str,
    pub(super) instead: &'static str,
}

/// The list, by kind.
#[derive(Default)]
pub(super) struct Vocabulary {
    /// Banned everywhere: comments, docs, identifiers, file names and messages.
    pub(super) words: Vec<Entry>,
    /// Banned in comments and docs only.
    pub(super) phrases: Vec<Entry>,
    /// Banned as the first words of a doc comment.
    pub(super) openings: Vec<Entry>,
    /// Banned as the first words of a doc comment and of a paragraph of the docs.
    pub(super) pronouns: Vec<Entry>,
    /// Banned in identifiers and file names only.
    pub(super) names: Vec<Entry>,
}

impl Vocabulary {
    /// Returns the list of this tree.
    pub(super) fn read() -> Vocabulary {
        Vocabulary::parse(LIST)
    }

    fn parse(list: &'static str) -> Vocabulary {
        let mut parsed = Vocabulary::default();
        for line in list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let [kind, banned, instead] = cells[..] else { panic!("words.txt: not 'kind | word | instead': {line}") };
            let entries = match kind {
                "word" => &mut parsed.words,
                "phrase" => &mut parsed.phrases,
                "opening" => &mut parsed.openings,
                "pronoun" => &mut parsed.pronouns,
                "name" => &mut parsed.names,
                _ => panic!("words.txt: {kind:?} is no kind"),
            };
            entries.push(Entry { banned, instead });
        }
        parsed
    }
}

/// Returns messages for the entries that stand in a text as whole words, in any case.
pub(super) fn banned_in<'a>(entries: &'a [Entry], text: &str) -> impl Iterator<Item = String> + use<'a> {
    let lower = text.to_lowercase();
    let found = entries.iter().filter(move |entry| has_word(&lower, entry.banned));
    found.map(|entry| format!("\"{}\": write {}", entry.banned, entry.instead))
}

/// Returns messages for the entries that a text begins with, as written.
pub(super) fn banned_first<'a>(entries: &'a [Entry], text: &'a str) -> impl Iterator<Item = String> + 'a {
    let found = entries.iter().filter(|entry| begins_with(text, entry.banned));
    found.map(|entry| format!("opens with \"{}\": begin with {}", entry.banned, entry.instead))
}

fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = word.starts_with(is_letter) && text[..at].chars().next_back().is_some_and(is_letter);
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

    #[test]
    fn words_are_whole_and_in_any_case() {
        let list = Vocabulary::parse("word | door | listener\nphrase | ; none | None\n");
        let found = |entries: &[Entry], text: &str| banned_in(entries, text).count();
        assert_eq!([found(&list.words, "The Door."), found(&list.words, "indoors")], [1, 0]);
        assert_eq!([found(&list.phrases, "the time; none if idle"), found(&list.phrases, "; nonempty")], [1, 0]);
    }

    #[test]
    fn the_list_is_well_formed() {
        let list = Vocabulary::read();
        assert!(list.words.len() > 20 && list.openings.len() > 5 && list.names.len() > 2);
        let lower = [&list.words, &list.phrases, &list.names].into_iter().flatten();
        assert!(lower.clone().all(|entry| entry.banned == entry.banned.to_lowercase() && !entry.instead.is_empty()));
    }
}
