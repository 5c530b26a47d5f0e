//! Mean device time of the batches of a chain, from the share of rows that reach each block.
//!
//! Some requests leave a chain early, others skip blocks. Utilisation and the saving of a batch are
//! judged by the mean. Deadlines are planned with the rows that have usually not left.
//!
//! The worst case, all blocks with all rows, is far off for both. Let 43 % of the requests leave
//! after the first block, and as many skip three of the four others. By the worst case, devices
//! that could answer each request immediately would need large batches, which wait ten times as
//! long as they run.
//!
//! The share of rows that run each block is learnt. A batch skips a block if all of its members do,
//! which is estimated as if they decided independently.

use ripieno_base::{BlockId, Nanos};
use ripieno_model::{Block, Model};

/// The value 1 of shares.
const ONE: u64 = 1 << 16;
/// Weight of the prior, in rows that run every block.
const PRIOR: u64 = 16;
/// Number of recent rows that the shares cover.
const MEMORY: u64 = 4_096;

/// Mean duration of batches of a chain, learnt from the number of rows that run each block.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Rows that started each block.
    rows: Box<[u64]>,
    /// Rows of the batches that finished each block.
    finished: Box<[u64]>,
    /// Rows that left for good after each block.
    exited: Box<[u64]>,
    /// True if rows have finished a block since [`Reach::settle_exits`].
    exits_changed: bool,
    /// The mean time of a batch of 1, 2, … rows.
    means: Box<[Nanos]>,
}

impl Reach {
    /// Creates the estimate of a model that has not run yet: every request runs every block.
    pub fn new(model: &Model) -> Reach {
        let (none, rows) = (vec![0; model.blocks.len()], vec![PRIOR; model.blocks.len()].into());
        let (finished, exited) = (none.clone().into(), none.into());
        let mut reach = Reach {
            rows,
            finished,
            exited,
            exits_changed: false,
            means: vec![Nanos::ZERO; model.profile().max_batch()].into(),
        };
        reach.recompute(model, profiled);
        reach
    }

    /// Records a started task of a block.
    pub fn on_start(&mut self, block: BlockId, rows: usize) {
        self.rows[block.index()] += rows as u64;
        if self.rows[0] > MEMORY {
            self.rows.iter_mut().for_each(|rows| *rows /= 2);
        }
    }

    /// Updates the means with the learnt shares; see [`Reach::recompute`].
    pub fn refresh(&mut self, model: &Model, cost: impl Fn(&Block, usize) -> Nanos) {
        if self.rows.iter().any(|&rows| rows != self.rows[0]) {
            self.recompute(model, cost);
        }
    }

    /// Derives the means from the shares of rows that run each block; `cost` returns the duration
    /// of a block for a number of rows.
    pub fn recompute(&mut self, model: &Model, cost: impl Fn(&Block, usize) -> Nanos) {
        self.means.fill(Nanos::ZERO);
        for (block, &ran) in model.blocks.iter().zip(&self.rows) {
            let share = (ran * ONE / self.rows[0]).min(ONE);
            // Probability that no row of a batch runs the block.
            let mut none_runs = ONE;
            for (mean, batch) in self.means.iter_mut().zip(1_u64..) {
                none_runs = none_runs * (ONE - share) / ONE;
                let any_runs = (ONE - none_runs).max(1);
                // Mean number of rows that run it if any does, in parts of `ONE`.
                let rows = (batch * share * ONE / any_runs).clamp(ONE, batch * ONE);
                let whole = (rows / ONE) as usize;
                let (low, part) = (cost(block, whole), rows % ONE);
                let next = if part == 0 { low } else { cost(block, whole + 1) };
                *mean += (low + (next - low).scale(part, ONE)).scale(any_runs, ONE);
            }
        }
    }

    /// Records a finished task of a block, of a batch of `rows` rows, after which `left` of them
    /// leave before the last block.
    pub fn on_end(&mut self, block: BlockId, rows: usize, left: usize) {
        let block = block.index();
        if block + 1 < self.finished.len() {
            self.finished[block] += rows as u64;
            self.exited[block] += left as u64;
            self.exits_changed |= self.exited[block] > 0;
            if self.finished[block] > MEMORY {
                (self.finished[block], self.exited[block]) = (self.finished[block] / 2, self.exited[block] / 2);
            }
        }
    }

    /// Returns whether the share of rows that leave may have changed since
    /// [`Reach::settle_exits`].
    pub fn exits_changed(&self) -> bool {
        self.exits_changed
    }

    /// Records that everything has been derived from the present shares.
    pub fn settle_exits(&mut self) {
        self.exits_changed = false;
    }

    /// Returns the mean number of rows, rounded up, that are left when a batch that runs `from`
    /// comes to it and to each later block. It counts the rows that leave at the end of a block.
    /// Counts of the rows that start one would be too low, since some batches are still on their
    /// way to it.
    pub fn usual_rows(&self, from: BlockId, rows: usize) -> impl Iterator<Item = usize> {
        let exits = self.finished.iter().zip(&self.exited).skip(from.index());
        let stay = exits.map(|(finished, exited)| (finished + PRIOR - exited) * ONE / (finished + PRIOR));
        let mut share = ONE;
        stay.chain(std::iter::repeat(ONE)).map(move |stay| {
            let usual = (rows as u64 * share).div_ceil(ONE) as usize;
            share = share * stay / ONE;
            usual
        })
    }

    /// Returns the mean duration of a batch; `Nanos::MAX` beyond the model's largest batch.
    pub fn latency(&self, batch: usize) -> Nanos {
        self.means.get(batch - 1).copied().unwrap_or(Nanos::MAX)
    }

    /// Returns the rows of the largest batch.
    pub fn largest(&self) -> usize {
        self.means.len()
    }
}

/// Returns the profiled duration of a block.
pub fn profiled(block: &Block, rows: usize) -> Nanos {
    block.profile.latency(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Profile;

    /// Two blocks: one takes 1 ms a row, the other 10 ms for up to four rows.
    fn chain() -> Model {
        let line = Profile::linear(1.0, 0.0, 8).unwrap();
        let steps: Vec<_> = (1..=8).map(|rows| Nanos::from_millis(if rows <= 4 { 10 } else { 20 })).collect();
        let blocks = vec![Block::new("a", line.clone()), Block::new("b", Profile::from_table(&steps).unwrap())];
        Model { blocks, ..Model::whole("m", line, Nanos::from_millis(100)) }
    }

    /// Starts ten rows, of which `go_on` reach the second block, `times` times.
    fn learnt(times: usize, go_on: usize) -> Reach {
        let mut reach = Reach::new(&chain());
        for _ in 0..times {
            reach.on_start(BlockId(0), 10);
            reach.on_start(BlockId(1), go_on);
            reach.on_end(BlockId(0), 10, 10 - go_on);
        }
        reach.refresh(&chain(), profiled);
        reach
    }

    #[test]
    fn it_is_the_profile_if_every_row_runs_every_block() {
        let profile = chain().profile();
        for reach in [Reach::new(&chain()), learnt(1_000, 10)] {
            assert!((1..=8).all(|rows| reach.latency(rows) == profile.latency(rows)));
            assert_eq!(reach.latency(9), Nanos::MAX);
        }
    }

    #[test]
    fn a_block_that_few_reach_costs_its_share_of_batches() {
        let reach = learnt(1_000, 2);
        let near = |rows: usize, ms: f64| {
            let mean = reach.latency(rows).as_millis_f64();
            assert!((mean - ms).abs() < 0.1, "{rows} rows: {mean} ms");
        };
        // One in five continues; of four rows at least one does with a probability of 0.59.
        near(1, 1.0 + 0.2 * 10.0);
        near(4, 4.0 + 0.59 * 10.0);
        near(8, 8.0 + 0.832 * 10.0);
    }

    #[test]
    fn usual_rows_are_those_that_have_not_left() {
        let mut reach = learnt(1_000, 2);
        let at_the_second = |reach: &Reach, rows| reach.usual_rows(BlockId(0), rows).nth(1).unwrap();
        let rows = [1, 4, 5, 6, 8].map(|rows| at_the_second(&reach, rows));
        assert_eq!(rows, [1, 1, 2, 2, 2], "a fifth and a little of the prior, rounded up");
        assert_eq!(reach.usual_rows(BlockId(1), 8).next(), Some(8));
        assert_eq!(at_the_second(&Reach::new(&chain()), 8), 8);
        assert!(reach.exits_changed());
        reach.settle_exits();
        assert!(!reach.exits_changed());
        (0..10_000).for_each(|_| reach.on_end(BlockId(0), 10, 10));
        assert_eq!(at_the_second(&reach, 8), 1, "none is seen to stay, but some may");
    }

    #[test]
    fn learnt_shares_follow_a_change() {
        let mut reach = learnt(1_000, 0);
        assert!(reach.latency(1) < Nanos::from_micros(1_100));
        for block in (0..4_000).map(|at| BlockId(at % 2)) {
            reach.on_start(block, 10);
        }
        reach.refresh(&chain(), profiled);
        assert!(reach.latency(1) > Nanos::from_micros(10_500));
    }
}
