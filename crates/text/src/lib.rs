//! Text for models that take token ids: texts become ids by the tokenizer that lies beside a model, and the model's output
//! becomes a vector, the probabilities of classes, or a score.
//!
//! Files are read as Hugging Face's libraries leave them beside an export: `tokenizer.json` is needed, `config.json`,
//! `tokenizer_config.json`, `sentence_bert_config.json`, `1_Pooling/config.json` and `modules.json` are used where they are.

mod beside;
mod heads;
#[cfg(test)]
mod tests;
mod text_model;
mod tokens;

pub use beside::TOKENIZER_FILE;
pub use heads::{Pooling, Task, normalize};
pub use text_model::{Roles, TextConfig, TextModel, TextReader};
pub use tokens::{TextError, Tokens};
