//! Outlook on the next step of a cell type, for a scheduler that keeps deadlines: the remaining
//! times of its requests, and the requests that cannot be in time any more.

use super::served::Stage;
use super::{CellModel, CellRequestState, Cells, Groups, Walker};
use crate::estimate::cost;
use crate::{Action, Request, Why};
use ripieno_base::{DeviceId, ModelId, Nanos, Time};
use ripieno_model::{DropRule, Steps};

/// Profiled times of a newcomer, and its size.
#[derive(Clone, Copy, Debug)]
pub struct NewcomerTimes {
    /// Time from the newcomer's first step to its last, in batches with the waiting requests.
    pub own: Nanos,
    /// The newcomer's part of the device time of full batches.
    pub work: Nanos,
    /// Mean number of its rows in a step of the first cell type.
    pub rows: usize,
}

/// The expected rest of a request, beyond the lengths that it brings.
#[derive(Clone, Copy, Debug)]
struct Remaining {
    /// Number of steps of a block that runs until its end.
    until_end: u32,
    /// Number of nodes of its graph that have not run.
    nodes: u32,
}

impl Remaining {
    /// Returns the rest that earlier requests, and the progress of this one, suggest.
    fn learnt(served: &CellModel, walker: &Walker) -> Remaining {
        let extent = walker.request.extent;
        Remaining { until_end: served.expected_steps(extent.limit), nodes: extent.length.saturating_sub(walker.done) }
    }

    /// Returns the number of levels of a balanced tree of the remaining nodes.
    fn levels(self) -> i64 {
        i64::from(self.nodes.max(1).ilog2()) + 1
    }
}

impl<G: Groups> Cells<G> {
    /// Passes the requests of a cell type's next step on a device to `each`, with the ready rows
    /// and the remaining time of each. Returns the mean of these times. They are profiled, and
    /// assume that only these requests run, in batches of this size.
    pub fn outlook(
        &self,
        served: &CellModel,
        block: usize,
        device: DeviceId,
        mut each: impl FnMut(&Request, u32, Nanos),
    ) -> Nanos {
        let rows = served.cells[block].next_rows(device);
        let (mut count, mut left) = (0, Nanos::ZERO);
        for (walker, ready) in self.next_batch(served, block, device) {
            let own = self.left(served, walker, block, rows, Remaining::learnt(served, walker));
            each(&walker.request, ready as u32, own);
            (count, left) = (count + 1, left + own);
        }
        Nanos(left.0 / count.max(1))
    }

    /// Returns the times of a newcomer, if the requests of its model are spread over this number of
    /// devices and are as wide as it is.
    pub fn newcomer(&self, request: &Request, devices: usize) -> NewcomerTimes {
        let served = self.models.get(request.model);
        let extent = request.extent;
        let graphs = served.model.blocks.iter().filter(|block| block.steps == Steps::Nodes).count().max(1) as u32;
        let mut times = NewcomerTimes { own: Nanos::ZERO, work: Nanos::ZERO, rows: 0 };
        for (block, cell) in served.model.blocks.iter().zip(&served.cells) {
            let (in_sequence, all) = match block.steps {
                Steps::Nodes => (extent.length.max(1).ilog2() + 1, (extent.length / graphs).max(1)),
                kind => {
                    let until_end = served.expected_steps(extent.limit);
                    let steps = if kind == Steps::UntilEnd { until_end } else { extent.steps(kind) };
                    (steps, steps)
                }
            };
            let rows = (all / in_sequence.max(1)).max(1) as usize;
            let step = served.live * rows / devices + rows;
            times.own += block.profile.latency(step.min(cell.max)) * i64::from(in_sequence);
            times.work += block.profile.latency(cell.max).scale(u64::from(all), cell.max as u64);
            times.rows = if times.rows == 0 { rows } else { times.rows };
        }
        times
    }

    /// Returns the requests of a cell type's next batch on a device, and the rows of each.
    fn next_batch(&self, served: &CellModel, block: usize, device: DeviceId) -> impl Iterator<Item = (&Walker, usize)> {
        let rows = served.cells[block].next_rows(device);
        let (mut next, mut seen) = (served.cells[block].queue.front(), 0);
        let queued = std::iter::from_fn(move || {
            let id = next?;
            next = self.subgraphs.links.next(id);
            Some(self.subgraphs.at(id))
        });
        let ready = queued.filter(move |of| of.ready > 0 && served.cells[block].may_take(of.pinned, device));
        let taken = ready.take_while(move |of| {
            let room = seen < rows;
            seen += of.ready as usize;
            room
        });
        taken.map(|of| (&self.walkers[of.slot.index()], of.ready as usize))
    }

    /// Returns the remaining profiled time of a request at this block, in batches of `rows` rows.
    fn left(&self, served: &CellModel, walker: &Walker, block: usize, rows: usize, remaining: Remaining) -> Nanos {
        let Walker { request, stage, .. } = *walker;
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
    fn lines_left(
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

    /// Drops requests of a cell type's next step that cannot be in time any more, if the model
    /// drops hopeless requests. Returns the number of dropped requests.
    ///
    /// A begun request is dropped if it could not be in time even alone, any other if it could not
    /// be in batches like the next one. Their places go to the requests behind them. `takes` turns
    /// a profiled duration into the learnt one on a nominal device.
    pub fn drop_hopeless(
        &mut self,
        now: Time,
        model: ModelId,
        block: usize,
        device: DeviceId,
        takes: impl Fn(Nanos) -> Nanos,
    ) -> usize {
        let served = self.models.get(model);
        let cell = &served.cells[block];
        if served.drop != DropRule::Hopeless || cell.ready(device) == 0 {
            return 0;
        }
        let rows = cell.next_rows(device);
        let (mut dropped, mut in_time, mut next) = (0, 0, cell.queue.front());
        while let Some(id) = next.filter(|_| in_time < rows) {
            next = self.subgraphs.links.next(id);
            let (served, subgraph) = (self.models.get(model), self.subgraphs.at(id));
            if subgraph.ready == 0 || !served.cells[block].may_take(subgraph.pinned, device) {
                continue;
            }
            let walker = &self.walkers[subgraph.slot.index()];
            let left = match walker.state {
                CellRequestState::Running => self.least_left(walker, id),
                CellRequestState::Waiting => self.left(served, walker, block, rows, Remaining::learnt(served, walker)),
                _ => continue,
            };
            if now + takes(left) <= walker.request.deadline {
                in_time += subgraph.ready as usize;
                continue;
            }
            let why = if now >= walker.request.deadline { Why::Expired } else { Why::Hopeless };
            let slot = subgraph.slot;
            // Other sequences of the same request leave their queues, too.
            let follows = next.is_some_and(|next| self.subgraphs.at(next).slot == slot);
            self.end(slot, Action::Reject { request: slot, why });
            if follows {
                (in_time, next) = (0, self.models.get(model).cells[block].queue.front());
            }
            dropped += 1;
        }
        dropped
    }

    /// Returns the least profiled time that a request still needs: the remaining steps alone, with
    /// one step of a block that runs until its end.
    fn least_left(&self, walker: &Walker, id: u32) -> Nanos {
        let served = self.models.get(walker.request.model);
        let subgraph = self.subgraphs.at(id);
        let one = |block: usize| served.model.blocks[block].profile.latency(walker.request.rows as usize);
        let own = match (subgraph.is_graph, served.steps(subgraph.block)) {
            (true, _) => one(subgraph.block.index()) * Remaining::learnt(served, walker).levels(),
            (_, Steps::UntilEnd | Steps::Nodes | Steps::Once) => one(subgraph.block.index()),
            (false, Steps::Length) => {
                one(subgraph.block.index()) * i64::from(subgraph.steps.saturating_sub(subgraph.submitted).max(1))
            }
        };
        let steps = |block: usize| match served.model.blocks[block].steps {
            Steps::UntilEnd | Steps::Nodes => 1,
            kind => i64::from(walker.request.extent.steps(kind).max(1)),
        };
        let later = served.stages.iter().skip(walker.stage + 1);
        own + later.map(|stage| usize::from(stage.blocks().start)).map(|block| one(block) * steps(block)).sum::<Nanos>()
    }
}
