//! How far requests get in a chain, and so what a batch of it really takes.
//!
//! Some leave a chain early, others skip blocks. Whether a batch will be in time is planned by what it may take, all blocks with all
//! of its rows; how busy devices are, and what a batch saves, is judged by what batches take on average. Both by the first
//! was worse by far: where 43 % of the requests leave after the first block and as many skip three of the four others, devices that
//! could answer each request at once were thought to need large batches, which waited ten times as long as they ran.
//!
//! Learnt is the share of rows that run each block. That a batch skips a block if all of its members do is reckoned as if they
//! decided independently of each other.

use ripieno_base::{BlockId, Nanos};
use ripieno_model::Model;

/// One, in the unit of shares.
const ONE: u64 = 1 << 16;
/// As if so many rows had run every block.
const PRIOR: u64 = 16;
/// The shares are those of about so many rows.
const MEMORY: u64 = 4_096;

/// What batches of a chain take on average, learnt from how many of their rows run each block.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// Rows that ran each block.
    rows: Box<[u64]>,
    /// The mean time of a batch of 1, 2, … rows.
    means: Box<[Nanos]>,
}

impl Reach {
    /// Of a model of which nothing has run yet: everybody is thought to run every block.
    pub(crate) fn new(model: &Model) -> Reach {
        let rows = vec![PRIOR; model.blocks.len()].into();
        let mut reach = Reach { rows, means: vec![Nanos::ZERO; model.profile().max_batch()].into() };
        reach.reckon(model);
        reach
    }

    /// A task with so many rows of a block has started.
    pub(crate) fn on_start(&mut self, block: BlockId, rows: usize) {
        self.rows[block.index()] += rows as u64;
        if self.rows[0] > MEMORY {
            self.rows.iter_mut().for_each(|rows| *rows /= 2);
        }
    }

    /// Brings the means up to date with what was learnt.
    pub(crate) fn refresh(&mut self, model: &Model) {
        if self.rows.iter().any(|&rows| rows != self.rows[0]) {
            self.reckon(model);
        }
    }

    /// Derives the means from the profiles of the model and the shares of rows that run each block.
    pub(crate) fn reckon(&mut self, model: &Model) {
        self.means.fill(Nanos::ZERO);
        for (block, &ran) in model.blocks.iter().zip(&self.rows) {
            let share = (ran * ONE / self.rows[0]).min(ONE);
            // The chance that nobody of a batch runs the block.
            let mut nobody = ONE;
            for (mean, batch) in self.means.iter_mut().zip(1_u64..) {
                nobody = nobody * (ONE - share) / ONE;
                let somebody = (ONE - nobody).max(1);
                // Rows that run it, if anybody does, in parts of ONE.
                let rows = (batch * share * ONE / somebody).clamp(ONE, batch * ONE);
                let whole = (rows / ONE) as usize;
                let (low, part) = (block.profile.latency(whole), rows % ONE);
                let next = if part == 0 { low } else { block.profile.latency(whole + 1) };
                *mean += (low + (next - low).scale(part, ONE)).scale(somebody, ONE);
            }
        }
    }

    /// How long a batch of so many rows takes on average; more than the model allows take forever.
    pub(crate) fn latency(&self, batch: usize) -> Nanos {
        self.means.get(batch - 1).copied().unwrap_or(Nanos::MAX)
    }

    /// The rows of the largest batch.
    pub(crate) fn largest(&self) -> usize {
        self.means.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::{Block, Profile};

    /// Two blocks: one takes 1 ms a row, the other 10 ms for up to four rows.
    fn chain() -> Model {
        let line = Profile::linear(1.0, 0.0, 8).unwrap();
        let steps: Vec<_> = (1..=8).map(|rows| Nanos::from_millis(if rows <= 4 { 10 } else { 20 })).collect();
        let blocks = vec![Block::new("a", line.clone()), Block::new("b", Profile::from_table(&steps).unwrap())];
        Model { blocks, ..Model::whole("m", line, Nanos::from_millis(100)) }
    }

    /// So often, ten rows begin and so many of them go on.
    fn learnt(times: usize, go_on: usize) -> Reach {
        let mut reach = Reach::new(&chain());
        for _ in 0..times {
            reach.on_start(BlockId(0), 10);
            reach.on_start(BlockId(1), go_on);
        }
        reach.refresh(&chain());
        reach
    }

    #[test]
    fn where_everybody_runs_everything_it_is_the_profile() {
        let profile = chain().profile();
        for reach in [Reach::new(&chain()), learnt(1_000, 10)] {
            assert!((1..=8).all(|rows| reach.latency(rows) == profile.latency(rows)));
            assert_eq!(reach.latency(9), Nanos::MAX);
        }
    }

    #[test]
    fn a_block_that_few_reach_costs_as_often_as_somebody_does() {
        let reach = learnt(1_000, 2);
        let near = |rows: usize, ms: f64| {
            let mean = reach.latency(rows).as_millis_f64();
            assert!((mean - ms).abs() < 0.1, "{rows} rows: {mean} ms");
        };
        // One in five goes on; of four rows somebody does with a chance of 0.59.
        near(1, 1.0 + 0.2 * 10.0);
        near(4, 4.0 + 0.59 * 10.0);
        near(8, 8.0 + 0.832 * 10.0);
    }

    #[test]
    fn what_is_learnt_follows_a_change() {
        let mut reach = learnt(1_000, 0);
        assert!(reach.latency(1) < Nanos::from_micros(1_100));
        for block in (0..4_000).map(|at| BlockId(at % 2)) {
            reach.on_start(block, 10);
        }
        reach.refresh(&chain());
        assert!(reach.latency(1) > Nanos::from_micros(10_500));
    }
}
