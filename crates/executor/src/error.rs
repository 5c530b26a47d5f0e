//! What can go wrong: at load, with the file, key and fix; in a task, with the engine's words.

use thiserror::Error;

/// A model cannot be loaded, or a device cannot be opened. The message names the file, the cause and the fix.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct LoadError(pub String);

/// A batch failed in the engine.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub struct ExecError(pub String);

/// A request cannot be run by the model. The message names the input, the value and the fix, for the client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct RequestError(pub String);
