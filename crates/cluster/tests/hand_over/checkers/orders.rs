//! A backend obeys orders in their order, those of the epoch's holder only, and a restart changes nothing of that.

use crate::message::Batch;
use crate::network::Place;
use ripieno_cluster::handover::Process;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Orders {
    last: BTreeMap<Place, Batch>,
}

impl Orders {
    pub(crate) fn obeyed(&mut self, place: Place, from: Process, holder: Option<Process>, order: Batch) {
        assert_eq!(holder, Some(from), "backend {place} obeyed {order:?} of a process whose epoch it is not");
        let last = self.last.insert(place, order).unwrap_or_default();
        assert!(order > last, "backend {place} obeyed {order:?} after {last:?}");
    }
}
