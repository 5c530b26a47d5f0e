//! Reads, checks and slices ONNX graphs into blocks.
//!
//! A batch can change only where a block ends, so a model in one file is one long block that new
//! requests wait for. This crate turns any ordinary model into a chain of files with the same
//! outputs:
//!
//! 1. [`OnnxModel::read`] reads the file, refuses a model that cannot be sliced with certainty, and
//!    gives every tensor a shape (`shapes/`).
//! 2. `line` finds the tensors that each possible cut would carry; [`OnnxModel::layers`],
//!    [`OnnxModel::stages`] and [`OnnxModel::cuts_at`] choose among the cuts, by the cost of each
//!    (`price`).
//! 3. [`OnnxModel::slice`] and [`Slices::write`] create the files.
//!
//! To serve a file whole, [`Declared`] returns its inputs and outputs. All of this reads one
//! [`OnnxFile`], the only reader of the format.
//!
//! Nothing is run here: measured times, for stages of equal time, come from a caller with an
//! engine. The graph is not changed either: each operator ends up in one file unchanged, so an
//! engine's outputs for the chain differ from those of the whole only where it would have fused
//! operators across a cut. Rejected: naming a cut's tensors to an engine that runs parts of a
//! loaded graph, which one engine offers and only with its fusions off.

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

pub use blocks::{SLICER_VERSION, SlicedBlock, Slices};
pub use cuts::Cuts;
pub use declared::Declared;
pub use dense::split_gemm;
pub use error::OnnxError;
pub use file::OnnxFile;
pub use graph::OnnxModel;
pub use price::CutPrice;
pub use recurrent::{CellOutput, RandomCells, RecurrentCell, RecurrentCells};
