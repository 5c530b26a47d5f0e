//! `config.pbtxt`: a model's configuration as Triton's users write it, in protobuf's text format.
//!
//! A library parses the text against the messages of `model_config.proto`, so a field that is misspelt or has the wrong type is an
//! error. What it does not tell is where a field stands, and people who are told what becomes of each field want to know that. So
//! the text is gone through once more, after it is known to be valid, for the fields in their order with their lines.

mod fields;
#[cfg(test)]
mod tests;
mod tokens;

use crate::proto::inference::ModelConfig;
use prost_reflect::text_format::FormatOptions;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use std::sync::LazyLock;
use thiserror::Error;

pub use fields::Field;

/// The longest text that is read, in bytes.
pub const MAX_TEXT: usize = 1 << 20;
/// The deepest nesting of messages; the messages themselves nest to a third of it.
const MAX_DEPTH: usize = 32;

/// A text that was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigText {
    /// What it says.
    pub config: ModelConfig,
    /// Every field that it sets, in its order.
    pub fields: Vec<Field>,
}

/// Why a text is no model configuration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct TextError {
    /// The line that the mistake is in, counted from one.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// Reads a text.
pub fn parse(text: &str) -> Result<ConfigText, TextError> {
    if text.len() > MAX_TEXT {
        return Err(TextError { line: 1, message: format!("the file is longer than {MAX_TEXT} bytes") });
    }
    // The parser recurses.
    if let Some(at) = tokens::beyond_depth(text, MAX_DEPTH) {
        let message = format!("messages are nested more than {MAX_DEPTH} deep");
        return Err(TextError { line: tokens::line(text, at), message });
    }
    let text = &tokens::with_colons(text);
    let message = DynamicMessage::parse_text_format(descriptor(), text).map_err(|error| refused(text, &error))?;
    let config = message.transcode_to().map_err(|error| TextError { line: 1, message: error.to_string() })?;
    Ok(ConfigText { config, fields: fields::list(text, &descriptor()) })
}

/// The text of a configuration that is written in JSON, as Triton's load calls bring it.
pub fn from_json(json: &str) -> Result<String, String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let message =
        DynamicMessage::deserialize(descriptor(), &mut reader).and_then(|message| reader.end().map(|()| message));
    let message = message.map_err(|error| error.to_string().replace("'inference.", "'"))?;
    Ok(message.to_text_format_with_options(&FormatOptions::new().pretty(true)))
}

/// The path of every field that a text may set, as [`Field::path`] has them.
pub fn known_fields() -> Vec<String> {
    fields::known(&descriptor())
}

fn refused(text: &str, error: &prost_reflect::text_format::ParseError) -> TextError {
    let label = miette::Diagnostic::labels(error).and_then(|mut labels| labels.next());
    let at = label.map_or(text.len(), |label| label.offset());
    TextError { line: tokens::line(text, at), message: error.to_string().replace("'inference.", "'") }
}

fn descriptor() -> MessageDescriptor {
    static DESCRIPTOR: LazyLock<MessageDescriptor> = LazyLock::new(|| {
        let pool = DescriptorPool::decode(&include_bytes!("generated/model_config.bin")[..]);
        let message = pool.ok().and_then(|pool| pool.get_message_by_name("inference.ModelConfig"));
        message.expect("the messages were compiled by crates/wire/codegen")
    });
    DESCRIPTOR.clone()
}
