//! What a front end does for a model at the edge of the server, between its clients and the runtime.

mod levels;
mod reshape;
mod sequences;

pub use levels::{LEVELS, Levels};
pub use reshape::Reshape;
pub use sequences::{Control, Event, SequenceId, Sequences, Signal, State};
use std::collections::BTreeMap;

/// What is done with requests before they are submitted, and with answers before they are sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edge {
    /// Tensors, by name, that clients see in another shape than the model has.
    pub reshapes: BTreeMap<String, Reshape>,
    /// Where requests stand that name a level of priority, or none.
    pub levels: Levels,
    /// How it keeps sequences, if it does.
    pub sequences: Option<Sequences>,
}
