//! No batch is begun for an epoch after an order of a later one was heard, and none twice.

use crate::message::Batch;
use crate::network::Place;
use ripieno_cluster::handover::Epoch;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct Begins {
    heard: BTreeMap<Place, Epoch>,
    begun: BTreeSet<(Place, Batch)>,
}

impl Begins {
    /// An order of this epoch came to a backend, obeyed or not.
    pub(crate) fn heard(&mut self, place: Place, epoch: Epoch) {
        let heard = self.heard.entry(place).or_default();
        *heard = epoch.max(*heard);
    }

    pub(crate) fn begun(&mut self, place: Place, batch: Batch) {
        let heard = self.heard.get(&place).copied().unwrap_or_default();
        assert!(batch.0.epoch >= heard, "backend {place} began {batch:?} after it had heard of {heard:?}");
        assert!(self.begun.insert((place, batch)), "backend {place} began {batch:?} twice");
    }
}
