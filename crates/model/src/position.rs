//! Position of a request in its walk, and the next step: the one place that decides whether a
//! request continues or ends.
//!
//! Schedulers and executors store a [`Position`] and advance it after each step. Blocks that run
//! concurrently have a position each, and so has each connected part of a graph, whose steps are
//! its nodes.

use crate::{Extent, Model, Steps};
use ripieno_base::BlockId;

/// The step of a block that a request is to run or has just run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The block.
    pub block: BlockId,
    /// The step, counted from 0 within the block.
    pub step: u32,
}

/// Report of a block on a request that it has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Whether the walk ends here (early exit) or, for a block that runs until its end, the block
    /// does (end token).
    pub ended: bool,
    /// The block that the request continues with, if not the next one.
    pub skip: Option<BlockId>,
}

impl StepReport {
    /// Reduces a device's report to the part that the core needs. Where walks unfold, the core
    /// itself computes the end of a block, except the end of a block that runs until its end.
    pub fn for_core(ended: bool, skip: Option<BlockId>, steps: Steps, unfolds: bool) -> StepReport {
        StepReport { ended: ended && (!unfolds || steps.ends_by_report()), skip }
    }
}

/// The next action of a request after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// It takes the next step of the same block.
    Step,
    /// It continues with this block, and waits until that is run.
    Block(BlockId),
    /// Its walk is complete.
    End,
}

impl Position {
    /// Returns the position before the first step of a block.
    pub fn before(block: BlockId) -> Position {
        Position { block, step: 0 }
    }

    /// Returns the action after this step. `steps`: the kind of the block; `blocks`: the number of
    /// blocks; `extent`: that of the request.
    pub fn advance(self, steps: Steps, blocks: usize, extent: Extent, report: StepReport) -> Onward {
        if !report.ended && self.step + 1 < extent.steps(steps) {
            return Onward::Step;
        }
        // The end of a block that runs until its end is not yet that of the walk.
        let exits = report.ended && !steps.ends_by_report();
        let next = self.next_block(report);
        if exits || next.index() >= blocks { Onward::End } else { Onward::Block(next) }
    }

    /// Returns the block that follows this one, or the first id after the last block.
    pub fn next_block(self, report: StepReport) -> BlockId {
        report.skip.unwrap_or(BlockId(self.block.0 + 1))
    }

    /// Whether a report ends the walk before all its steps have been run.
    pub fn exits_early(self, steps: Steps, blocks: usize, extent: Extent, report: StepReport) -> bool {
        let onward = |report| self.advance(steps, blocks, extent, report);
        report.ended && onward(report) == Onward::End && onward(StepReport::default()) != Onward::End
    }
}

impl Model {
    /// Applies [`Position::advance`] to the blocks of this model.
    pub fn advance(&self, at: Position, extent: Extent, report: StepReport) -> Onward {
        at.advance(self.blocks[at.block.index()].steps, self.blocks.len(), extent, report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: Extent = Extent { length: 3, limit: 5 };

    fn after(block: u16, step: u32, steps: Steps, report: StepReport) -> Onward {
        Position { block: BlockId(block), step }.advance(steps, 4, EXTENT, report)
    }

    #[test]
    fn a_block_is_over_after_its_last_step() {
        let plain = StepReport::default();
        assert_eq!(after(1, 0, Steps::Once, plain), Onward::Block(BlockId(2)));
        assert_eq!([1, 2].map(|step| after(1, step, Steps::Length, plain)), [Onward::Step, Onward::Block(BlockId(2))]);
        assert_eq!([3, 4].map(|step| after(3, step, Steps::UntilEnd, plain)), [Onward::Step, Onward::End]);
        assert_eq!([1, 2].map(|step| after(3, step, Steps::Nodes, plain)), [Onward::Step, Onward::End]);
    }

    #[test]
    fn an_early_exit_ends_the_walk_and_an_end_token_the_block() {
        let ended = StepReport { ended: true, skip: None };
        assert_eq!(after(1, 0, Steps::Once, ended), Onward::End);
        assert_eq!(after(1, 0, Steps::UntilEnd, ended), Onward::Block(BlockId(2)));
        assert_eq!(after(3, 0, Steps::UntilEnd, ended), Onward::End);
    }

    #[test]
    fn only_an_end_that_leaves_steps_out_is_early() {
        let early = |block, step, steps, ended| {
            let report = StepReport { ended, skip: None };
            Position { block: BlockId(block), step }.exits_early(steps, 4, EXTENT, report)
        };
        assert_eq!([0, 2, 3].map(|block| early(block, 0, Steps::Once, true)), [true, true, false]);
        assert!(!early(0, 0, Steps::Once, false) && !early(1, 0, Steps::UntilEnd, true));
        assert_eq!([0, 2].map(|step| early(3, step, Steps::Length, true)), [true, false]);
    }

    #[test]
    fn where_walks_unfold_only_end_tokens_are_heard() {
        let heard = |steps, unfolds| StepReport::for_core(true, None, steps, unfolds).ended;
        assert!(heard(Steps::Once, false) && heard(Steps::UntilEnd, true));
        assert!(!heard(Steps::Length, true) && !heard(Steps::Nodes, true));
        assert!(!StepReport::for_core(false, None, Steps::UntilEnd, true).ended);
    }

    #[test]
    fn a_step_is_left_out_behind_the_last_one_or_behind_a_reported_end() {
        let out = |steps, step, over| EXTENT.skips_step(steps, step, over);
        assert_eq!([2, 3].map(|step| out(Steps::Length, step, false)), [false, true]);
        assert_eq!([4, 5].map(|step| out(Steps::UntilEnd, step, false)), [false, true]);
        assert!(out(Steps::UntilEnd, 1, true) && !out(Steps::Length, 2, true));
    }

    #[test]
    fn a_skip_leads_to_a_later_block_or_behind_the_last_one() {
        let to = |block: u16| StepReport { ended: false, skip: Some(BlockId(block)) };
        assert_eq!(after(0, 0, Steps::Once, to(3)), Onward::Block(BlockId(3)));
        assert_eq!(after(0, 0, Steps::Once, to(4)), Onward::End);
        assert_eq!(after(0, 0, Steps::Once, StepReport { ended: true, ..to(2) }), Onward::End);
    }
}
