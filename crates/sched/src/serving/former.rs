//! The former of a model's tasks, which is decided when the model is loaded.

use ripieno_model::Model;

/// The former of a model's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Former {
    /// Batches of the whole walk (`batches.rs`).
    Batches,
    /// Batches padded to their longest request (`padded.rs`).
    Padded,
    /// Steps of cells (`cells.rs`). Estimates of batch sizes are not kept.
    Cells,
}

impl Former {
    pub(super) fn of(model: &Model) -> Former {
        match (model.walk.is_unfolded(), model.has_lengths()) {
            (true, _) => Former::Cells,
            (false, true) => Former::Padded,
            (false, false) => Former::Batches,
        }
    }
}
