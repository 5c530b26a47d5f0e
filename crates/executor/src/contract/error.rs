//! Errors. Load errors name the file, the key and the fix; task errors hold the engine's message.

use thiserror::Error;

/// A model cannot be loaded, or a device cannot be opened. The message names the file, the cause
/// and the fix.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct LoadError(pub String);

/// Beginning of the error of a request that the model refuses as wrong, rather than fails on.
pub const BAD_REQUEST: &str = "bad request: ";

/// A batch failed in the engine.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub struct ExecError(pub String);

/// The model cannot run a request. The message names the input, the value and the fix, for the
/// client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct RequestError(pub String);
