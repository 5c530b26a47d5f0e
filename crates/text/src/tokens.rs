//! Tokens, and the reasons for which a text has none.

use thiserror::Error;

/// Token ids of a text or a pair of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Ids, including the special tokens that the model was trained with.
    pub ids: Vec<u32>,
    /// Segment of each token: 0 for the first text, 1 for the second.
    pub types: Vec<u32>,
}

/// Reason for which a text cannot be tokenised.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TokenizeError {
    /// The text has more tokens than the model accepts.
    #[error(
        "it has more than {0} tokens, the most that the model takes; shorten it, or have it cut with \"truncate\": true"
    )]
    TooLong(usize),
    /// The text has more bytes than the maximum number of tokens could represent, so it is not
    /// read.
    #[error(
        "it has {bytes} bytes, and {tokens} tokens, the most that the model takes, are taken for at most {most}; shorten it, or have it \
             cut with \"truncate\": true"
    )]
    TooManyBytes {
        /// Size of the text in bytes.
        bytes: usize,
        /// Upper bound on the size in bytes.
        most: usize,
        /// Maximum number of tokens.
        tokens: usize,
    },
    /// The text has no tokens, and the model adds no special ones.
    #[error("it has no tokens")]
    Empty,
    /// The tokenizer failed.
    #[error("the tokenizer cannot read it: {0}")]
    Unreadable(String),
}
