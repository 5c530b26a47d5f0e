//! From a text to the ids of its tokens.

use crate::beside::{MOST_TOKENIZER_BYTES, bounded};
use std::path::Path;
use thiserror::Error;
use tokenizers::{Encoding, Tokenizer as Library, TruncationParams};

/// What a text becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The ids, with the special ones that the model was trained with.
    pub ids: Vec<u32>,
    /// For each 0 if it is of the first text, 1 if of the second.
    pub types: Vec<u32>,
}

/// Why a text has no tokens.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TextError {
    /// It is longer than the model takes.
    #[error(
        "it has more than {0} tokens, the most that the model takes; shorten it, or have it cut with \"truncate\": true"
    )]
    TooLong(usize),
    /// Nothing is left of it, and the model adds nothing.
    #[error("it has no tokens")]
    Empty,
    /// The tokenizer fails.
    #[error("the tokenizer cannot read it: {0}")]
    Unreadable(String),
}

/// A tokenizer that gives at most so many tokens.
pub(crate) struct Tokenizer {
    library: Library,
    longest: usize,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub(crate) fn read(path: &Path) -> Result<Tokenizer, String> {
        let bytes = bounded(path, MOST_TOKENIZER_BYTES)?;
        let library = Library::from_bytes(bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Tokenizer { library, longest: usize::MAX })
    }

    /// The most tokens that the file itself says.
    pub(crate) fn truncation(&self) -> Option<usize> {
        self.library.get_truncation().map(|truncation| truncation.max_length)
    }

    /// What shorter texts are filled up with.
    pub(crate) fn pad_id(&self) -> u32 {
        let declared = self.library.get_padding().map(|padding| padding.pad_id);
        let named = || ["[PAD]", "<pad>"].into_iter().find_map(|token| self.library.token_to_id(token));
        declared.or_else(named).unwrap_or(0)
    }

    /// Texts are filled up where batches are formed, so not here.
    pub(crate) fn bound(&mut self, longest: usize) -> Result<(), String> {
        self.library.with_padding(None);
        let truncation = TruncationParams { max_length: longest, ..TruncationParams::default() };
        self.library.with_truncation(Some(truncation)).map_err(|error| error.to_string())?;
        self.longest = longest;
        Ok(())
    }

    /// The tokens of a text, or of a pair.
    pub(crate) fn encode(&self, first: &str, second: Option<&str>, truncate: bool) -> Result<Tokens, TextError> {
        let encoded = match second {
            Some(second) => self.library.encode_fast((first, second), true),
            None => self.library.encode_fast(first, true),
        };
        let encoded = encoded.map_err(|error| TextError::Unreadable(error.to_string()))?;
        if !truncate && is_cut(&encoded) {
            return Err(TextError::TooLong(self.longest));
        }
        let (ids, types) = (encoded.get_ids().to_vec(), encoded.get_type_ids().to_vec());
        if ids.is_empty() { Err(TextError::Empty) } else { Ok(Tokens { ids, types }) }
    }
}

/// What is cut off is kept apart.
fn is_cut(encoded: &Encoding) -> bool {
    !encoded.get_overflowing().is_empty()
}
