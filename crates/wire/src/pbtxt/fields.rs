//! Lists the fields that a valid text sets, in order.

use super::tokens::{Lexer, Token, line};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use std::iter::Peekable;

/// A field that a text sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Line of the field, counted from one.
    pub line: usize,
    /// Path without indices and keys: `instance_group.count`, `parameters.string_value`.
    pub path: String,
    /// Path with indices and keys: `instance_group[0].count`, `parameters["slo_ms"].string_value`.
    pub name: String,
    /// Value as written, except that booleans are `true` or `false` and enum values are names; `{}`
    /// for a message that sets nothing.
    pub value: String,
}

/// Lists every field that a valid text sets.
pub(super) fn list(text: &str, message: &MessageDescriptor) -> Vec<Field> {
    let mut reader = FieldReader { text, tokens: Lexer::new(text).peekable() };
    reader.message(message)
}

/// Returns the path of every field that has a value of its own.
pub(super) fn known(message: &MessageDescriptor) -> Vec<String> {
    let below = |field: FieldDescriptor| {
        let name = field.name().to_owned();
        match value_message(&field) {
            Some(inner) if inner.fields().len() > 0 => {
                known(&inner).into_iter().map(|path| format!("{name}.{path}")).collect()
            }
            _ => vec![name],
        }
    };
    message.fields().flat_map(below).collect()
}

/// Returns the message type of a field, if it is a message; for a map, the type of its values.
fn value_message(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => value_message(&entry.map_entry_value_field()),
        Kind::Message(message) => Some(message),
        _ => None,
    }
}

struct FieldReader<'a> {
    text: &'a str,
    tokens: Peekable<Lexer<'a>>,
}

impl FieldReader<'_> {
    /// Reads the fields up to the end of the message and consumes its closing token.
    fn message(&mut self, message: &MessageDescriptor) -> Vec<Field> {
        let mut fields = Vec::new();
        let mut counts = vec![0_usize; message.fields().len()];
        while let Some(name) = self.tokens.next().filter(|token| !token.closes()) {
            let known = message.fields().enumerate().find(|(_, field)| field.name() == name.text);
            let Some((at, field)) = known else { continue };
            self.tokens.next_if(|token| token.text == ":");
            self.values(name, &field, &mut counts[at], &mut fields);
            self.tokens.next_if(|token| matches!(token.text, "," | ";"));
        }
        fields
    }

    /// Reads one value or a list of values.
    fn values(&mut self, name: Token<'_>, field: &FieldDescriptor, count: &mut usize, fields: &mut Vec<Field>) {
        let messages = matches!(field.kind(), Kind::Message(_));
        if !messages || self.tokens.next_if(|token| token.text == "[").is_none() {
            return self.value(name, field, count, fields);
        }
        while let Some(&token) = self.tokens.peek().filter(|token| token.text != "]") {
            match token.opens() {
                true => self.value(token, field, count, fields),
                false => drop(self.tokens.next()),
            }
        }
        self.tokens.next();
    }

    fn value(&mut self, stands: Token<'_>, field: &FieldDescriptor, count: &mut usize, fields: &mut Vec<Field>) {
        let line = line(self.text, stands.at);
        let own = field.name();
        let name = if field.is_list() { format!("{own}[{count}]") } else { own.to_owned() };
        *count += 1;
        let Kind::Message(message) = field.kind() else {
            let value = canonical(&field.kind(), self.scalar());
            return fields.push(Field { line, path: own.to_owned(), name: own.to_owned(), value });
        };
        self.tokens.next();
        let mut inner = self.message(&message);
        if field.is_map() {
            return fields.extend(entry(own, line, inner));
        }
        if inner.is_empty() {
            fields.push(Field { line, path: own.to_owned(), name: name.clone(), value: "{}".to_owned() });
        }
        for field in &mut inner {
            field.path = format!("{own}.{}", field.path);
            field.name = format!("{name}.{}", field.name);
        }
        fields.extend(inner);
    }

    /// Reads a value that is not a message, or a list of such values, as one line.
    fn scalar(&mut self) -> String {
        let Some(first) = self.tokens.next() else { return String::new() };
        let mut value = first.text.to_owned();
        match first.text {
            "-" => value.extend(self.tokens.next().map(|token| token.text)),
            "[" => {
                for token in self.tokens.by_ref() {
                    value.push_str(token.text);
                    match token.text {
                        "]" => break,
                        "," => value.push(' '),
                        _ => {}
                    }
                }
            }
            // Adjacent strings are concatenated.
            _ if first.is_string() => {
                while let Some(more) = self.tokens.next_if(|token| token.is_string()) {
                    value.push(' ');
                    value.push_str(more.text);
                }
            }
            _ => {}
        }
        value
    }
}

/// Returns the canonical spelling of a value that the format allows in several spellings.
fn canonical(kind: &Kind, value: String) -> String {
    match (kind, value.as_str()) {
        (Kind::Bool, "True" | "t" | "1") => "true".to_owned(),
        (Kind::Bool, "False" | "f" | "0") => "false".to_owned(),
        (Kind::Enum(words), number) => {
            let word = number.parse().ok().and_then(|number| words.get_value(number));
            word.map_or(value, |word| word.name().to_owned())
        }
        _ => value,
    }
}

/// Returns the fields of a map entry under the path and name of its value.
fn entry(map: &str, line: usize, fields: Vec<Field>) -> Vec<Field> {
    let key = fields.iter().find(|field| field.path == "key").map_or("\"\"", |field| &field.value);
    let name = format!("{map}[{key}]");
    let within = |field: &Field| {
        let path = field.path.strip_prefix("value")?;
        let own = field.name.strip_prefix("value").unwrap_or_default();
        let (path, name) = (format!("{map}{path}"), format!("{name}{own}"));
        Some(Field { line: field.line, path, name, value: field.value.clone() })
    };
    let values: Vec<Field> = fields.iter().filter_map(within).collect();
    if values.is_empty() {
        return vec![Field { line, path: map.to_owned(), name: name.clone(), value: "{}".to_owned() }];
    }
    values
}
