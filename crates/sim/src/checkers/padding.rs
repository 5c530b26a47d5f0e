//! Beyond their first block the members of a batch are all padded to the same length: tensors between blocks cannot be padded.

use crate::observer::{Observer, Run};
use ripieno_base::{BlockId, Time};
use ripieno_sched::Setup;

/// Remembers what each request was padded to.
#[derive(Debug)]
pub struct Padding {
    /// By model, whether the lengths of its requests matter.
    lengths: Vec<bool>,
    /// By slot.
    padded: Vec<u32>,
}

impl Padding {
    pub(crate) fn new(setup: &Setup) -> Padding {
        let lengths = setup.models.iter().map(|model| model.has_lengths()).collect();
        Padding { lengths, padded: vec![0; setup.limits.requests] }
    }
}

impl Observer for Padding {
    fn started(&mut self, now: Time, run: &Run<'_>) {
        if !self.lengths[run.model.index()] {
            return;
        }
        for slot in run.slots {
            let padded = &mut self.padded[slot.index()];
            if run.block == BlockId(0) {
                *padded = run.length;
            }
            assert_eq!(*padded, run.length, "{slot:?} was padded to another length than its batch at {now:?}: {run:?}");
        }
    }
}
