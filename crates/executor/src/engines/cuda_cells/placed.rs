//! The memory of a model at one place.

use super::place::{CellPlace, PlaceError};
use super::plan::CompiledModel;
use super::store::DeviceRows;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A model's memory at a place. Taken when it is first needed, and again when it is gone.
pub(super) struct PlacedModel {
    pub(super) place: Arc<dyn CellPlace>,
    compiled: Arc<CompiledModel>,
    rows: Mutex<Option<Arc<DeviceRows>>>,
    /// Whether a lane has asked for the rows. Read without the lock, which may be held while a
    /// process starts.
    is_taken: AtomicBool,
}

impl PlacedModel {
    pub(super) fn new(place: Arc<dyn CellPlace>, compiled: Arc<CompiledModel>) -> PlacedModel {
        PlacedModel { place, compiled, rows: Mutex::new(None), is_taken: AtomicBool::new(false) }
    }

    /// Returns the rows of state.
    pub(super) fn rows(&self) -> Result<Arc<DeviceRows>, PlaceError> {
        self.is_taken.store(true, Ordering::Relaxed);
        let mut rows = self.rows.lock();
        if let Some(rows) = rows.as_ref().filter(|rows| !rows.model.is_gone()) {
            return Ok(Arc::clone(rows));
        }
        // An ended process must be released before the next one is awaited.
        *rows = None;
        let model = self.place.open()?;
        let new = DeviceRows::new(model, Arc::clone(&self.place), Arc::clone(&self.compiled));
        Ok(Arc::clone(rows.insert(Arc::new(new))))
    }

    /// Whether a lane has asked for the rows.
    pub(super) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed)
    }
}
