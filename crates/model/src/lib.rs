//! Description of a model: its blocks, their cost by batch size, and the walk of a request through
//! them.
//!
//! Uses only the standard library. The scheduler, the simulator and the executors share these
//! types.
//!
//! ```
//! use ripieno_base::Nanos;
//! use ripieno_model::{Model, Profile, bounds::staggered_bound};
//!
//! let profile = Profile::linear(1.0, 5.0, 32).unwrap(); // a batch of b takes b + 5 ms
//! let model = Model::whole("resnet", profile.clone(), Nanos::from_millis(25));
//! assert_eq!(model.blocks[0].profile.latency(8), Nanos::from_millis(13));
//! let best = staggered_bound(&profile, model.slo, 1);
//! assert_eq!((best.batch, best.goodput_rps), (7, 7.0 / 0.012)); // 2 ℓ(7) is 24 ms
//! ```

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

pub use batch_sizes::{ascends, doubling_sizes, finer_sizes, padded_size};
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
