//! The epoch of schedulers in one process.

use super::{Entry, EpochStore, Swap, Unreachable};
use std::sync::{Arc, Mutex, PoisonError};

/// A store in memory; clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Option<Entry>>>);

impl EpochStore for MemoryStore {
    fn swap(&mut self, swap: &Swap) -> Result<Entry, Unreachable> {
        // The value is whole at every moment, whoever panicked.
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = swap.on(*held)?;
        Ok(*held.insert(entry))
    }

    fn read(&mut self) -> Result<Option<Entry>, Unreachable> {
        Ok(*self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
