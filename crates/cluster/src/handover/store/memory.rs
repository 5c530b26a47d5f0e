//! The epoch of schedulers in one process.

use super::{EpochEntry, EpochStore, Swap, Unreachable};
use std::sync::{Arc, Mutex, PoisonError};

/// A store in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Option<EpochEntry>>>);

impl EpochStore for MemoryStore {
    fn swap(&mut self, swap: &Swap) -> Result<EpochEntry, Unreachable> {
        // The value is valid at any moment, so a panic of another holder does not matter.
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = swap.apply_to(*held)?;
        Ok(*held.insert(entry))
    }

    fn read(&mut self) -> Result<Option<EpochEntry>, Unreachable> {
        Ok(*self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
