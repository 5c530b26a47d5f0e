//! Parser of `config.pbtxt`, a Triton model configuration in protobuf's text format.
//!
//! A library parses the text against the messages of `model_config.proto`, so that misspelt fields
//! and wrong types are errors. The library does not report the position of each field, which users
//! need in explanations of their file. After validation, a second pass therefore lists the fields
//! in order with their lines.

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

/// Maximum length of the text, in bytes.
pub const MAX_TEXT: usize = 1 << 20;
/// Maximum nesting depth of messages; the messages themselves nest to a third of it.
const MAX_DEPTH: usize = 32;

/// A parsed text.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigText {
    /// The configuration.
    pub config: ModelConfig,
    /// All fields that the text sets, in order.
    pub fields: Vec<Field>,
}

/// Error for a text that is not a valid model configuration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct ConfigTextError {
    /// Line of the error, counted from one.
    pub line: usize,
    /// Error message.
    pub message: String,
}

/// Parses a text.
pub fn parse(text: &str) -> Result<ConfigText, ConfigTextError> {
    if text.len() > MAX_TEXT {
        return Err(ConfigTextError { line: 1, message: format!("the file is longer than {MAX_TEXT} bytes") });
    }
    // The library's parser recurses, so the depth is checked first.
    if let Some(at) = tokens::beyond_depth(text, MAX_DEPTH) {
        let message = format!("messages are nested more than {MAX_DEPTH} deep");
        return Err(ConfigTextError { line: tokens::line(text, at), message });
    }
    let text = &tokens::with_colons(text);
    let message = DynamicMessage::parse_text_format(descriptor(), text).map_err(|error| refused(text, &error))?;
    let config = message.transcode_to().map_err(|error| ConfigTextError { line: 1, message: error.to_string() })?;
    Ok(ConfigText { config, fields: fields::list(text, &descriptor()) })
}

/// Converts a configuration in JSON, as Triton's load calls carry it, into the text format.
pub fn from_json(json: &str) -> Result<String, String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let message =
        DynamicMessage::deserialize(descriptor(), &mut reader).and_then(|message| reader.end().map(|()| message));
    let message = message.map_err(|error| error.to_string().replace("'inference.", "'"))?;
    Ok(message.to_text_format_with_options(&FormatOptions::new().pretty(true)))
}

/// Returns the path of every field that a text may set, in the form of [`Field::path`].
pub fn known_fields() -> Vec<String> {
    fields::known(&descriptor())
}

fn refused(text: &str, error: &prost_reflect::text_format::ParseError) -> ConfigTextError {
    let label = miette::Diagnostic::labels(error).and_then(|mut labels| labels.next());
    let at = label.map_or(text.len(), |label| label.offset());
    ConfigTextError { line: tokens::line(text, at), message: error.to_string().replace("'inference.", "'") }
}

fn descriptor() -> MessageDescriptor {
    static DESCRIPTOR: LazyLock<MessageDescriptor> = LazyLock::new(|| {
        let pool = DescriptorPool::decode(&include_bytes!("generated/model_config.bin")[..]);
        let message = pool.ok().and_then(|pool| pool.get_message_by_name("inference.ModelConfig"));
        message.expect("the messages were compiled by crates/wire/codegen")
    });
    DESCRIPTOR.clone()
}
