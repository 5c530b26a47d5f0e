//! Reads, checks and slices ONNX graphs into blocks.
//!
//! A batch can change only where a block ends, so a model in one file is one long block that newcomers wait for. Here any
//! ordinary model becomes a chain of files whose outputs are those of the whole:
//!
//! 1. [`Model::read`] reads the file, refuses what cannot be sliced for certain, and gives every tensor a shape (`shapes/`).
//! 2. `line` finds what each possible cut would have to carry; [`Model::layers`], [`Model::stages`] and [`Model::cuts_at`]
//!    choose among them, by what each of them costs (`price`).
//! 3. [`Model::slice`] and [`Slices::write`] make files of them.
//!
//! Whoever serves a file whole learns from [`Declared`] what it takes and gives. All of this looks into one [`OnnxFile`], which
//! is the only reader of the format.
//!
//! Nothing is run here: times, where stages shall be even in time, come from whoever has an engine. The graph is not changed
//! either: each operator ends up in one file as it was, so what an engine gives for the chain differs from the whole only as
//! far as it had fused across a cut. Rejected: naming a cut's tensors to an engine that runs parts of a loaded graph, which one
//! engine offers and only with its fusions off.

mod blocks;
mod cuts;
mod declared;
mod dense;
mod dim;
mod error;
mod estimate;
mod file;
#[cfg(test)]
mod fixture;
mod graph;
mod line;
mod price;
pub mod proto;
mod read;
mod recurrent;
mod shapes;
#[cfg(test)]
mod tests;
mod weights;

pub use blocks::{Block, SLICER_VERSION, Slices};
pub use cuts::Cuts;
pub use declared::Declared;
pub use dense::split_gemm;
pub use error::OnnxError;
pub use file::OnnxFile;
pub use graph::Model;
pub use price::Price;
pub use recurrent::{Answer, Cell, Cells, RandomCells};
