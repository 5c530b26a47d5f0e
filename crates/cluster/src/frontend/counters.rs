//! The counters of a frontend's models.

use ripieno_runtime::{ModelMetrics, ModelSnapshot};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The counters of a model.
pub(super) struct ModelCounters {
    pub(super) metrics: ModelMetrics,
    live: AtomicUsize,
}

/// Counts one request in flight until it is dropped.
pub(super) struct LiveGuard(pub(super) Arc<ModelCounters>);

impl ModelCounters {
    pub(super) fn new() -> Arc<ModelCounters> {
        // Batches are counted by the process that runs them.
        Arc::new(ModelCounters { metrics: ModelMetrics::new(0), live: AtomicUsize::new(0) })
    }

    pub(super) fn enter(self: &Arc<ModelCounters>) -> LiveGuard {
        self.live.fetch_add(1, Relaxed);
        LiveGuard(Arc::clone(self))
    }

    pub(super) fn snapshot(&self) -> ModelSnapshot {
        self.metrics.snapshot(self.live.load(Relaxed))
    }
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Relaxed);
    }
}
