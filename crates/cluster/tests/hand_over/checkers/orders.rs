//! A backend obeys orders in their order, those of the epoch's holder only, and a restart changes nothing of that.

use crate::network::Place;
use ripieno_cluster::handover::{Process, Stamp};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Orders {
    last: BTreeMap<Place, Stamp>,
}

impl Orders {
    pub(crate) fn obeyed(&mut self, place: Place, from: Process, holder: Option<Process>, stamp: Stamp) {
        assert_eq!(holder, Some(from), "backend {place} obeyed {stamp:?} of a process whose epoch it is not");
        let last = self.last.insert(place, stamp).unwrap_or_default();
        assert!(stamp > last, "backend {place} obeyed {stamp:?} after {last:?}");
    }
}
