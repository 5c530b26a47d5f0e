//! Reads, checks and slices ONNX graphs into blocks.
//!
//! A batch can change only between blocks. A model in one file is one long block, and new requests
//! wait until it ends. This crate turns a model into a chain of files with the same outputs:
//!
//! 1. [`OnnxModel::read`] reads the file and gives every tensor a shape (`shapes/`). It refuses a
//!    model that cannot be sliced with certainty.
//! 2. `line` finds the tensors that each possible cut would carry. [`OnnxModel::layers`],
//!    [`OnnxModel::stages`] and [`OnnxModel::cuts_at`] choose among the cuts by their cost
//!    (`price`).
//! 3. [`OnnxModel::slice`] and [`Slices::write`] create the files.
//!
//! To serve a file whole, [`Declared`] returns its inputs and outputs, and [`analyse_rows`] tells
//! whether its rows may share a batch. All of these use [`OnnxFile`], the only reader of the
//! format.
//!
//! This crate runs no model. To make stages of equal time, the caller measures the times with an
//! engine. This crate does not change operators either. Each operator is unchanged in one of the
//! files. So outputs of the chain differ from the outputs of the whole model only if an engine
//! would fuse operators across a cut. Rejected: running parts of a loaded graph by naming the
//! tensors at a cut. One engine supports this, and only without fusion.
//!
//! ```
//! use ripieno_onnx::OnnxModel;
//! use std::path::Path;
//!
//! let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/repository");
//! let model = OnnxModel::read(&repository.join("digits/1/model.onnx")).unwrap();
//! let layers = model.layers();
//! let slices = model.slice(&layers, "layers").unwrap();
//! assert_eq!(slices.blocks.len(), layers.blocks());
//! ```

mod batch_first;
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
mod open_batch;
mod price;
pub mod proto;
mod read;
mod recurrent;
mod rows;
mod shapes;
#[cfg(test)]
mod tests;
mod weights;
mod windows;

pub use batch_first::{BATCH_FIRST_VERSION, batch_first};
pub use blocks::{SLICER_VERSION, SlicedBlock, Slices};
pub use cuts::Cuts;
pub use declared::Declared;
pub use dense::{external_name, rewrite_for_rten};
pub use error::OnnxError;
pub use file::OnnxFile;
pub use graph::OnnxModel;
pub use open_batch::{OPEN_BATCH_VERSION, open_batch};
pub use price::CutPrice;
pub use recurrent::{CellOutput, RandomCells, RecurrentCell, RecurrentCells};
pub use rows::{RowAnalysis, RowFinding, RowFindingKind, RowVerdict, analyse_rows, analyse_rows_at, other_batch_dims};
pub use weights::{default_value, words};
