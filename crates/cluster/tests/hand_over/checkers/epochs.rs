//! Each epoch is one scheduler's, and only what the store gave is claimed.
//!
//! The store's own history is compared with those who say that they are primaries: a scheduler that takes a refused swap for a
//! success, or goes back into an epoch that is over, is found here.

use ripieno_cluster::handover::store::Entry;
use ripieno_cluster::handover::{Epoch, Process};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Epochs {
    given: BTreeMap<Epoch, Process>,
    begun: BTreeMap<Epoch, Process>,
}

impl Epochs {
    /// The store holds this now.
    pub(crate) fn held(&mut self, entry: Entry) {
        let last = self.given.last_key_value().map(|(&epoch, _)| epoch);
        assert!(last.is_none_or(|last| entry.epoch >= last), "the store went back to {entry:?}");
        let holder = *self.given.entry(entry.epoch).or_insert(entry.holder);
        assert_eq!(holder, entry.holder, "{:?} was given twice", entry.epoch);
    }

    /// This process becomes the primary.
    pub(crate) fn begins(&mut self, process: Process, epoch: Epoch) {
        assert_eq!(self.given.get(&epoch), Some(&process), "{process:?} takes {epoch:?}, which it was not given");
        assert_eq!(self.begun.insert(epoch, process), None, "{epoch:?} begins twice");
    }

    /// Whose epoch it is.
    pub(crate) fn holder(&self, epoch: Epoch) -> Option<Process> {
        self.given.get(&epoch).copied()
    }

    pub(crate) fn count(&self) -> u64 {
        self.begun.len() as u64
    }
}
