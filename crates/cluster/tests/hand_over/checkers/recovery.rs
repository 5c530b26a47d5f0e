//! After the faults have ended, one primary commands all backends within the stated time, and all
//! later requests run.

use crate::message::Outcome;
use ripieno_base::Time;
use ripieno_cluster::handover::RequestId;
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Requests submitted after the recovery.
    must_run: BTreeSet<RequestId>,
}

impl Recovery {
    pub(crate) fn submitted(&mut self, request: RequestId) {
        self.must_run.insert(request);
    }

    pub(crate) fn delivered(&mut self, now: Time, request: RequestId, outcome: Outcome) {
        let fine = outcome == Outcome::Ran || !self.must_run.contains(&request);
        assert!(fine, "{request:?} was submitted after all faults, and got {outcome:?} at {now:?}");
    }

    /// Checks at the deadline that there is one primary, and that it commands all backends.
    pub(crate) fn due(&self, now: Time, primaries: usize, commanded: usize, backends: usize) {
        assert_eq!(primaries, 1, "primaries at {now:?}");
        assert_eq!(commanded, backends, "backends that the primary commands at {now:?}");
    }
}
