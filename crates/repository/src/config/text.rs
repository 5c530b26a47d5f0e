//! The section `[text]` of `model.toml`: what is made of a model whose tokenizer lies beside it.

use super::keys::Keys;
use ripieno_text::{Pooling, TextConfig};

pub(super) const KEYS: [&str; 6] = ["task", "pooling", "normalize", "truncate", "output", "max_length"];
const TASKS: [(&str, &str); 3] = [("embed", "embed"), ("classify", "classify"), ("rerank", "rerank")];
/// The most tokens that can be asked for.
const LONGEST: usize = 1_000_000;

/// What a `model.toml` says of texts.
#[derive(Clone, Debug, PartialEq)]
pub struct TextKeys {
    /// What is left to the files beside the model where it is none.
    pub config: TextConfig,
    /// The most tokens in a text.
    pub max_length: Option<usize>,
}

/// Reads the section, if it is there.
pub(super) fn read(keys: &Keys<'_>) -> Result<Option<TextKeys>, String> {
    let Some(text) = keys.section("text", &KEYS)? else { return Ok(None) };
    let config = TextConfig {
        task: text.one_of("task", &TASKS)?.map(str::to_owned),
        pooling: text.one_of("pooling", &Pooling::ALL)?,
        normalize: text.yes_or_no("normalize")?,
        truncate: text.yes_or_no("truncate")?.unwrap_or(false),
        output: text.text("output", "last_hidden_state")?,
    };
    Ok(Some(TextKeys { config, max_length: text.whole("max_length", 1, LONGEST)? }))
}
