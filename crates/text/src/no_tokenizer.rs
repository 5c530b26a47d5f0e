//! Stands for the tokenizer in a build without the feature `tokenizers`.

use crate::tokens::{TokenizeError, Tokens};
use std::path::Path;

/// A tokenizer, of which this build has none.
pub(crate) enum Tokenizer {}

impl Tokenizer {
    pub(crate) fn read(path: &Path) -> Result<Tokenizer, String> {
        Err(format!("{}: this build has no tokenizers; build it with --features text", path.display()))
    }

    pub(crate) fn truncation(&self) -> Option<usize> {
        match *self {}
    }

    pub(crate) fn pad_id(&self) -> u32 {
        match *self {}
    }

    pub(crate) fn set_max_tokens(&mut self, _: usize, _: Option<bool>) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn lower_case(&mut self) {
        match *self {}
    }

    pub(crate) fn cuts_left(&self) -> bool {
        match *self {}
    }

    pub(crate) fn max_bytes(&self) -> usize {
        match *self {}
    }

    pub(crate) fn encode(&self, _: &str, _: Option<&str>, _: bool) -> Result<Tokens, TokenizeError> {
        match *self {}
    }
}
