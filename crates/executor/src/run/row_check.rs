//! Comparison of a served batch with its rows run alone, in idle time of a lane.
//!
//! A model whose rows are not proved to be independent has only passed a trial with made-up rows.
//! So its first batch of several rows, and then one in [`INTERVAL`], is kept with its answers.
//! While the lane is idle, up to [`ROWS`] of its rows run alone, one at a time, so a task that
//! arrives waits for one row at most. Comparisons take at most 1 % of the time that the model's
//! batches take. The rows are compared block by block, because each block's inputs are at hand.

use crate::probe::independence::{RowTrial, differs};
use crate::run::plan::ModelPlan;
use crate::run::rows::{BatchTensor, Rows};
use std::sync::Arc;

/// One of this many batches is compared.
const INTERVAL: u64 = 1000;
/// Largest number of rows of a batch that are compared.
const ROWS: usize = 8;
/// Smallest ratio of the time of batches to the time of comparisons.
const TIME_RATIO: u64 = 100;

/// Sampling of a model's batches on one lane.
#[derive(Default)]
pub(crate) struct RowChecks {
    /// Batches of several rows since the last sample.
    since: u64,
    has_sampled: bool,
    computed_ns: u64,
    compared_ns: u64,
    pending: Vec<SampledRow>,
}

/// A row of a batch that has run.
pub(crate) struct SampledRow {
    pub(crate) block: usize,
    /// Length to which the row is padded.
    pub(crate) length: u32,
    /// Row of each input of the block.
    pub(crate) inputs: Vec<Rows>,
    /// Row of each output of the block.
    outputs: Vec<Rows>,
}

/// A block's batch that has just run: the members' rows of its inputs and outputs.
pub(crate) struct RanBatch {
    pub(crate) block: usize,
    pub(crate) length: u32,
    /// Inputs and outputs of each member.
    pub(crate) members: Vec<(Vec<Rows>, Vec<Rows>)>,
}

impl RowChecks {
    /// Counts the time of a batch of the model.
    pub(crate) fn count_batch(&mut self, compute_ns: u64) {
        self.computed_ns += compute_ns;
    }

    /// Whether the next batch of several rows is to be sampled. Counts the batch.
    pub(crate) fn is_due(&mut self) -> bool {
        self.since += 1;
        let in_time = self.compared_ns.saturating_mul(TIME_RATIO) <= self.computed_ns;
        self.pending.is_empty() && in_time && (!self.has_sampled || self.since >= INTERVAL)
    }

    /// Keeps rows of a batch, evenly spread.
    pub(crate) fn sample(&mut self, batch: &RanBatch) {
        let rows = batch.members.iter().flat_map(|(inputs, outputs)| {
            let count = inputs.first().map_or(0, Rows::count);
            (0..count).map(move |row| (inputs, outputs, row))
        });
        let rows: Vec<_> = rows.collect();
        let of = |rows: &[Rows], row: usize| rows.iter().map(|rows| rows.at(row)).collect();
        let sampled = rows.iter().step_by(rows.len().div_ceil(ROWS).max(1));
        self.pending = sampled
            .map(|&(inputs, outputs, row)| SampledRow {
                block: batch.block,
                length: batch.length,
                inputs: of(inputs, row),
                outputs: of(outputs, row),
            })
            .collect();
        (self.since, self.has_sampled) = (0, true);
    }

    /// Returns the next row to run alone.
    pub(crate) fn next(&mut self) -> Option<SampledRow> {
        self.pending.pop()
    }

    pub(crate) fn has_rows(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Counts the time of a comparison.
    pub(crate) fn count_comparison(&mut self, ns: u64) {
        self.compared_ns += ns;
    }
}

impl SampledRow {
    /// Compares the row's answer with its answer alone. Returns how they differ.
    pub(crate) fn difference(&self, plan: &ModelPlan, alone: Vec<BatchTensor>) -> Option<String> {
        let names = plan.blocks[self.block].outputs.iter().map(|&value| &plan.values[value].name);
        let found = names.clone().zip(&self.outputs).map(|(name, rows)| rows.to_tensor(name)).collect::<Vec<_>>();
        let expected = names.zip(alone).map(|(name, batch)| {
            let rows = batch.rows();
            Rows::of_batch(&Arc::new(batch), 0..rows).to_tensor(name)
        });
        differs(&expected.collect::<Vec<_>>(), &found, &[], RowTrial::Decides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use ripieno_model::DataType;

    fn member(rows: i64) -> Rows {
        let data = vec![0; rows as usize * 4].into();
        Rows::of_tensor(&Tensor { name: "x".into(), datatype: DataType::Fp32, shape: vec![rows, 1], data }).unwrap()
    }

    fn sample(checks: &mut RowChecks, sizes: &[i64]) -> usize {
        let members: Vec<Rows> = sizes.iter().map(|&rows| member(rows)).collect();
        let members = members.into_iter().map(|rows| (vec![rows.clone()], vec![rows])).collect();
        checks.sample(&RanBatch { block: 0, length: 1, members });
        std::iter::from_fn(|| checks.next()).inspect(|row| assert_eq!(row.inputs[0].count(), 1)).count()
    }

    #[test]
    fn the_first_batch_and_one_of_a_thousand_is_sampled() {
        let mut checks = RowChecks::default();
        assert!(checks.is_due() && checks.is_due(), "none was sampled yet");
        assert_eq!(sample(&mut checks, &[1, 2]), 3);
        let due: Vec<u64> = (1..=2 * INTERVAL).filter(|_| checks.is_due()).collect();
        assert_eq!(due[0], INTERVAL);
    }

    #[test]
    fn comparisons_take_a_hundredth_of_the_time() {
        let mut checks = RowChecks::default();
        checks.count_comparison(10);
        checks.count_batch(999);
        assert!(!checks.is_due());
        checks.count_batch(1);
        assert!(checks.is_due());
    }

    #[test]
    fn a_large_batch_is_sampled_in_part() {
        for (sizes, sampled) in [(&[1][..], 1), (&[3, 5], 8), (&[1, 1, 1, 1, 1, 1, 1, 1, 1], 5), (&[64, 1], 8)] {
            assert_eq!(sample(&mut RowChecks::default(), sizes), sampled, "{sizes:?}");
        }
    }
}
