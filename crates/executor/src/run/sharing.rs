//! Whether the requests of a loaded model may share batches, as its answers show.
//!
//! A model is loaded with batches if its rows are proved to be independent, if a trial finds them
//! so, or if the owner demands it. Two findings end batches while the model serves:
//!
//! * An output whose first dimension is not the number of rows. It depends on values, so the rows
//!   of one request cannot be told from another's.
//! * A row that is answered differently alone than in its batch ([`row_check`](super::row_check)).
//!
//! From then on each request of the model runs alone. The scheduler still forms batches, whose
//! members run one after another, and the corrected profile says what that costs. Rejected: to load
//! the model again without a batch dimension, because clients would see other shapes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// State of a loaded model, for all its devices.
#[derive(Debug, Default)]
pub(crate) struct BatchSharing {
    stopped: OnceLock<String>,
    /// Set if a sample of its batches is compared with single rows: the reason, as a clause.
    watched: OnceLock<String>,
    rows_compared: AtomicU64,
}

impl BatchSharing {
    /// Makes each request of the model run alone from now on.
    pub(crate) fn stop(&self, model: &str, why: String) {
        if self.stopped.set(why.clone()).is_ok() {
            tracing::warn!("model {model}: its requests no longer share batches, each runs alone: {why}");
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    /// Returns the reason for which each request runs alone.
    pub(crate) fn stop_reason(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }

    /// Begins to compare a sample of batches with single rows, because of `doubt`.
    pub(crate) fn watch(&self, doubt: &str) {
        self.watched.get_or_init(|| doubt.to_owned());
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.get().is_some() && !self.is_stopped()
    }

    /// Makes each request of the model run alone from now on, because a row is answered differently
    /// alone.
    pub(crate) fn stop_different(&self, model: &str, how: &str) {
        let doubt = self.watched.get().map_or("", String::as_str);
        self.stop(model, format!("a row of a batch is answered differently alone: {how}; {doubt}"));
    }

    pub(crate) fn count_comparison(&self) {
        self.rows_compared.fetch_add(1, Relaxed);
    }

    pub(crate) fn rows_compared(&self) -> u64 {
        self.rows_compared.load(Relaxed)
    }
}
