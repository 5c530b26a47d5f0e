//! A backend accepts orders in their order, and only from the epoch's holder; a restart changes
//! nothing of that.

use crate::message::Batch;
use crate::network::Place;
use ripieno_cluster::handover::ProcessId;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Orders {
    last: BTreeMap<Place, Batch>,
}

impl Orders {
    pub(crate) fn accepted(&mut self, place: Place, from: ProcessId, holder: Option<ProcessId>, order: Batch) {
        assert_eq!(holder, Some(from), "backend {place} accepted {order:?} of a process whose epoch it is not");
        let last = self.last.insert(place, order).unwrap_or_default();
        assert!(order > last, "backend {place} accepted {order:?} after {last:?}");
    }
}
