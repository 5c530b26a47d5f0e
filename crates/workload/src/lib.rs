//! Seeded arrivals, lengths, trees and traces.
//!
//! A run must be repeatable from its seed alone, on any machine and with any later version of our
//! dependencies. So the generator is named here (xoshiro256++) instead of taken from a "standard"
//! one that may change, and each model draws from a stream of its own: adding a model leaves the
//! others' arrivals unchanged.

mod arrival;
mod changing;
mod lengths;
mod mix;
mod random;
pub mod trace;
mod trees;

pub use arrival::{ArrivalError, ArrivalProcess, Arrivals};
pub use changing::{ChangingArrivals, Rates};
pub use lengths::{LengthDistribution, LengthError, MAX_LENGTH, counted_lengths};
pub use mix::{Mix, mix};
pub use random::{SeededRng, below, stream, unit};
pub use trees::{Children, TreeError, complete_tree, parse_tree, tree_shapes};
