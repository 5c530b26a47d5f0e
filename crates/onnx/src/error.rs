//! Errors of a file: the message names the file or the tensor, the cause and the fix.

use thiserror::Error;

/// A model cannot be read, or cannot be sliced as requested.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct OnnxError(pub String);

/// Returns an error of this crate.
pub(crate) fn refuse<T>(message: impl Into<String>) -> Result<T, OnnxError> {
    Err(OnnxError(message.into()))
}
