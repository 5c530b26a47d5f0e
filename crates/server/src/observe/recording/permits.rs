//! The bound on recordings that are written at a time.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;

/// State of the recordings: one is written at a time.
pub(crate) struct Dumps {
    pub(super) permits: Arc<Semaphore>,
    /// Start of the last one that began by itself.
    pub(super) last: Mutex<Option<Instant>>,
}

impl Default for Dumps {
    fn default() -> Dumps {
        Dumps { permits: Arc::new(Semaphore::new(1)), last: Mutex::default() }
    }
}
