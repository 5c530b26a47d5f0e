//! Position of a request in its walk, and the next step. Only this module decides whether a request
//! continues or ends.
//!
//! Schedulers and executors store a [`Position`] and advance it after each step. Each of several
//! concurrent blocks has its own position. So does each connected part of a graph, whose steps are
//! its nodes.

use crate::{Extent, Model, Steps};
use ripieno_base::BlockId;

/// The step of a block that a request will run next or has just run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The block.
    pub block: BlockId,
    /// The step, counted from 0 within the block.
    pub step: u32,
}

/// Report of a block about a request after one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Whether the request ends here (early exit). For a block that runs until the request ends,
    /// whether the block ends (end token).
    pub ended: bool,
    /// Block with which the request continues, if it skips blocks.
    pub skip: Option<BlockId>,
}

impl StepReport {
    /// Reduces a device's report to the part that the core needs. For requests that run cell by
    /// cell, the core computes the end of a block itself. Only the end of a [`Steps::UntilEnd`]
    /// block must be reported.
    pub fn for_core(ended: bool, skip: Option<BlockId>, steps: Steps, unfolds: bool) -> StepReport {
        StepReport { ended: ended && (!unfolds || steps.ends_by_report()), skip }
    }
}

/// Next action of a request after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// The next step of the same block.
    Step,
    /// The first step of this block, once the block can run.
    Block(BlockId),
    /// The end of the request.
    End,
}

impl Position {
    /// Returns the position before the first step of a block.
    pub fn before(block: BlockId) -> Position {
        Position { block, step: 0 }
    }

    /// Returns the next action after this step. `steps` is the kind of the block, `blocks` the
    /// number of blocks, and `extent` the request's extent.
    pub fn advance(self, steps: Steps, blocks: usize, extent: Extent, report: StepReport) -> Onward {
        if !report.ended && self.step + 1 < extent.steps(steps) {
            return Onward::Step;
        }
        // If a block runs until the request ends, its end is not the request's end yet, because
        // further blocks may follow.
        let exits = report.ended && !steps.ends_by_report();
        let next = self.next_block(report);
        if exits || next.index() >= blocks { Onward::End } else { Onward::Block(next) }
    }

    /// Returns the next block, or the first unused id after the last block.
    pub fn next_block(self, report: StepReport) -> BlockId {
        report.skip.unwrap_or(BlockId(self.block.0 + 1))
    }

    /// Whether a report ends the request before all its steps have run.
    pub fn exits_early(self, steps: Steps, blocks: usize, extent: Extent, report: StepReport) -> bool {
        let onward = |report| self.advance(steps, blocks, extent, report);
        report.ended && onward(report) == Onward::End && onward(StepReport::default()) != Onward::End
    }
}

impl Model {
    /// Applies [`Position::advance`] to a block of this model.
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
