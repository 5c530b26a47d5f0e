//! What a model is: its blocks, what they cost by batch size, and how a request walks through them.
//!
//! Standard library only; the scheduler, the simulator and the executors share these types.

pub mod bounds;
mod graph;
mod lanes;
mod latency;
mod lengths;
mod position;
mod profile;
mod steps;
mod tensor;
mod unfolded;

pub use graph::{Block, DropRule, Extent, Model, Steps, Walk};
pub use lanes::{Due, Job, Lanes};
pub use latency::{Latency, LatencyError};
pub use lengths::{Lengths, LengthsError};
pub use position::{Onward, Position, StepReport};
pub use profile::{Fit, Profile, ProfileError};
pub use steps::{Progress, StepGraph, StepsError, reserve};
pub use tensor::{DataType, TensorSpec};
pub use unfolded::{Graph, GraphError};
