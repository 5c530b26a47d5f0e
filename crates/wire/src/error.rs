//! The error for a malformed message.

use thiserror::Error;

/// Describes what is wrong with a message: the tensor, the expected and the received value. The
/// sender is always at fault.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct WireError(pub String);

impl WireError {
    pub(crate) fn new(message: impl Into<String>) -> WireError {
        WireError(message.into())
    }
}
