//! The section `[text]` of `model.toml`, for a model with a tokenizer.

use super::keys::Keys;
use ripieno_text::{Pooling, TextConfig};

pub(super) const KEYS: [&str; 6] = ["task", "pooling", "normalize", "truncate", "output", "max_length"];
const TASKS: [(&str, &str); 3] = [("embed", "embed"), ("classify", "classify"), ("rerank", "rerank")];
/// Maximum configurable number of tokens.
const MAX_LENGTH: usize = 1_000_000;

/// The section `[text]`.
#[derive(Clone, Debug, PartialEq)]
pub struct TextKeys {
    /// Settings; unset ones are inferred from the sidecar files.
    pub config: TextConfig,
    /// Maximum number of tokens in a text.
    pub max_length: Option<usize>,
}

/// Reads the section if it is present.
pub(super) fn read(keys: &Keys<'_>) -> Result<Option<TextKeys>, String> {
    let Some(text) = keys.section("text", &KEYS)? else { return Ok(None) };
    let config = TextConfig {
        task: text.one_of("task", &TASKS)?.map(str::to_owned),
        pooling: text.one_of("pooling", &Pooling::ALL)?,
        normalize: text.yes_or_no("normalize")?,
        truncate: text.yes_or_no("truncate")?.unwrap_or(false),
        output: text.text("output", "last_hidden_state")?,
    };
    Ok(Some(TextKeys { config, max_length: text.whole("max_length", 1, MAX_LENGTH)? }))
}
