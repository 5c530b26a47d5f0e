//! A model on a lane: its engine, the runs of its batches, and the comparison of sampled rows.

use crate::ExecError;
use crate::contract::account::LapTimer;
use crate::contract::flow::BlockPlan;
use crate::contract::kept;
use crate::run::chain_state::ChainState;
use crate::run::gather::{GatherBuffers, GatheredBatch, LaneModel, rows_of};
use crate::run::rerun::catch_panic;
use crate::run::row_check::{RanBatch, RowChecks, SampledRow};
use crate::run::rows::{BatchTensor, Rows};
use crate::run::runner::ReadyModel;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model on a lane.
pub(crate) struct Attached {
    /// Plan and runner.
    pub(crate) ready: ReadyModel,
    /// The model's part without the engine.
    pub(crate) model: LaneModel,
    /// Bytes of the largest batch for which memory is kept.
    pub(crate) largest: usize,
    /// Bytes of the batches since the last task.
    pub(crate) bytes: usize,
    /// Time at which memory is given back, unless a large batch runs before; `None` if no batch has
    /// run since.
    pub(crate) release_at: Option<Instant>,
    /// Comparisons of sampled rows.
    pub(crate) checks: RowChecks,
    /// Moving mean of the time to gather a batch of the first block, in nanoseconds.
    gather_ns: u64,
    /// Whether tasks are prepared while another one runs.
    gathers_ahead: bool,
}

/// Number of batches that the mean time to gather one covers.
const GATHERED_BATCHES: u64 = 16;

impl Attached {
    pub(crate) fn new(ready: ReadyModel, attachment: u64) -> Attached {
        let (plan, buffers) = (Arc::clone(&ready.plan), GatherBuffers::new(&ready.plan));
        let sender = ready.runner.sender();
        let (model, checks) = (LaneModel { plan, attachment, buffers, sender }, RowChecks::default());
        Attached { model, ready, largest: 0, bytes: 0, release_at: None, checks, gather_ns: 0, gathers_ahead: false }
    }

    /// Keeps rows of a batch that has just run for a comparison, if it is to be sampled.
    pub(crate) fn sample_rows(&mut self, block: usize, part: &[usize], walks: &[Option<ChainState>]) {
        let plan = &self.ready.plan;
        let members = || part.iter().filter_map(|&at| walks[at].as_ref());
        let is_batch = || rows_of(&members().collect::<Vec<_>>()) > 1;
        let replaced = members().any(ChainState::replaces_defaults);
        if !plan.sharing.is_watched() || replaced || !is_batch() || !self.checks.is_due() {
            return;
        }
        let BlockPlan { inputs, outputs, .. } = &plan.blocks[block];
        let of = |state: &'_ ChainState, values: &[usize]| -> Option<Vec<Rows>> {
            values.iter().map(|&value| state.values[value].clone()).collect()
        };
        let rows: Option<Vec<_>> = members().map(|state| Some((of(state, inputs)?, of(state, outputs)?))).collect();
        let length = members().next().map_or(1, |state| state.padded);
        if let Some(members) = rows {
            self.checks.sample(&RanBatch { block, length, members });
        }
    }

    /// Runs one sampled row alone and compares its answer. Returns false if there is none.
    pub(crate) fn compare_row(&mut self) -> bool {
        let Some(row) = self.checks.next() else { return false };
        let plan = Arc::clone(&self.ready.plan);
        let mut watch = LapTimer::start();
        let answer = self.run_row(&row);
        self.checks.count_comparison(watch.lap_ns());
        // Without an answer there is nothing to compare.
        if let Ok(answer) = answer {
            plan.sharing.count_comparison();
            if let Some(how) = row.difference(&plan, answer) {
                plan.sharing.stop_different(&plan.name, &how);
            }
        }
        true
    }

    fn run_row(&mut self, row: &SampledRow) -> Result<Vec<BatchTensor>, ExecError> {
        let LaneModel { plan, buffers, .. } = &self.model;
        let batch = GatheredBatch::of_row(plan, buffers, row.block, &row.inputs, row.length)?;
        self.run(&batch, Instant::now())
    }

    /// Notes the size of a task that has just run. Returns the time at which memory is given back,
    /// if no batch of at least half of the largest size runs before.
    pub(crate) fn note_batch(&mut self, now: Instant) -> Instant {
        let bytes = std::mem::take(&mut self.bytes);
        self.largest = self.largest.max(bytes);
        match self.release_at {
            _ if kept::is_beyond_bound() => *self.release_at.insert(now),
            Some(at) if bytes < self.largest / 2 => at,
            _ => *self.release_at.insert(now + kept::IDLE),
        }
    }

    /// Notes the time to gather a batch of the first block. Returns whether tasks of the model are
    /// to be prepared while another one runs, if that has changed.
    pub(crate) fn note_gather(&mut self, ns: u64, min_gather: Duration) -> Option<bool> {
        self.gather_ns = (self.gather_ns * (GATHERED_BATCHES - 1) + ns) / GATHERED_BATCHES;
        let pays = u128::from(self.gather_ns) >= min_gather.as_nanos();
        (std::mem::replace(&mut self.gathers_ahead, pays) != pays).then_some(pays)
    }

    /// Gives back the memory of the gather buffers and of the engine.
    pub(crate) fn release_memory(&mut self) {
        (self.largest, self.release_at) = (0, None);
        self.model.buffers.release();
        self.ready.runner.release_memory();
    }

    /// Runs a batch, which can begin at `ready`. Returns the outputs.
    pub(crate) fn run(&mut self, batch: &GatheredBatch, ready: Instant) -> Result<Vec<BatchTensor>, ExecError> {
        let inputs = batch.tensors(&self.model.plan);
        self.bytes += inputs.iter().map(|input| input.data.len()).sum::<usize>();
        catch_panic(|| self.ready.runner.run(&batch.call(&inputs, ready)))
    }
}
