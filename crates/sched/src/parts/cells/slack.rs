//! How urgent what is ready is, and how long it may still wait.

use super::served::Stage;
use super::{CellModel, Cells, Walker};
use crate::parts::cost;
use ripieno_base::{BlockId, DeviceId, Nanos, Time};
use ripieno_model::Steps;

/// How many rows a row counts for that ends its request. Without it a block that many requests run once, at their end, waits behind
/// cells that fill larger batches, and nobody is answered.
const LAST_STEP: u64 = 4;

/// How finely urgency is counted: so many units are one row that is due in a nanosecond.
const URGENCY_UNIT: u64 = 1 << 44;

impl Cells {
    /// How long the most urgent request that a device could take of a cell type may wait and be in time, if nothing else ran from
    /// then on; none if nobody is there who could be. Looks at those who would be in its next batch.
    pub(crate) fn slack(&self, now: Time, served: &CellModel, block: usize, device: DeviceId) -> Option<Nanos> {
        let rows = served.cells[block].next_rows(device);
        let slacks = self.next_batch(served, block, device).map(|(walker, _)| {
            let left = self.devices[device].takes(self.left(served, walker, block, rows));
            walker.request.deadline - now - left
        });
        slacks.filter(|&slack| slack >= Nanos::ZERO).min()
    }

    /// How urgent the next batch of a cell type on a device is: each of its rows counts the more the less time it has until its
    /// deadline, more if it ends its request, and the batch the more the less time it takes: of blocks that run beside each other the
    /// slowest, since a request has to go through all of them. The root of that time is between filling batches (the time does not
    /// count) and short ones first (it counts in full); either loses goodput or latency.
    pub(crate) fn urgency(&self, now: Time, served: &CellModel, block: usize, device: DeviceId) -> u128 {
        let rows = served.cells[block].next_rows(device);
        let step = |block: usize| {
            let profile = &served.model.blocks[block].profile;
            profile.latency(rows.min(profile.max_batch()))
        };
        let slowest = served.beside(block).map(step).max().unwrap_or_default();
        let taken = self.devices[device].takes(slowest).max(Nanos(1));
        let batch = self.next_batch(served, block, device);
        let weights = batch.map(|(walker, ready)| {
            let left = self.devices[device].takes(self.left(served, walker, block, rows));
            let weight = if left <= taken { LAST_STEP } else { 1 };
            let due = (walker.request.deadline - now).max(taken).0 as u64;
            u128::from(URGENCY_UNIT.saturating_mul(weight * ready as u64) / due)
        });
        // Both are shifted, the time by twice as much, so that its root keeps what follows the point.
        (weights.sum::<u128>() << 32) / ((taken.0 as u128) << 64).isqrt()
    }

    /// Who would be in the next batch of a cell type on a device, and with how many rows.
    fn next_batch(&self, served: &CellModel, block: usize, device: DeviceId) -> impl Iterator<Item = (&Walker, usize)> {
        let rows = served.cells[block].next_rows(device);
        let (mut next, mut seen) = (served.cells[block].queue.front(), 0);
        let queued = std::iter::from_fn(move || {
            let id = next?;
            next = self.subgraphs.links.next(id);
            Some(self.subgraphs.at(id))
        });
        let ready = queued.filter(move |of| of.ready > 0 && of.pinned.is_none_or(|other| other == device));
        let taken = ready.take_while(move |of| {
            let room = seen < rows;
            seen += of.ready as usize;
            room
        });
        taken.map(|of| (&self.walkers[of.slot.index()], of.ready as usize))
    }

    /// How long a device is taken if it turns to a cell type: of a chain to its end.
    pub(crate) fn turn(&self, served: &CellModel, block: usize, device: DeviceId) -> Nanos {
        let rows = served.cells[block].next_rows(device);
        let turn = match served.model.walk.is_unfolded() {
            true => {
                served.model.blocks[block].profile.latency(rows) * served.terms.max_tasks.min(self.max_tasks) as i64
            }
            false => cost::of_blocks(&served.model, BlockId(block as u16), rows, 1),
        };
        self.devices[device].takes(turn)
    }

    /// How long a request that is at this block takes from now on by the profiles, in batches of so many rows.
    fn left(&self, served: &CellModel, walker: &Walker, block: usize, rows: usize) -> Nanos {
        let Walker { request, stage, length, .. } = *walker;
        if !served.model.walk.is_unfolded() {
            return cost::of_blocks(&served.model, BlockId(block as u16), rows, length);
        }
        let step = |block: usize| {
            let block = &served.model.blocks[block];
            block.profile.latency(rows.min(block.profile.max_batch()))
        };
        let levels = i64::from(request.extent.length.max(1).ilog2()) + 1;
        let whole = |block: usize| match served.model.blocks[block].steps {
            Steps::Nodes => step(block) * levels,
            _ => step(block) * i64::from(cost::steps(&served.model.blocks[block], &request, until_end(served))),
        };
        let now = match served.stages.get(stage) {
            Some(Stage::Lines(_)) => self.lines_left(walker, step),
            _ => whole(block),
        };
        let later = served.stages.iter().skip(stage + 1);
        now + later.flat_map(|stage| stage.blocks().clone()).map(|block| whole(usize::from(block))).sum::<Nanos>()
    }

    /// The steps that are left of the sequences that a request runs now.
    fn lines_left(&self, walker: &Walker, step: impl Fn(usize) -> Nanos) -> Nanos {
        let (mut left, mut next) = (Nanos::ZERO, self.subgraphs.first(walker.request.slot));
        while let Some(id) = next {
            next = self.subgraphs.next(id);
            let subgraph = self.subgraphs.at(id);
            if !subgraph.over {
                left += step(subgraph.block.index()) * i64::from(subgraph.steps.saturating_sub(subgraph.submitted));
            }
        }
        left
    }
}

/// How often a block that runs until its end is thought to run.
fn until_end(served: &CellModel) -> u32 {
    served.model.dec_timesteps.unwrap_or(u32::MAX)
}
