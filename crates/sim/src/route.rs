//! A request that will arrive, which blocks of a chain it runs, and what requests of chains carry from block to block.
//!
//! The latter two are the world's: that a request exits after a block, or skips some, shows when the block has run.

use ripieno_base::{BlockId, ModelId, RequestSlot, Time};
use ripieno_model::Extent;
use ripieno_sched::{RequestClass, Setup};

/// A request that will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When the scheduler is told of it.
    pub at: Time,
    /// When it reached the server, at the latest then: its latency counts from here.
    pub arrived: Time,
    /// For which model.
    pub model: ModelId,
    /// How many rows it holds.
    pub rows: u32,
    /// When its answer is due.
    pub deadline: Time,
    /// How far it walks.
    pub extent: Extent,
    /// With whom it may share a batch, and with whom it shares the devices.
    pub class: RequestClass,
    /// At which step of a block that runs until its end it ends, counted from 1: hidden from the scheduler.
    pub output: u32,
    /// Where its graph stands among the [`World::with_graphs`](crate::World::with_graphs), if it brings one.
    pub graph: Option<u32>,
    /// Which blocks of a chain it runs: hidden from the scheduler until they have run.
    pub route: Route,
}

impl Arrival {
    /// A request of one row that runs each block once, and that the scheduler is told of as it arrives.
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

    /// Only the first so many blocks can be told apart: who runs them all runs the rest, too.
    pub const BLOCKS: usize = u64::BITS as usize;

    /// The same, but the walk ends after this block.
    #[must_use]
    pub fn ending_after(self, block: BlockId) -> Route {
        Route(self.0 & !Route::after(block))
    }

    /// The same, but after block `from` it goes on with block `to`.
    #[must_use]
    pub fn skipping(self, from: BlockId, to: BlockId) -> Route {
        Route(self.0 & !(Route::after(from) & !Route::from(to)))
    }

    /// The block that follows; none if the walk ends here. After the last block of a chain, one beyond it.
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

/// Of requests of chains, by slot. Only there if routes make a difference.
#[derive(Debug)]
pub(crate) struct ChainRequests {
    route: Vec<Route>,
    /// What is told of the members of the task that is being reported.
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

    /// Who of the members ends with a block of so many, and where the others go on: empty if all do with the next one.
    pub(crate) fn land(&mut self, block: BlockId, blocks: usize, slots: &[RequestSlot]) -> (&[bool], &[BlockId]) {
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
