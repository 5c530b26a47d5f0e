//! State of the page.

use super::samples::Samples;
use super::watch::Watch;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Largest number of open pages that are kept up to date.
pub(super) const MOST_STREAMS: usize = 64;

/// Samples, history and bounds.
pub(crate) struct Ui {
    pub(super) samples: Mutex<Samples>,
    pub(super) watch: Watch,
    pub(super) streams: Arc<Semaphore>,
    /// Permit to render; one view is rendered at a time.
    pub(super) rendering: Arc<Semaphore>,
}

impl Default for Ui {
    fn default() -> Ui {
        let (samples, watch) = (Mutex::default(), Watch::default());
        Ui { samples, watch, streams: Arc::new(Semaphore::new(MOST_STREAMS)), rendering: Arc::new(Semaphore::new(1)) }
    }
}
