//! A model on a lane: its buffers, the runs of its batches, and the comparison of sampled rows.

use crate::ExecError;
use crate::PhaseTimes;
use crate::contract::account::LapTimer;
use crate::contract::buffer::AlignedBuffer;
use crate::contract::flow::BlockPlan;
use crate::contract::kept;
use crate::run::plan::ModelPlan;
use crate::run::rerun::catch_panic;
use crate::run::row_check::{RanBatch, RowChecks, SampledRow};
use crate::run::rows::{BatchTensor, EngineInput, Rows};
use crate::run::runner::{BlockCall, ReadyModel};
use ripieno_model::padded_size;
use std::sync::Arc;
use std::time::Instant;

/// A model on a lane.
pub(crate) struct Attached {
    /// Plan and runner.
    pub(crate) ready: ReadyModel,
    /// Number of the attachment, which is the same on all lanes of the device.
    pub(crate) attachment: u64,
    /// Gather buffers, for each input of each block.
    pub(crate) buffers: Vec<Vec<AlignedBuffer>>,
    /// Bytes of the largest batch for which memory is kept.
    pub(crate) largest: usize,
    /// Bytes of the batches of the running task.
    pub(crate) task_bytes: usize,
    /// Time at which memory is given back, unless a large batch runs before; `None` if no batch has
    /// run since.
    pub(crate) release_at: Option<Instant>,
    /// Comparisons of sampled rows.
    pub(crate) checks: RowChecks,
}

/// Start of a batch, and where its time is counted.
pub(crate) struct BatchRun<'a> {
    /// Whether the batch is one request that runs as the file runs it, without padding.
    pub(crate) alone: bool,
    /// Earliest possible start.
    pub(crate) ready: Instant,
    pub(crate) watch: &'a mut LapTimer,
    pub(crate) spent: &'a mut PhaseTimes,
}

/// State of a request between its blocks.
pub(crate) struct ChainState {
    /// Rows by value.
    pub(crate) values: Values,
    /// Tensors that replace defaults, by their index among the model's optional inputs.
    pub(crate) optional: Vec<Option<Rows>>,
    /// The request's own length.
    pub(crate) length: u32,
    /// Length to which the first block padded the request.
    pub(crate) padded: u32,
    /// Whether the request ignores the model's conditions.
    pub(crate) ignore_conditions: bool,
}

impl ChainState {
    /// Whether the request replaces a default, so that no other request may share its batch.
    pub(crate) fn replaces_defaults(&self) -> bool {
        self.optional.iter().any(Option::is_some)
    }
}

/// A request's rows of each value of the plan; `None` if they do not exist yet or are no longer
/// needed.
pub(crate) type Values = Vec<Option<Rows>>;

impl Attached {
    pub(crate) fn new(ready: ReadyModel, attachment: u64) -> Attached {
        let plan = &ready.plan;
        let buffer = |&value: &usize| {
            let spec = &plan.values[value].spec;
            let row = spec.shape[1..]
                .iter()
                .try_fold(spec.datatype.size()?, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
            row?.checked_mul(plan.max_batch)
        };
        let buffers = plan.blocks.iter().map(|block| {
            let buffers = block.inputs.iter().map(|value| AlignedBuffer::with_capacity(buffer(value).unwrap_or(0)));
            buffers.collect()
        });
        let (buffers, checks) = (buffers.collect(), RowChecks::default());
        Attached { buffers, attachment, ready, largest: 0, task_bytes: 0, release_at: None, checks }
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
        let plan = &self.ready.plan;
        let mut inputs = Vec::with_capacity(row.inputs.len());
        let values = &plan.blocks[row.block].inputs;
        let shapes = values.iter().zip(&row.inputs).map(|(&value, rows)| padded_row(plan, value, rows, row.length));
        let shapes: Vec<Vec<i64>> = shapes.collect();
        let members: Vec<[&Rows; 1]> = row.inputs.iter().map(|rows| [rows]).collect();
        let buffers = &mut self.buffers[row.block];
        for (((&value, members), shape), buffer) in values.iter().zip(&members).zip(&shapes).zip(buffers) {
            inputs.push(gather(plan, value, members, 1, shape, buffer)?.0);
        }
        let call = BlockCall { block: row.block, rows: 1, length: row.length, ready: Instant::now(), inputs: &inputs };
        catch_panic(|| self.ready.runner.run(&call))
    }

    /// Notes the size of a task that has just run. Returns the time at which memory is given back,
    /// if no batch of at least half of the largest size runs before.
    pub(crate) fn note_batch(&mut self, now: Instant) -> Instant {
        let bytes = std::mem::take(&mut self.task_bytes);
        self.largest = self.largest.max(bytes);
        match self.release_at {
            _ if kept::is_beyond_bound() => *self.release_at.insert(now),
            Some(at) if bytes < self.largest / 2 => at,
            _ => *self.release_at.insert(now + kept::IDLE),
        }
    }

    /// Gives back the memory of the gather buffers and of the engine.
    pub(crate) fn release_memory(&mut self) {
        (self.largest, self.release_at) = (0, None);
        self.buffers.iter_mut().flatten().for_each(AlignedBuffer::release);
        self.ready.runner.release_memory();
    }

    /// Runs a block for requests of equal padding, in their order. The batch is padded to the next
    /// of the model's sizes. Returns the outputs and the number of copied rows.
    pub(crate) fn run(
        &mut self,
        block: usize,
        walks: &[&ChainState],
        run: BatchRun<'_>,
    ) -> Result<(Vec<BatchTensor>, usize), ExecError> {
        let plan = &self.ready.plan;
        let taken = &plan.blocks[block].inputs;
        let length = walks.first().map_or(1, |state| state.padded);
        let BatchRun { alone, ready, watch, spent } = run;
        let rows = if alone { rows_of(walks) } else { padded_size(&plan.batch_sizes, rows_of(walks)) };
        let shapes: Vec<Vec<i64>> = taken.iter().map(|&value| padded_shape(plan, value, walks, length)).collect();
        let mut copied = 0;
        let mut inputs = Vec::with_capacity(taken.len());
        for ((&value, shape), buffer) in taken.iter().zip(&shapes).zip(&mut self.buffers[block]) {
            let members = members_of(plan, block, value, walks)?;
            // Tensors of a request that runs alone may differ in their first dimension.
            let rows = if alone { members[0].count() } else { rows };
            let (input, moved) = gather(plan, value, &members, rows, shape, buffer)?;
            copied += moved;
            self.task_bytes += input.data.len();
            inputs.push(input);
        }
        let mut aligned: Vec<_> = plan.blocks[block].optional.iter().map(|_| AlignedBuffer::default()).collect();
        for (&at, buffer) in plan.blocks[block].optional.iter().zip(&mut aligned) {
            let Some(rows) = walks.first().and_then(|state| state.optional[at].as_ref()) else { continue };
            let (input, _) = EngineInput::gather(&plan.optional[at].name, &[rows], 1, buffer)?;
            inputs.push(EngineInput { whole: true, ..input });
        }
        spent.gather_ns += watch.lap_ns();
        let outputs = catch_panic(|| self.ready.runner.run(&BlockCall { block, rows, length, ready, inputs: &inputs }));
        spent.compute_ns += watch.lap_ns();
        Ok((outputs?, copied))
    }
}

/// Returns the shape to which rows of a value are padded; empty if they are not padded.
fn padded_shape(plan: &ModelPlan, value: usize, walks: &[&ChainState], length: u32) -> Vec<i64> {
    let first = walks.first().and_then(|state| state.values[value].as_ref());
    first.map_or(Vec::new(), |first| padded_row(plan, value, first, length))
}

/// Returns the shape to which one row of a value is padded; empty if it is not padded.
fn padded_row(plan: &ModelPlan, value: usize, rows: &Rows, length: u32) -> Vec<i64> {
    let Some(axis) = plan.padding.as_ref().and_then(|padding| padding.axis(value)) else { return Vec::new() };
    let mut shape = rows.row_shape().to_vec();
    shape[axis.dim - 1] = i64::from(length);
    shape
}

/// Makes the members' rows of a value contiguous, padded to `shape` if the value is padded. Also
/// returns the number of copied rows.
fn gather<'a>(
    plan: &'a ModelPlan,
    value: usize,
    members: &[&'a Rows],
    rows: usize,
    shape: &'a [i64],
    buffer: &'a mut AlignedBuffer,
) -> Result<(EngineInput<'a>, usize), ExecError> {
    let name = &plan.values[value].name;
    match plan.padding.as_ref().and_then(|padding| padding.axis(value)) {
        Some(axis) => EngineInput::pad(name, members, rows, axis, shape, buffer),
        None => EngineInput::gather(name, members, rows, buffer),
    }
}

fn members_of<'a>(
    plan: &ModelPlan,
    block: usize,
    value: usize,
    walks: &[&'a ChainState],
) -> Result<Vec<&'a Rows>, ExecError> {
    let missing = || {
        ExecError(format!(
            "block {block} of model '{}' takes '{}', which no block before it has left: the blocks must run in order",
            plan.name, plan.values[value].name
        ))
    };
    walks.iter().map(|state| state.values[value].as_ref().ok_or_else(missing)).collect()
}

/// Returns the total number of rows in a batch. All values of a request have the same number of
/// rows.
fn rows_of(walks: &[&ChainState]) -> usize {
    walks.iter().map(|state| state.values.iter().flatten().next().map_or(0, Rows::count)).sum()
}
