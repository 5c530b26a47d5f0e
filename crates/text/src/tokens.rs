//! From a text to the ids of its tokens.

use crate::beside::{MOST_TOKENIZER_BYTES, bounded};
use std::path::Path;
use thiserror::Error;
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{Encoding, PostProcessor, Tokenizer as Library, TruncationParams};

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
    /// It is not read, since it is longer than so many tokens could be.
    #[error(
        "it has {bytes} bytes, and {tokens} tokens, the most that the model takes, are taken for at most {most}; shorten it, or have it \
             cut with \"truncate\": true"
    )]
    TooManyBytes {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        most: usize,
        /// The most tokens.
        tokens: usize,
    },
    /// Nothing is left of it, and the model adds nothing.
    #[error("it has no tokens")]
    Empty,
    /// The tokenizer fails.
    #[error("the tokenizer cannot read it: {0}")]
    Unreadable(String),
}

/// A token stands for some 4 bytes, of code and of tables for up to 10. There is no bound by the vocabulary: spaces and words that
/// are not known may be of any length. But whoever reads to the end what has many times more lets one text of megabytes occupy
/// a thread for seconds.
const BYTES_A_TOKEN: usize = 64;
/// A model of few tokens reads short texts with long words all the same.
const FEWEST_BYTES: usize = 4096;

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

    /// Texts are filled up where batches are formed, so not here. They are cut here: the library would keep what it cuts off, and of a
    /// pair each piece beside each of the other, with special tokens in all of them.
    pub(crate) fn bound(&mut self, longest: usize) -> Result<(), String> {
        let added = self.added(false);
        if longest <= added {
            return Err(format!("{longest} tokens leave no room for a text, since {added} are added to each"));
        }
        self.library.with_padding(None);
        self.library.with_truncation(None).map_err(|error| error.to_string())?;
        self.longest = longest;
        Ok(())
    }

    /// How many special tokens go with a text, or with a pair.
    fn added(&self, is_pair: bool) -> usize {
        self.library.get_post_processor().map_or(0, |processor| processor.added_tokens(is_pair))
    }

    /// The most bytes of a text that are read.
    pub(crate) fn most_bytes(&self) -> usize {
        self.longest.saturating_mul(BYTES_A_TOKEN).max(FEWEST_BYTES)
    }

    /// The part of a text that is read. What lies behind it is cut off only where tokens would be, too, unless nearly all before
    /// it is spaces or unknown words.
    fn readable<'a>(&self, text: &'a str, truncate: bool) -> Result<&'a str, TextError> {
        let (bytes, most) = (text.len(), self.most_bytes());
        match bytes > most {
            false => Ok(text),
            true if truncate => Ok(&text[..text.floor_char_boundary(most)]),
            true => Err(TextError::TooManyBytes { bytes, most, tokens: self.longest }),
        }
    }

    /// The tokens of a text, or of a pair.
    pub(crate) fn encode(&self, first: &str, second: Option<&str>, truncate: bool) -> Result<Tokens, TextError> {
        let first = self.readable(first, truncate)?;
        let second = second.map(|second| self.readable(second, truncate)).transpose()?;
        let encoded = self.within(first, second, truncate)?;
        let (ids, types) = (encoded.get_ids().to_vec(), encoded.get_type_ids().to_vec());
        if ids.is_empty() { Err(TextError::Empty) } else { Ok(Tokens { ids, types }) }
    }

    /// A text or a pair with its special tokens, cut if it may be.
    fn within(&self, first: &str, second: Option<&str>, truncate: bool) -> Result<Encoding, TextError> {
        let unreadable = |error: tokenizers::Error| TextError::Unreadable(error.to_string());
        let part = |text: &str| self.library.encode_fast(text, false).map_err(unreadable);
        let (first, second) = (part(first)?, second.map(part).transpose()?);
        let added = self.added(second.is_some());
        let room = self.longest.saturating_sub(added);
        let length = first.len() + second.as_ref().map_or(0, Encoding::len);
        if !truncate && length > room {
            return Err(TextError::TooLong(self.longest));
        }
        let params = TruncationParams { max_length: room, ..TruncationParams::default() };
        let (mut first, mut second) = truncate_encodings(first, second, &params).map_err(unreadable)?;
        first.take_overflowing();
        second.as_mut().map(Encoding::take_overflowing);
        let encoded = self.library.post_process(first, second, true).map_err(unreadable)?;
        if encoded.len() > self.longest { Err(TextError::TooLong(self.longest)) } else { Ok(encoded) }
    }
}
