//! A message that cannot be understood.

use thiserror::Error;

/// What is wrong with a message: names the tensor, what was expected and what came. Always the sender's fault.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct WireError(pub String);

impl WireError {
    pub(crate) fn new(message: impl Into<String>) -> WireError {
        WireError(message.into())
    }
}
