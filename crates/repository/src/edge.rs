//! Per-model processing in the server, between clients and the runtime.

mod levels;
mod reshape;
mod sequences;

pub use levels::{LEVELS, Levels};
pub use reshape::Reshape;
pub use sequences::{SequenceControl, SequenceEvent, SequenceId, SequenceState, Sequences, Signal};
use std::collections::BTreeMap;

/// Processing of requests before they are submitted, and of answers before they are sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EdgeConfig {
    /// Tensors, by name, whose shape differs between clients and the model.
    pub reshapes: BTreeMap<String, Reshape>,
    /// Priority levels.
    pub levels: Levels,
    /// Handling of sequences, if the model keeps them.
    pub sequences: Option<Sequences>,
}
