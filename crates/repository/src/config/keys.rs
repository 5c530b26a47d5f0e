//! Typed access to a TOML table, with actionable errors.
//!
//! The spanned document is read by hand instead of with a derived `Deserialize`. A derived error
//! cannot give the line, the value as written, and a fix in the user's terms together.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The text of a configuration file.
#[derive(Clone, Copy)]
pub(super) struct ConfigSource<'a> {
    /// File name for errors.
    pub(super) file: &'a str,
    /// Content of the file.
    pub(super) text: &'a str,
}

/// A table of the file whose keys are known to be valid.
pub(super) struct Keys<'a> {
    source: ConfigSource<'a>,
    /// Position of the table for errors: empty at the top, "block 2: " inside the second
    /// `[[block]]`.
    place: String,
    /// Line at which the table starts.
    line: usize,
    table: &'a DeTable<'a>,
}

type SpannedValue<'a> = Spanned<DeValue<'a>>;

impl<'a> ConfigSource<'a> {
    /// Returns an error at a line of this file. Control characters are escaped, so that quoted
    /// content cannot forge log lines.
    pub(super) fn error(self, line: usize, what: &str) -> String {
        let mut error = format!("{}:{line}: ", self.file);
        for char in what.chars() {
            match char {
                '\n' | '\r' | '\t' => error.push(' '),
                char if char.is_control() => error.extend(char.escape_unicode()),
                char => error.push(char),
            }
        }
        error
    }

    /// Returns the line, counted from one, of a byte offset.
    pub(super) fn line(self, byte: usize) -> usize {
        1 + self.text.bytes().take(byte).filter(|&byte| byte == b'\n').count()
    }
}

impl<'a> Keys<'a> {
    /// Creates the table; a key that is not in `valid` is an error.
    pub(super) fn new(
        source: ConfigSource<'a>,
        place: String,
        start: usize,
        table: &'a DeTable<'a>,
        valid: &[&str],
    ) -> Result<Keys<'a>, String> {
        let keys = Keys { source, place, line: source.line(start), table };
        match table.keys().find(|key| !valid.contains(&key.get_ref().as_ref())) {
            Some(key) => Err(keys.unknown(key, valid)),
            None => Ok(keys),
        }
    }

    fn unknown(&self, key: &Spanned<toml::de::DeString<'_>>, valid: &[&str]) -> String {
        let name: &str = key.get_ref().as_ref();
        let advice = match nearest(name, valid) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("valid keys are {}", valid.join(", ")),
        };
        let line = self.source.line(key.span().start);
        self.source.error(line, &format!("{}unknown key {name}; {advice}", self.place))
    }

    /// Returns an error about the whole table.
    pub(super) fn error(&self, what: &str) -> String {
        self.source.error(self.line, &format!("{}{what}", self.place))
    }

    /// Returns an error about the value of `key`.
    pub(super) fn wrong(&self, key: &str, fix: &str) -> String {
        let Some(value) = self.table.get(key) else { return self.error(&format!("{key} {fix}")) };
        let written = self.source.text.get(value.span()).unwrap_or("").trim();
        let short: String = written.chars().take(60).collect();
        let line = self.source.line(value.span().start);
        self.source.error(line, &format!("{}{key} = {short}: {fix}", self.place))
    }

    fn get<T>(&self, key: &str, fix: &str, read: impl Fn(&DeValue<'a>) -> Option<T>) -> Result<Option<T>, String> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        read(value.get_ref()).map(Some).ok_or_else(|| self.wrong(key, fix))
    }

    /// Returns a number in `above < value <= most`.
    pub(super) fn number(&self, key: &str, above: f64, most: f64) -> Result<Option<f64>, String> {
        let fix = format!("must be a number above {above} and at most {most}, without quotes");
        self.get(key, &fix, |value| as_f64(value).filter(|&number| number > above && number <= most))
    }

    /// Returns a number from zero to `most`.
    pub(super) fn number_from_zero(&self, key: &str, most: f64) -> Result<Option<f64>, String> {
        let fix = format!("must be a number from 0 to {most}, without quotes");
        self.get(key, &fix, |value| as_f64(value).filter(|&number| (0.0..=most).contains(&number)))
    }

    /// Returns a whole number in `least..=most`.
    pub(super) fn whole(&self, key: &str, least: usize, most: usize) -> Result<Option<usize>, String> {
        let fix = format!("must be a whole number from {least} to {most}, without quotes");
        self.get(key, &fix, |value| as_usize(value).filter(|number| (least..=most).contains(number)))
    }

    /// Returns a whole number in `least..=most`, or an inner `None` for `word`.
    pub(super) fn whole_or(
        &self,
        key: &str,
        least: usize,
        most: usize,
        word: &str,
    ) -> Result<Option<Option<usize>>, String> {
        let fix = format!("must be a whole number from {least} to {most}, without quotes, or \"{word}\"");
        self.get(key, &fix, |value| match value.as_str() {
            Some(text) => (text == word).then_some(None),
            None => as_usize(value).filter(|number| (least..=most).contains(number)).map(Some),
        })
    }

    /// Returns a non-empty string.
    pub(super) fn text(&self, key: &str, example: &str) -> Result<Option<String>, String> {
        let fix = format!("must be text in quotes, for example {key} = \"{example}\"");
        self.get(key, &fix, |value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned))
    }

    /// Returns the meaning of one of several words.
    pub(super) fn one_of<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, String> {
        let valid: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let fix = format!("must be {}", valid.join(" or "));
        self.get(key, &fix, |value| {
            let text = value.as_str()?;
            words.iter().find(|(word, _)| *word == text).map(|&(_, meaning)| meaning)
        })
    }

    /// Returns a boolean; other values count as absent.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.table.get(key).and_then(|value| value.get_ref().as_bool())
    }

    /// Returns a boolean; other values are errors.
    pub(super) fn yes_or_no(&self, key: &str) -> Result<Option<bool>, String> {
        self.get(key, "must be true or false", |value| value.as_bool())
    }

    /// Returns a finite number; other values count as absent.
    pub(super) fn any_number(&self, key: &str) -> Option<f64> {
        self.table.get(key).and_then(|value| as_f64(value.get_ref())).filter(|number| number.is_finite())
    }

    /// Returns the section under `key`; a key that is not in `valid` is an error.
    pub(super) fn section(&self, key: &str, valid: &[&str]) -> Result<Option<Keys<'a>>, String> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let not_a_table = || self.wrong(key, &format!("must be written as a section [{key}] of its own"));
        let table = value.get_ref().as_table().ok_or_else(not_a_table)?;
        let place = format!("{}{key}: ", self.place);
        Keys::new(self.source, place, value.span().start, table, valid).map(Some)
    }

    /// Returns the table under `key`, whose keys are names chosen by the user.
    pub(super) fn table(&self, key: &str) -> Result<Option<Keys<'a>>, String> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let not_a_table = || self.wrong(key, &format!("must be written as a section [block.{key}] of its own"));
        let table = value.get_ref().as_table().ok_or_else(not_a_table)?;
        let (source, line) = (self.source, self.source.line(value.span().start));
        Ok(Some(Keys { source, place: format!("{}{key}: ", self.place), line, table }))
    }

    /// Returns the keys of the table in alphabetical order.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.table.keys().map(|key| key.get_ref().as_ref())
    }

    /// Returns a non-empty list of positive numbers.
    pub(super) fn numbers(&self, key: &str, example: &str) -> Result<Option<Vec<f64>>, String> {
        let fix = format!("must be a list of numbers above 0, for example {key} = {example}");
        let positive =
            |value: &SpannedValue<'a>| as_f64(value.get_ref()).filter(|number| *number > 0.0 && number.is_finite());
        self.get(key, &fix, |value| {
            value.as_array()?.iter().map(positive).collect::<Option<Vec<f64>>>().filter(|list| !list.is_empty())
        })
    }

    /// Returns a list of integers, which may be negative.
    pub(super) fn integers(&self, key: &str, example: &str) -> Result<Option<Vec<i64>>, String> {
        let fix = format!("must be a list of whole numbers, for example {key} = {example}");
        self.get(key, &fix, |value| value.as_array()?.iter().map(|item| as_i64(item.get_ref())).collect())
    }

    /// Returns the tables under `[[key]]`; a key that is not in `valid` is an error.
    pub(super) fn tables(&self, key: &str, valid: &[&str]) -> Result<Vec<Keys<'a>>, String> {
        let Some(value) = self.table.get(key) else { return Ok(Vec::new()) };
        let not_tables = || self.wrong(key, &format!("must be written as a section [[{key}]] of its own"));
        let items = value.get_ref().as_array().ok_or_else(not_tables)?;
        let one = |(at, item): (usize, &'a SpannedValue<'a>)| {
            let table = item.get_ref().as_table().ok_or_else(not_tables)?;
            Keys::new(self.source, format!("[[{key}]] number {}: ", at + 1), item.span().start, table, valid)
        };
        items.iter().enumerate().map(one).collect()
    }

    /// Returns true if the key is present.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Unwraps the value of a mandatory key.
    pub(super) fn required<T>(&self, value: Option<T>, key: &str, example: &str) -> Result<T, String> {
        value.ok_or_else(|| self.error(&format!("the key {key} is missing; add for example {key} = {example}")))
    }
}

fn as_i64(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn as_usize(value: &DeValue<'_>) -> Option<usize> {
    as_i64(value).and_then(|number| usize::try_from(number).ok())
}

fn as_f64(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        other => as_i64(other).map(|number| number as f64),
    }
}

/// Returns the valid word most similar to `word`, if any is similar enough.
pub fn nearest<'a>(word: &str, valid: &[&'a str]) -> Option<&'a str> {
    let lower = word.to_ascii_lowercase();
    let contained = |candidate: &str| lower.contains(candidate) || candidate.contains(lower.as_str());
    let score = |candidate: &&'a str| (!contained(candidate), edits(&lower, candidate));
    let near = valid.iter().copied().min_by_key(score)?;
    (contained(near) || edits(&lower, near) * 2 <= near.len().max(lower.len())).then_some(near)
}

/// Returns the Levenshtein distance of two words.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for column in 1..row.len() {
            let kept = diagonal + usize::from(letter != to[column - 1]);
            diagonal = row[column];
            row[column] = kept.min(row[column] + 1).min(row[column - 1] + 1);
        }
    }
    row[to.len()]
}
