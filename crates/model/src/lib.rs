//! Description of a model: its blocks, their cost by batch size, and the walk of a request through
//! them.
//!
//! Uses only the standard library. The scheduler, the simulator and the executors share these
//! types.

mod batch_sizes;
pub mod bounds;
mod graph;
mod input_lengths;
mod lanes;
mod latency;
mod lengths;
mod position;
mod profile;
mod steps;
mod tensor;
mod unfolded;
pub mod zoo;

pub use batch_sizes::{ascends, doubling_sizes, padded_size};
pub use graph::{Block, DropRule, Extent, Model, Steps, Walk};
pub use input_lengths::InputLengths;
pub use lanes::{ExpectedEnds, LaneTask, Lanes};
pub use latency::{Latency, LatencyError};
pub use lengths::{LengthProfiles, LengthsError};
pub use position::{Onward, Position, StepReport};
pub use profile::{Fit, Profile, ProfileError};
pub use steps::{StepGraph, StepProgress, StepsError, reserve};
pub use tensor::{DataType, TensorSpec};
pub use unfolded::{Graph, GraphError};
