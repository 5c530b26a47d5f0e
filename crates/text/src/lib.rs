//! Text support for models that take token ids: a tokenizer beside the model converts texts into
//! ids, and the model's output becomes an embedding, class probabilities or a score.
//!
//! Files are read as Hugging Face's libraries leave them beside an export: `tokenizer.json` is
//! required; `config.json`, `tokenizer_config.json`, `sentence_bert_config.json`, `modules.json`
//! with the files of its steps, and `config_sentence_transformers.json` are used if they exist.

mod heads;
mod read;
mod sidecar;
mod steps;
#[cfg(test)]
mod tests;
mod text_model;
#[cfg_attr(not(feature = "tokenizers"), path = "no_tokenizer.rs")]
mod tokenizer;
mod tokens;

pub use heads::{Pooling, TextTask, normalize};
pub use sidecar::TOKENIZER_FILE;
pub use text_model::{TextConfig, TextModel, TextReader, TokenInputs};
pub use tokens::{TokenizeError, Tokens};
