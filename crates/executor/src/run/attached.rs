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
use crate::run::runner::{BlockCall, BlockOutputs, ReadyModel};
use ripieno_base::MovingMean;
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
    /// Time to gather a batch of the first block, in nanoseconds.
    gather: MovingMean<16>,
    /// Time from the end of a run until the receiver of its result has decided, where the lane had
    /// no next task yet, in nanoseconds.
    answer: MovingMean<16>,
    /// Whether tasks use the lane's second thread.
    pub(crate) uses_second_thread: bool,
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn duration(mean: MovingMean<16>) -> Duration {
    Duration::from_nanos(mean.get().unsigned_abs())
}

impl Attached {
    pub(crate) fn new(ready: ReadyModel, attachment: u64) -> Attached {
        let (plan, buffers) = (Arc::clone(&ready.plan), GatherBuffers::new(&ready.plan));
        let sender = ready.runner.sender();
        Attached {
            model: LaneModel { plan, attachment, buffers, sender },
            ready,
            largest: 0,
            bytes: 0,
            release_at: None,
            checks: RowChecks::default(),
            gather: MovingMean::default(),
            answer: MovingMean::default(),
            uses_second_thread: false,
        }
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

    /// Notes the time to gather a batch of the first block. Returns the time of the host between
    /// two computations, with it.
    pub(crate) fn note_gather(&mut self, took: Duration) -> Duration {
        self.gather.add(nanos(took));
        took + duration(self.answer)
    }

    /// Notes the time from the end of a run until the receiver of its result had decided.
    pub(crate) fn note_answer(&mut self, took: Duration) {
        self.answer.add(nanos(took));
    }

    /// Returns whether tasks are to use the lane's second thread, if that has changed.
    pub(crate) fn needs_second_thread(&mut self, min_host_time: Duration) -> Option<bool> {
        let pays = duration(self.gather) + duration(self.answer) >= min_host_time;
        (std::mem::replace(&mut self.uses_second_thread, pays) != pays).then_some(pays)
    }

    /// Gives back the memory of the gather buffers and of the engine.
    pub(crate) fn release_memory(&mut self) {
        (self.largest, self.release_at) = (0, None);
        self.model.buffers.release();
        self.ready.runner.release_memory();
    }

    /// Runs a batch, which can begin at `ready`. Returns the outputs.
    fn run(&mut self, batch: &GatheredBatch, ready: Instant) -> Result<Vec<BatchTensor>, ExecError> {
        let inputs = batch.tensors(&self.model.plan);
        self.bytes += inputs.iter().map(|input| input.data.len()).sum::<usize>();
        catch_panic(|| self.ready.runner.run(&batch.call(&inputs, ready)))
    }

    /// Runs a batch, which can begin at `ready`. Returns the outputs, which may come while the next
    /// batch runs if that `may_follow`.
    pub(crate) fn compute(
        &mut self,
        batch: &GatheredBatch,
        ready: Instant,
        may_follow: bool,
    ) -> Result<BlockOutputs, ExecError> {
        if !may_follow {
            return self.run(batch, ready).map(BlockOutputs::Here);
        }
        let inputs = batch.tensors(&self.model.plan);
        self.bytes += inputs.iter().map(|input| input.data.len()).sum::<usize>();
        let call = BlockCall { outputs_may_follow: true, ..batch.call(&inputs, ready) };
        catch_panic(|| self.ready.runner.compute(&call))
    }
}
