//! Errors of a file. The message names the file or tensor, the cause and the fix.

use thiserror::Error;

/// A model cannot be read, or cannot be sliced as requested.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct OnnxError(pub String);

/// Returns an error of this crate.
pub(crate) fn refuse<T>(message: impl Into<String>) -> Result<T, OnnxError> {
    Err(OnnxError(message.into()))
}
