//! Tokenisation of texts and pairs of texts.

use crate::read::read_bounded;
use crate::tokens::{TokenizeError, Tokens};
use std::path::Path;
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{Encoding, PostProcessor, Tokenizer as Library, TruncationDirection, TruncationParams};

/// Upper bound on the tokenizer file, in bytes. Vocabularies of many languages take about 20 MB.
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
/// Maximum number of bytes read per allowed token. A token represents about 4 bytes, up to 10 in
/// code and tables. The vocabulary gives no bound, because whitespace and unknown words may have
/// any length. Reading far beyond this would let one text of megabytes occupy a thread for seconds.
const MAX_BYTES_PER_TOKEN: usize = 64;
/// Number of bytes that are always read, so that a model with a small token limit accepts short
/// texts of long words.
const MIN_READ_BYTES: usize = 4096;

/// A tokenizer that returns at most `max_tokens` tokens.
pub(crate) struct Tokenizer {
    library: Library,
    max_tokens: usize,
    /// Side, strategy and stride of truncation.
    truncation: TruncationParams,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub(crate) fn read(path: &Path) -> Result<Tokenizer, String> {
        let bytes = read_bounded(path, MAX_TOKENIZER_BYTES)?;
        let library = Library::from_bytes(bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        let truncation = library.get_truncation().cloned().unwrap_or_default();
        Ok(Tokenizer { library, max_tokens: usize::MAX, truncation })
    }

    /// Returns the maximum number of tokens that the tokenizer file gives.
    pub(crate) fn truncation(&self) -> Option<usize> {
        self.library.get_truncation().map(|truncation| truncation.max_length)
    }

    /// Returns the id of the padding token.
    pub(crate) fn pad_id(&self) -> u32 {
        let declared = self.library.get_padding().map(|padding| padding.pad_id);
        let named = || ["[PAD]", "<pad>"].into_iter().find_map(|token| self.library.token_to_id(token));
        declared.or_else(named).unwrap_or(0)
    }

    /// Sets the maximum number of tokens, and the side on which texts are cut, if `cuts_left` gives
    /// it; otherwise the tokenizer file decides.
    ///
    /// The library's own padding is disabled, because padding happens when batches are formed. Its
    /// truncation is disabled, too: the library would keep the parts that it cuts off, and for a
    /// pair one encoding per combination of parts, each with special tokens.
    pub(crate) fn set_max_tokens(&mut self, longest: usize, cuts_left: Option<bool>) -> Result<(), String> {
        let added = self.special_tokens(false);
        if longest <= added {
            return Err(format!("{longest} tokens leave no room for a text, since {added} are added to each"));
        }
        self.library.with_padding(None);
        self.library.with_truncation(None).map_err(|error| error.to_string())?;
        self.max_tokens = longest;
        if let Some(left) = cuts_left {
            self.truncation.direction = if left { TruncationDirection::Left } else { TruncationDirection::Right };
        }
        Ok(())
    }

    /// Reads texts in lower case from now on.
    pub(crate) fn lower_case(&mut self) {
        let first = [Lowercase.into()].into_iter();
        let all = first.chain(self.library.get_normalizer().cloned()).collect();
        self.library.with_normalizer(Some(Sequence::new(all)));
    }

    /// Returns whether long texts are cut on the left.
    pub(crate) fn cuts_left(&self) -> bool {
        matches!(self.truncation.direction, TruncationDirection::Left)
    }

    /// Returns the number of special tokens added to a text or to a pair.
    fn special_tokens(&self, is_pair: bool) -> usize {
        self.library.get_post_processor().map_or(0, |processor| processor.added_tokens(is_pair))
    }

    /// Returns the maximum number of bytes read of a text.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_tokens.saturating_mul(MAX_BYTES_PER_TOKEN).max(MIN_READ_BYTES)
    }

    /// Returns the part of a text that is read. The rest would be cut off as tokens anyway, unless
    /// nearly all of the part is whitespace or unknown words.
    fn readable<'a>(&self, text: &'a str, truncate: bool) -> Result<&'a str, TokenizeError> {
        let (bytes, most) = (text.len(), self.max_bytes());
        match bytes > most {
            false => Ok(text),
            true if truncate && self.cuts_left() => Ok(&text[text.ceil_char_boundary(bytes - most)..]),
            true if truncate => Ok(&text[..text.floor_char_boundary(most)]),
            true => Err(TokenizeError::TooManyBytes { bytes, most, tokens: self.max_tokens }),
        }
    }

    /// Returns the tokens of a text or of a pair.
    pub(crate) fn encode(&self, first: &str, second: Option<&str>, truncate: bool) -> Result<Tokens, TokenizeError> {
        let first = self.readable(first, truncate)?;
        let second = second.map(|second| self.readable(second, truncate)).transpose()?;
        let encoded = self.encode_within(first, second, truncate)?;
        let (ids, types) = (encoded.get_ids().to_vec(), encoded.get_type_ids().to_vec());
        if ids.is_empty() { Err(TokenizeError::Empty) } else { Ok(Tokens { ids, types }) }
    }

    /// Encodes a text or a pair with its special tokens, truncated if `truncate` allows it.
    fn encode_within(&self, first: &str, second: Option<&str>, truncate: bool) -> Result<Encoding, TokenizeError> {
        let unreadable = |error: tokenizers::Error| TokenizeError::Unreadable(error.to_string());
        let part = |text: &str| self.library.encode_fast(text, false).map_err(unreadable);
        let (first, second) = (part(first)?, second.map(part).transpose()?);
        let added = self.special_tokens(second.is_some());
        let room = self.max_tokens.saturating_sub(added);
        let length = first.len() + second.as_ref().map_or(0, Encoding::len);
        if !truncate && length > room {
            return Err(TokenizeError::TooLong(self.max_tokens));
        }
        let params = TruncationParams { max_length: room, stride: 0, ..self.truncation.clone() };
        let (mut first, mut second) = truncate_encodings(first, second, &params).map_err(unreadable)?;
        first.take_overflowing();
        second.as_mut().map(Encoding::take_overflowing);
        let encoded = self.library.post_process(first, second, true).map_err(unreadable)?;
        if encoded.len() > self.max_tokens { Err(TokenizeError::TooLong(self.max_tokens)) } else { Ok(encoded) }
    }
}
