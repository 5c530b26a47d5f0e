//! Checks that the work of a cancelled task is lost: its members are answered only after they run
//! again from their first block.
//!
//! The world itself panics if a task is cancelled that is not in flight, or a second time.

use crate::observer::{End, Observer, Run};
use ripieno_base::{BlockId, Time};
use ripieno_sched::{Request, Setup};

/// The requests whose work was lost.
#[derive(Debug)]
pub struct Cancels {
    /// Per slot, whether the last batch of the request was cancelled.
    lost: Vec<bool>,
}

impl Cancels {
    pub(crate) fn new(setup: &Setup) -> Cancels {
        Cancels { lost: vec![false; setup.limits.requests] }
    }
}

impl Observer for Cancels {
    fn started(&mut self, now: Time, run: &Run<'_>) {
        for slot in run.slots {
            let lost = std::mem::replace(&mut self.lost[slot.index()], false);
            assert!(!lost || run.block == BlockId(0), "{slot:?} went on at {now:?} with work that was cancelled");
        }
    }

    fn cancelled(&mut self, _now: Time, run: &Run<'_>) {
        for slot in run.slots {
            self.lost[slot.index()] = true;
        }
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        let lost = std::mem::replace(&mut self.lost[request.slot.index()], false);
        assert!(!(lost && end == End::Finished), "request {id} finished at {now:?} with work that was cancelled");
    }
}
