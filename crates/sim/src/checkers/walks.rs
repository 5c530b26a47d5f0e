//! Checks that a batch is not empty, not larger than its model allows, and of one model. Every
//! member must walk its blocks in order, once each, on one device, which holds the intermediate
//! results. A member may skip blocks or leave early when a block reports it. `unfolding.rs` checks
//! walks that unfold.

use crate::observer::{End, Observer, Run};
use ripieno_base::{BlockId, DeviceId, ModelId, Time};
use ripieno_model::Model;
use ripieno_sched::{Request, Setup};

/// The progress of each request through the blocks of its model.
#[derive(Debug)]
pub struct Walks {
    models: Vec<Model>,
    /// The model and next block of the request in each slot.
    next: Vec<(ModelId, BlockId)>,
    /// The device of its first block.
    device: Vec<DeviceId>,
}

impl Walks {
    pub(crate) fn new(setup: &Setup) -> Walks {
        let requests = setup.limits.requests;
        Walks {
            models: setup.models.clone(),
            next: vec![Default::default(); requests],
            device: vec![DeviceId(0); requests],
        }
    }
}

impl Observer for Walks {
    fn accepted(&mut self, _id: u64, request: &Request) {
        self.next[request.slot.index()] = (request.model, BlockId(0));
    }

    fn started(&mut self, now: Time, run: &Run<'_>) {
        let max_batch = self.models[run.model.index()].max_batch;
        assert!((1..=max_batch).contains(&run.rows), "a batch of {} rows of {:?} at {now:?}", run.rows, run.model);
        if self.models[run.model.index()].walk.is_unfolded() {
            return;
        }
        for slot in run.slots {
            let next = &mut self.next[slot.index()];
            // A request whose device was lost starts its walk again.
            let anew = run.block == BlockId(0);
            assert!(
                next.0 == run.model && (next.1 == run.block || anew),
                "{run:?} at {now:?}, but {slot:?} is at {next:?}"
            );
            next.1 = BlockId(run.block.0 + 1);
            let device = &mut self.device[slot.index()];
            if anew {
                *device = run.device;
            }
            assert!(*device == run.device, "{run:?} at {now:?}, but {slot:?} began on {device:?}");
        }
    }

    fn done(&mut self, _now: Time, run: &Run<'_>) {
        if run.skips.is_empty() && run.ended.is_empty() {
            return;
        }
        for (slot, &skip) in run.slots.iter().zip(run.skips) {
            self.next[slot.index()].1 = skip;
        }
        let blocks = self.models[run.model.index()].blocks.len();
        for (slot, _) in run.slots.iter().zip(run.ended).filter(|(_, ended)| **ended) {
            self.next[slot.index()].1 = BlockId(blocks as u16);
        }
    }

    fn ended(&mut self, now: Time, id: u64, request: &Request, end: End) {
        if self.models[request.model.index()].walk.is_unfolded() {
            return;
        }
        let (model, block) = self.next[request.slot.index()];
        let blocks = self.models[model.index()].blocks.len();
        let complete = block.index() == blocks;
        assert!(end != End::Finished || complete, "request {id} finished after {block:?} of {blocks} at {now:?}");
    }
}
