//! Findings of answers about a model's rows.

use crate::{BatchFindings, Engine};
use ripieno_base::ModelId;

impl Engine {
    /// Returns the findings of a model's answers about its rows; `None` if it is not loaded.
    pub fn batch_findings(&self, id: ModelId) -> Option<BatchFindings> {
        let loaded = &self.0.model_ids.get(id)?.loaded;
        Some(BatchFindings { rows_compared: loaded.rows_compared(), stopped: loaded.batches_stopped() })
    }
}
