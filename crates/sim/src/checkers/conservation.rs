//! Each accepted request ends in exactly one finish or reject.
//!
//! The world itself panics when a slot without a live request ends, so ending twice cannot pass; this checker sees to it
//! that none is forgotten, and that no end is reported while a task still runs the request. Where requests unfold, several
//! tasks may hold one, and an answer need not wait for steps that were queued ahead: there `unfolding.rs` watches.

use crate::observer::{End, Observer, Run};
use ripieno_base::Time;
use ripieno_sched::{Request, Setup};

/// Counts requests in and out.
#[derive(Debug)]
pub struct Conservation {
    accepted: u64,
    ended: u64,
    /// By slot, whether a task holds the request.
    running: Vec<bool>,
    /// By model.
    unfolds: Vec<bool>,
}

impl Conservation {
    pub(crate) fn new(setup: &Setup) -> Conservation {
        let unfolds = setup.models.iter().map(|model| model.walk.is_unfolded()).collect();
        Conservation { accepted: 0, ended: 0, running: vec![false; setup.limits.requests], unfolds }
    }

    /// After a run everything must have ended.
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
