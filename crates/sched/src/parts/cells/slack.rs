//! How long what is ready may still wait.

use super::served::Stage;
use super::{Cells, Served, Walker};
use crate::parts::cost;
use ripieno_base::{BlockId, DeviceId, Nanos, Time};
use ripieno_model::Steps;

impl Cells {
    /// How long the most urgent request that a device could take of a cell type may wait and be in time, if nothing else ran from
    /// then on; none if nobody is there who could be. Looks at those who would be in its next batch.
    pub(crate) fn slack(&self, now: Time, served: &Served, block: usize, device: DeviceId) -> Option<Nanos> {
        let cell = &served.cells[block];
        let rows = cell.ready(device).clamp(1, cell.max);
        let (mut next, mut seen, mut least) = (cell.queue.front(), 0, None);
        while let Some(id) = next.filter(|_| seen < rows) {
            next = self.subgraphs.links.next(id);
            let subgraph = self.subgraphs.at(id);
            if subgraph.ready == 0 || subgraph.pinned.is_some_and(|other| other != device) {
                continue;
            }
            seen += subgraph.ready as usize;
            let walker = &self.walkers[subgraph.slot.index()];
            let left = self.devices[device].takes(self.left(served, walker, block, rows));
            let slack = walker.request.deadline - now - left;
            if slack >= Nanos::ZERO && least.is_none_or(|least| slack < least) {
                least = Some(slack);
            }
        }
        least
    }

    /// How long a device is taken if it turns to a cell type: of a chain to its end.
    pub(crate) fn turn(&self, served: &Served, block: usize, device: DeviceId) -> Nanos {
        let cell = &served.cells[block];
        let rows = cell.ready(device).clamp(1, cell.max);
        let turn = match served.model.walk.is_unfolded() {
            true => {
                served.model.blocks[block].profile.latency(rows) * served.terms.max_tasks.min(self.max_tasks) as i64
            }
            false => cost::of_blocks(&served.model, BlockId(block as u16), rows, 1),
        };
        self.devices[device].takes(turn)
    }

    /// How long a request that is at this block takes from now on by the profiles, in batches of so many rows.
    fn left(&self, served: &Served, walker: &Walker, block: usize, rows: usize) -> Nanos {
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
fn until_end(served: &Served) -> u32 {
    served.model.dec_timesteps.unwrap_or(u32::MAX)
}
