//! The epoch of a scheduler without spares, chosen at its start.

use super::{EpochEntry, EpochStore, Swap, Unreachable};
use crate::handover::ids::Epoch;

/// Returns the same epoch to every caller: a scheduler that meets a later one stays a spare for
/// good.
#[derive(Clone, Copy, Debug)]
pub struct AloneStore {
    /// The epoch; larger at each start.
    pub epoch: Epoch,
}

impl EpochStore for AloneStore {
    fn swap(&mut self, swap: &Swap) -> Result<EpochEntry, Unreachable> {
        Ok(EpochEntry { epoch: self.epoch, holder: swap.next.holder })
    }

    fn read(&mut self) -> Result<Option<EpochEntry>, Unreachable> {
        Ok(None)
    }
}
