//! Checks that no member of a batch exceeds the batch's padded length.
//!
//! Tensors between blocks cannot be padded. So after the first block, all members of a batch must
//! have been padded to the same length in that block. If the cost of a block does not depend on the
//! length, batches of different padded lengths may merge; the engine runs them separately. Where
//! requests run cell by cell, padding is an extra step, and the padded length is 1.

use crate::observer::{Observer, Run};
use ripieno_base::{BlockId, Time};
use ripieno_sched::{Request, Setup};

/// The own and the padded length of each request.
#[derive(Debug)]
pub struct PaddingChecker {
    /// Per model, whether its walk unfolds, and whether the cost of a batch depends on lengths.
    kinds: Vec<(bool, bool)>,
    /// Lengths by slot.
    own: Vec<u32>,
    padded: Vec<u32>,
}

impl PaddingChecker {
    pub(crate) fn new(setup: &Setup) -> PaddingChecker {
        let kinds = setup.models.iter().map(|model| (model.walk.is_unfolded(), model.has_lengths())).collect();
        let slots = setup.limits.requests;
        PaddingChecker { kinds, own: vec![1; slots], padded: vec![1; slots] }
    }
}

impl Observer for PaddingChecker {
    fn accepted(&mut self, _id: u64, request: &Request) {
        self.own[request.slot.index()] = request.extent.length;
    }

    fn started(&mut self, now: Time, run: &Run<'_>) {
        let (length, (unfolds, costs)) = (run.length, self.kinds[run.model.index()]);
        if unfolds {
            assert_eq!(length, 1, "a walk that unfolds was padded at {now:?}: {run:?}");
            return;
        }
        for slot in run.slots {
            let (own, padded) = (self.own[slot.index()], &mut self.padded[slot.index()]);
            if run.block == BlockId(0) {
                assert!(length >= own, "{slot:?} is {own} long, but its batch is padded to less at {now:?}: {run:?}");
                *padded = length;
            }
            let fits = *padded == length || (!costs && *padded < length);
            assert!(fits, "{slot:?} was padded to {padded}, but its batch to another length at {now:?}: {run:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_base::{DeviceId, LaneId, ModelId, Nanos, RequestSlot, TaskId};
    use ripieno_model::{Extent, LengthProfiles, Model, Profile, Walk};
    use ripieno_sched::{Limits, RequestClass};

    const SLOTS: [RequestSlot; 2] = [RequestSlot(0), RequestSlot(1)];

    /// Starts these blocks with these lengths, of two requests that are 4 and 7 long.
    fn run(walk: Walk, tasks: &[(u16, u32)]) {
        let limits = Limits { requests: 2, batch: 2, ..Limits::ONE };
        let profile = Profile::linear(1.0, 1.0, 2).unwrap();
        let mut model = Model { walk, ..Model::whole("m", profile.clone(), Nanos(9)) };
        model.blocks[0].lengths = Some(LengthProfiles::new(vec![(1, profile)]).unwrap());
        let mut checker = PaddingChecker::new(&Setup { models: vec![model], devices: 1, limits });
        for (slot, length) in SLOTS.into_iter().zip([4, 7]) {
            let extent = Extent { length, limit: 0 };
            let (arrived, deadline) = (Time::ORIGIN, Time::NEVER);
            let class = RequestClass::default();
            checker.accepted(0, &Request { slot, model: ModelId(0), arrived, deadline, rows: 1, extent, class });
        }
        for &(block, length) in tasks {
            let run = Run {
                task: TaskId(0),
                model: ModelId(0),
                block: BlockId(block),
                device: DeviceId(0),
                lane: LaneId(0),
                rows: 2,
                length,
                start: Time::ORIGIN,
                end: Time::ORIGIN,
                slots: &SLOTS,
                nodes: &[],
                ids: &[],
                ended: &[],
                skips: &[],
            };
            checker.started(Time::ORIGIN, &run);
        }
    }

    #[test]
    fn a_batch_is_padded_once_to_no_less_than_its_longest() {
        run(Walk::Chain, &[(0, 7), (1, 7), (0, 9), (1, 9)]);
        run(Walk::Repeat, &[(0, 1), (0, 1)]);
    }

    #[test]
    #[should_panic(expected = "padded to less")]
    fn no_request_is_cut() {
        run(Walk::Whole, &[(0, 6)]);
    }

    #[test]
    #[should_panic(expected = "was padded to 7, but its batch to another length")]
    fn tensors_between_blocks_are_not_padded() {
        run(Walk::Chain, &[(0, 7), (1, 8)]);
    }

    #[test]
    #[should_panic(expected = "unfolds was padded")]
    fn cells_are_not_padded() {
        run(Walk::Repeat, &[(0, 7)]);
    }
}
