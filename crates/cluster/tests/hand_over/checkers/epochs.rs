//! Each epoch has one holder, and a scheduler claims only epochs that the store granted.
//!
//! The store's history is compared with the schedulers that become primaries: a scheduler that
//! takes a refused swap for a success, or returns to an epoch that is over, is found here.

use ripieno_cluster::handover::store::EpochEntry;
use ripieno_cluster::handover::{Epoch, ProcessId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Epochs {
    given: BTreeMap<Epoch, ProcessId>,
    begun: BTreeMap<Epoch, ProcessId>,
}

impl Epochs {
    /// Handles a change of the store.
    pub(crate) fn held(&mut self, entry: EpochEntry) {
        let last = self.given.last_key_value().map(|(&epoch, _)| epoch);
        assert!(last.is_none_or(|last| entry.epoch >= last), "the store went back to {entry:?}");
        let holder = *self.given.entry(entry.epoch).or_insert(entry.holder);
        assert_eq!(holder, entry.holder, "{:?} was given twice", entry.epoch);
    }

    /// Handles a process becoming the primary.
    pub(crate) fn begins(&mut self, process: ProcessId, epoch: Epoch) {
        assert_eq!(self.given.get(&epoch), Some(&process), "{process:?} takes {epoch:?}, which it was not given");
        assert_eq!(self.begun.insert(epoch, process), None, "{epoch:?} begins twice");
    }

    /// Returns the holder of an epoch.
    pub(crate) fn holder(&self, epoch: Epoch) -> Option<ProcessId> {
        self.given.get(&epoch).copied()
    }

    pub(crate) fn count(&self) -> u64 {
        self.begun.len() as u64
    }
}
