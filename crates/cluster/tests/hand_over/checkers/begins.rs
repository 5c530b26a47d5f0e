//! No batch starts for an epoch after an order of a later one was received, and none starts twice.

use crate::message::Batch;
use crate::network::Place;
use ripieno_cluster::handover::Epoch;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct Begins {
    latest: BTreeMap<Place, Epoch>,
    begun: BTreeSet<(Place, Batch)>,
}

impl Begins {
    /// Handles an order of this epoch at a backend, accepted or not.
    pub(crate) fn latest(&mut self, place: Place, epoch: Epoch) {
        let latest = self.latest.entry(place).or_default();
        *latest = epoch.max(*latest);
    }

    pub(crate) fn begun(&mut self, place: Place, batch: Batch) {
        let latest = self.latest.get(&place).copied().unwrap_or_default();
        assert!(batch.0.epoch >= latest, "backend {place} began {batch:?} after it had heard of {latest:?}");
        assert!(self.begun.insert((place, batch)), "backend {place} began {batch:?} twice");
    }
}
