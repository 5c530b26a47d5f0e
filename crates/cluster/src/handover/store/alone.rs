//! The epoch of a scheduler that has no spare: its own, from its start.

use super::{Entry, EpochStore, Swap, Unreachable};
use crate::handover::ids::Epoch;

/// Gives whoever asks this one epoch, and no other after it: who meets a later scheduler is a spare for good.
#[derive(Clone, Copy, Debug)]
pub struct AloneStore {
    /// Larger at each start.
    pub epoch: Epoch,
}

impl EpochStore for AloneStore {
    fn swap(&mut self, swap: &Swap) -> Result<Entry, Unreachable> {
        Ok(Entry { epoch: self.epoch, holder: swap.next.holder })
    }

    fn read(&mut self) -> Result<Option<Entry>, Unreachable> {
        Ok(None)
    }
}
