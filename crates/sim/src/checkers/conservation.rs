//! Checks that each accepted request ends in exactly one finish or reject.
//!
//! The world itself panics if a slot without a live request ends, so a second end cannot pass. This
//! checker ensures that every request ends, and that no end is reported while a task still runs the
//! request. If requests unfold, several tasks may hold one, and an answer need not wait for queued
//! steps; `unfolding.rs` checks those.

use crate::observer::{End, Observer, Run};
use ripieno_base::Time;
use ripieno_sched::{Request, Setup};

/// A counter of accepted and ended requests.
#[derive(Debug)]
pub struct Conservation {
    accepted: u64,
    ended: u64,
    /// Per slot, whether a task holds the request.
    running: Vec<bool>,
    /// Per model, whether its walk unfolds.
    unfolds: Vec<bool>,
}

impl Conservation {
    pub(crate) fn new(setup: &Setup) -> Conservation {
        let unfolds = setup.models.iter().map(|model| model.walk.is_unfolded()).collect();
        Conservation { accepted: 0, ended: 0, running: vec![false; setup.limits.requests], unfolds }
    }

    /// Checks after a run that every request has ended.
    pub fn finish(&self) {
        assert_eq!(self.accepted, self.ended, "accepted requests were neither finished nor rejected");
    }
}

impl Observer for Conservation {
    fn accepted(&mut self, _id: u64, _request: &Request) {
        self.accepted += 1;
    }

    fn started(&mut self, now: Time, run: &Run<'_>) {
        if self.unfolds[run.model.index()] {
            return;
        }
        for slot in run.slots {
            let running = std::mem::replace(&mut self.running[slot.index()], true);
            assert!(!running, "{slot:?} was started at {now:?} while another task held it");
        }
    }

    fn done(&mut self, _now: Time, run: &Run<'_>) {
        for slot in run.slots {
            self.running[slot.index()] = false;
        }
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        self.ended += 1;
        let running = self.running[request.slot.index()];
        assert!(!running, "request {id} ended ({end:?}) at {now:?} while a task holds it");
    }
}
