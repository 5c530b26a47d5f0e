//! Arrivals, the blocks of a chain that a request runs, and the state of requests of chains.
//!
//! Routes are known to the world only: the scheduler learns that a request exits after a block, or
//! skips some, when the block has run.

use ripieno_base::{BlockId, ModelId, RequestSlot, Time};
use ripieno_model::Extent;
use ripieno_sched::{RequestClass, Setup};

/// A request that will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time at which the scheduler receives it.
    pub at: Time,
    /// The time at which it reached the server, at most `at`: its latency counts from here.
    pub arrived: Time,
    /// The requested model.
    pub model: ModelId,
    /// Number of rows.
    pub rows: u32,
    /// The time at which the answer is due.
    pub deadline: Time,
    /// Length of its walk.
    pub extent: Extent,
    /// The requests it may be batched with, and the client whose share of the devices it uses.
    pub class: RequestClass,
    /// The step, counted from 1, at which a block that runs until its end will end: hidden from the
    /// scheduler.
    pub output: u32,
    /// Index of its graph among the [`World::with_graphs`](crate::World::with_graphs), if it has
    /// one.
    pub graph: Option<u32>,
    /// The blocks of a chain that it runs: hidden from the scheduler until they have run.
    pub route: Route,
}

impl Arrival {
    /// Creates a request of one row that runs each block once, and that the scheduler receives as
    /// it arrives.
    pub fn new(at: Time, model: ModelId, deadline: Time) -> Arrival {
        let (extent, class) = (Extent::ONE, RequestClass::default());
        Arrival { at, arrived: at, model, rows: 1, deadline, extent, class, output: 0, graph: None, route: Route::ALL }
    }
}

/// The blocks of a chain that a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u64);

impl Route {
    /// Every block.
    pub const ALL: Route = Route(u64::MAX);

    /// Number of first blocks that a route distinguishes: a request that runs them all runs the
    /// rest, too.
    pub const BLOCKS: usize = u64::BITS as usize;

    /// Returns the same route with an end after this block.
    #[must_use]
    pub fn ending_after(self, block: BlockId) -> Route {
        Route(self.0 & !Route::after(block))
    }

    /// Returns the same route with a skip from block `from` to block `to`.
    #[must_use]
    pub fn skipping(self, from: BlockId, to: BlockId) -> Route {
        Route(self.0 & !(Route::after(from) & !Route::from(to)))
    }

    /// Returns the block that follows; `None` if the walk ends here. After the last block of a
    /// chain it is one beyond it.
    pub(crate) fn next(self, block: BlockId) -> Option<BlockId> {
        if block.index() + 1 >= Route::BLOCKS {
            return Some(BlockId(block.0 + 1));
        }
        let rest = self.0 & Route::after(block);
        (rest != 0).then(|| BlockId(rest.trailing_zeros() as u16))
    }

    fn after(block: BlockId) -> u64 {
        Route::from(BlockId(block.0 + 1))
    }

    fn from(block: BlockId) -> u64 {
        u64::MAX.checked_shl(u32::from(block.0)).unwrap_or(0)
    }
}

/// Requests of chains, by slot. Only present if routes differ.
#[derive(Debug)]
pub(crate) struct ChainRequests {
    route: Vec<Route>,
    /// Results of the task that is being reported, per member.
    ended: Vec<bool>,
    skips: Vec<BlockId>,
}

impl ChainRequests {
    pub(crate) fn new(setup: &Setup) -> ChainRequests {
        let limits = &setup.limits;
        ChainRequests {
            route: vec![Route::ALL; limits.requests],
            ended: Vec::with_capacity(limits.batch),
            skips: Vec::with_capacity(limits.batch),
        }
    }

    pub(crate) fn accept(&mut self, slot: RequestSlot, arrival: &Arrival) {
        self.route[slot.index()] = arrival.route;
    }

    /// Returns per member whether its walk ends with this block, and the block that it continues
    /// with; empty if all continue with the next one.
    pub(crate) fn complete(&mut self, block: BlockId, blocks: usize, slots: &[RequestSlot]) -> (&[bool], &[BlockId]) {
        self.ended.clear();
        self.skips.clear();
        let next = BlockId(block.0 + 1);
        if next.index() >= blocks {
            return (&[], &[]);
        }
        for slot in slots {
            let goes_on = self.route[slot.index()].next(block);
            self.ended.push(goes_on.is_none());
            self.skips.push(goes_on.unwrap_or(next));
        }
        let ended = if self.ended.contains(&true) { &self.ended[..] } else { &[] };
        let skips = if self.skips.iter().any(|&skip| skip != next) { &self.skips[..] } else { &[] };
        (ended, skips)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(route: Route) -> Vec<u16> {
        let first = Some(BlockId(0));
        std::iter::successors(first, |&block| route.next(block).filter(|next| next.index() < 6)).map(|b| b.0).collect()
    }

    #[test]
    fn a_route_names_the_blocks_that_are_run() {
        assert_eq!(blocks(Route::ALL), [0, 1, 2, 3, 4, 5]);
        assert_eq!(blocks(Route::ALL.ending_after(BlockId(2))), [0, 1, 2]);
        assert_eq!(blocks(Route::ALL.skipping(BlockId(1), BlockId(4))), [0, 1, 4, 5]);
        assert_eq!(blocks(Route::ALL.skipping(BlockId(0), BlockId(3)).ending_after(BlockId(3))), [0, 3]);
        assert_eq!(Route::ALL.next(BlockId(63)), Some(BlockId(64)));
        assert_eq!(Route::ALL.ending_after(BlockId(62)).next(BlockId(62)), None);
    }
}
