//! Urgency and slack of ready nodes.

use super::served::Stage;
use super::{CellModel, Cells, Walker};
use crate::Request;
use crate::parts::cost;
use ripieno_base::{BlockId, DeviceId, Nanos, Time};
use ripieno_model::Steps;

/// Weight of a row that ends its request. Without it a block that many requests run once, at their
/// end, waits behind cells that fill larger batches, and no request completes.
const LAST_STEP: u64 = 4;

/// Unit of urgency: one row that is due in a nanosecond has this urgency.
const URGENCY_UNIT: u64 = 1 << 44;

impl Cells {
    /// Returns the smallest non-negative slack among the requests of a cell type's next batch on a
    /// device, if nothing else ran from then on; none if all of them are late.
    pub(crate) fn slack(&self, now: Time, served: &CellModel, block: usize, device: DeviceId) -> Option<Nanos> {
        let rows = served.cells[block].next_rows(device);
        let slacks = self.next_batch(served, block, device).map(|(walker, _)| {
            let left = self.known_left(served, walker, (block, rows), device);
            walker.request.deadline - now - left
        });
        slacks.filter(|&slack| slack >= Nanos::ZERO).min()
    }

    /// Returns the urgency of the next batch of a cell type on a device. Each row counts inversely
    /// to the time until its deadline, and more if it ends its request; the sum is divided by the
    /// root of the batch's duration, of parallel blocks that of the slowest, since a request has to
    /// run all of them. The root is a compromise between filling batches (no division) and shortest
    /// first (division by the duration); either of these loses goodput or latency.
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
            let left = self.known_left(served, walker, (block, rows), device);
            let weight = if left <= taken { LAST_STEP } else { 1 };
            let due = (walker.request.deadline - now).max(taken).0 as u64;
            u128::from(URGENCY_UNIT.saturating_mul(weight * ready as u64) / due)
        });
        // Both are shifted, the time by twice as much, so that its root keeps fractional bits.
        (weights.sum::<u128>() << 32) / ((taken.0 as u128) << 64).isqrt()
    }

    /// Returns the requests of a cell type's next batch on a device, and the rows of each.
    pub(super) fn next_batch(
        &self,
        served: &CellModel,
        block: usize,
        device: DeviceId,
    ) -> impl Iterator<Item = (&Walker, usize)> {
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

    /// Returns the time for which a device is busy if it takes a cell type: for a chain, to its
    /// end.
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

    /// Returns the remaining time of a request at this block on a device, in batches of `rows`
    /// rows, by what is known in advance.
    fn known_left(
        &self,
        served: &CellModel,
        walker: &Walker,
        (block, rows): (usize, usize),
        device: DeviceId,
    ) -> Nanos {
        let remaining = Remaining::known(served, &walker.request);
        self.devices[device].takes(self.left(served, walker, block, rows, remaining))
    }

    /// Returns the remaining profiled time of a request at this block, in batches of `rows` rows.
    pub(super) fn left(
        &self,
        served: &CellModel,
        walker: &Walker,
        block: usize,
        rows: usize,
        remaining: Remaining,
    ) -> Nanos {
        let Walker { request, stage, length, .. } = *walker;
        if !served.model.walk.is_unfolded() {
            return cost::of_blocks(&served.model, BlockId(block as u16), rows, length);
        }
        let step = |block: usize| {
            let block = &served.model.blocks[block];
            block.profile.latency(rows.min(block.profile.max_batch()))
        };
        let whole = |block: usize| match served.model.blocks[block].steps {
            Steps::Nodes => step(block) * remaining.levels(),
            _ => step(block) * i64::from(cost::steps(&served.model.blocks[block], &request, remaining.until_end)),
        };
        let now = match served.stages.get(stage) {
            Some(Stage::Lines(_)) => self.lines_left(served, walker, remaining, step),
            _ => whole(block),
        };
        let later = served.stages.iter().skip(stage + 1);
        now + later.flat_map(|stage| stage.blocks().clone()).map(|block| whole(usize::from(block))).sum::<Nanos>()
    }

    /// Returns the remaining time of the sequences that a request runs now.
    pub(super) fn lines_left(
        &self,
        served: &CellModel,
        walker: &Walker,
        remaining: Remaining,
        step: impl Fn(usize) -> Nanos,
    ) -> Nanos {
        let (mut left, mut next) = (Nanos::ZERO, self.subgraphs.first(walker.request.slot));
        while let Some(id) = next {
            next = self.subgraphs.next(id);
            let subgraph = self.subgraphs.at(id);
            if !subgraph.over {
                let steps = match served.steps(subgraph.block) {
                    // Beyond the expected end, one more step is expected.
                    Steps::UntilEnd => remaining.until_end.max(subgraph.submitted + 1).min(subgraph.steps),
                    _ => subgraph.steps,
                };
                left += step(subgraph.block.index()) * i64::from(steps.saturating_sub(subgraph.submitted));
            }
        }
        left
    }
}

/// The expected rest of a request, beyond the lengths that it brings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remaining {
    /// Number of steps of a block that runs until its end.
    pub(super) until_end: u32,
    /// Number of nodes of its graph that have not run.
    pub(super) nodes: u32,
}

impl Remaining {
    /// Returns the rest that is known in advance: the model's prediction, and all nodes.
    fn known(served: &CellModel, request: &Request) -> Remaining {
        Remaining { until_end: served.model.dec_timesteps.unwrap_or(u32::MAX), nodes: request.extent.length }
    }

    /// Returns the number of levels of a balanced tree of the remaining nodes.
    pub(super) fn levels(self) -> i64 {
        i64::from(self.nodes.max(1).ilog2()) + 1
    }
}
