//! Gathered batches: the members' rows of each input of a block, contiguous and padded.
//!
//! A gathered batch owns all that its run needs, so one thread may gather it and another one may
//! run it. Its buffers come from a pool of the model and return there when it is dropped. A lane
//! has as many sets of buffers as it has ever held batches at the same time.

use crate::ExecError;
use crate::contract::buffer::AlignedBuffer;
use crate::run::chain_state::ChainState;
use crate::run::plan::ModelPlan;
use crate::run::rows::{EngineInput, GatheredInput, Rows};
use crate::run::runner::{BlockCall, SendAhead};
use parking_lot::Mutex;
use ripieno_model::padded_size;
use std::sync::Arc;
use std::time::Instant;

/// A model on a lane as far as tasks are prepared and finished: all but its engine.
#[derive(Clone)]
pub(crate) struct LaneModel {
    pub(crate) plan: Arc<ModelPlan>,
    /// Number of the attachment, which is the same on all lanes of the device.
    pub(crate) attachment: u64,
    pub(crate) buffers: Arc<GatherBuffers>,
    /// The sender of batches to the engine while another one runs.
    pub(crate) sender: Option<Arc<dyn SendAhead>>,
}

/// The gather buffers of a model on a lane.
pub(crate) struct GatherBuffers {
    /// Sizes of the buffers of a set, by block.
    sizes: Vec<Vec<usize>>,
    /// Sets that no batch uses, by block.
    spare: Mutex<Vec<Vec<Vec<AlignedBuffer>>>>,
}

/// A set of buffers, one for each input of a block. Dropping it returns it to the pool.
pub(crate) struct LentBuffers {
    set: Vec<AlignedBuffer>,
    block: usize,
    pool: Arc<GatherBuffers>,
}

impl GatherBuffers {
    /// Creates the pool of a model. Buffers have the size of the largest batch, if it is known.
    pub(crate) fn new(plan: &ModelPlan) -> Arc<GatherBuffers> {
        let size = |&value: &usize| {
            let spec = &plan.values[value].spec;
            let row = spec.shape[1..]
                .iter()
                .try_fold(spec.datatype.size()?, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
            row?.checked_mul(plan.max_batch)
        };
        let of_block = |inputs: &[usize]| inputs.iter().map(|value| size(value).unwrap_or(0)).collect();
        let sizes: Vec<_> = plan.blocks.iter().map(|block| of_block(&block.inputs)).collect();
        let spare = Mutex::new(sizes.iter().map(|_| Vec::new()).collect());
        Arc::new(GatherBuffers { sizes, spare })
    }

    /// Takes a set of buffers for a batch of a block.
    pub(crate) fn take(self: &Arc<GatherBuffers>, block: usize) -> LentBuffers {
        let spare = self.spare.lock()[block].pop();
        let made = || self.sizes[block].iter().map(|&bytes| AlignedBuffer::with_capacity(bytes)).collect();
        LentBuffers { set: spare.unwrap_or_else(made), block, pool: Arc::clone(self) }
    }

    /// Gives the memory of all sets back that no batch uses.
    pub(crate) fn release(&self) {
        self.spare.lock().iter_mut().flatten().flatten().for_each(AlignedBuffer::release);
    }
}

impl LentBuffers {
    pub(crate) fn set_mut(&mut self) -> &mut [AlignedBuffer] {
        &mut self.set
    }
}

impl Drop for LentBuffers {
    fn drop(&mut self) {
        self.pool.spare.lock()[self.block].push(std::mem::take(&mut self.set));
    }
}

/// A batch that an engine can run.
pub(crate) struct GatheredBatch {
    /// Inputs in the block's order, each with the buffer of the same index.
    inputs: Vec<GatheredInput>,
    buffers: LentBuffers,
    /// Inputs that replace defaults, with their index among the model's optional inputs.
    replaced: Vec<(usize, GatheredInput, AlignedBuffer)>,
    /// Number of rows, with padding.
    pub(crate) rows: usize,
    /// Length to which its members are padded.
    pub(crate) length: u32,
    /// True if the batch is one request that runs as the file runs it, without padding.
    pub(crate) alone: bool,
    /// Number of the batch if it was sent to the engine ahead.
    sent: Option<u64>,
}

impl GatheredBatch {
    /// Gathers a batch of requests of equal padding, in their order. It is padded to the next of
    /// the model's sizes, unless it runs alone.
    pub(crate) fn gather(
        plan: &ModelPlan,
        pool: &Arc<GatherBuffers>,
        block: usize,
        walks: &[&ChainState],
        alone: bool,
    ) -> Result<GatheredBatch, ExecError> {
        let taken = &plan.blocks[block].inputs;
        let length = walks.first().map_or(1, |state| state.padded);
        let rows = if alone { rows_of(walks) } else { padded_size(&plan.batch_sizes, rows_of(walks)) };
        let mut buffers = pool.take(block);
        let mut inputs = Vec::with_capacity(taken.len());
        for (&value, buffer) in taken.iter().zip(buffers.set_mut()) {
            let members = members_of(plan, block, value, walks)?;
            // Tensors of a request that runs alone may differ in their first dimension.
            let rows = if alone { members[0].count() } else { rows };
            inputs.push(gather_value(plan, value, &members, (rows, length), buffer)?);
        }
        let mut replaced = Vec::new();
        for &at in &plan.blocks[block].optional {
            let Some(rows) = walks.first().and_then(|state| state.optional[at].as_ref()) else { continue };
            let mut buffer = AlignedBuffer::default();
            let input = GatheredInput::gather(&plan.optional[at].name, &[rows], 1, &mut buffer)?;
            replaced.push((at, input, buffer));
        }
        Ok(GatheredBatch { inputs, buffers, replaced, rows, length, alone, sent: None })
    }

    /// Gathers one row of each input of a block.
    pub(crate) fn of_row(
        plan: &ModelPlan,
        pool: &Arc<GatherBuffers>,
        block: usize,
        row: &[Rows],
        length: u32,
    ) -> Result<GatheredBatch, ExecError> {
        let mut buffers = pool.take(block);
        let mut inputs = Vec::with_capacity(row.len());
        for ((&value, rows), buffer) in plan.blocks[block].inputs.iter().zip(row).zip(buffers.set_mut()) {
            inputs.push(gather_value(plan, value, &[rows], (1, length), buffer)?);
        }
        Ok(GatheredBatch { inputs, buffers, replaced: Vec::new(), rows: 1, length, alone: false, sent: None })
    }

    /// Returns the tensors for the engine: the block's inputs, then those that replace defaults.
    pub(crate) fn tensors<'a>(&'a self, plan: &'a ModelPlan) -> Vec<EngineInput<'a>> {
        let taken = &plan.blocks[self.buffers.block].inputs;
        let mut tensors = Vec::with_capacity(taken.len() + self.replaced.len());
        for ((&value, input), buffer) in taken.iter().zip(&self.inputs).zip(&self.buffers.set) {
            tensors.push(input.tensor(&plan.values[value].name, buffer));
        }
        for (at, input, buffer) in &self.replaced {
            tensors.push(EngineInput { whole: true, ..input.tensor(&plan.optional[*at].name, buffer) });
        }
        tensors
    }

    /// Returns the batch for the engine, which can begin at `ready`.
    pub(crate) fn call<'a>(&self, inputs: &'a [EngineInput<'a>], ready: Instant) -> BlockCall<'a> {
        let (block, rows, length, sent) = (self.buffers.block, self.rows, self.length, self.sent);
        BlockCall { block, rows, length, ready, inputs, sent, outputs_may_follow: false }
    }

    /// Sends the batch to the engine while another one runs.
    pub(crate) fn send_ahead(&mut self, model: &LaneModel) {
        if let Some(sender) = model.sender.as_ref().filter(|_| !self.alone) {
            let inputs = self.tensors(&model.plan);
            self.sent = sender.send_ahead(&self.call(&inputs, Instant::now()));
        }
    }

    /// Returns the number of rows that were copied.
    pub(crate) fn rows_copied(&self) -> usize {
        self.inputs.iter().map(GatheredInput::rows_copied).sum()
    }
}

/// Makes the members' rows of a value contiguous, padded to the length if the value is padded.
fn gather_value(
    plan: &ModelPlan,
    value: usize,
    members: &[&Rows],
    (rows, length): (usize, u32),
    buffer: &mut AlignedBuffer,
) -> Result<GatheredInput, ExecError> {
    let name = &plan.values[value].name;
    let Some(axis) = plan.padding.as_ref().and_then(|padding| padding.axis(value)) else {
        return GatheredInput::gather(name, members, rows, buffer);
    };
    let mut row_shape = members[0].row_shape().to_vec();
    row_shape[axis.dim - 1] = i64::from(length);
    GatheredInput::pad(name, members, rows, axis, &row_shape, buffer)
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
pub(crate) fn rows_of(walks: &[&ChainState]) -> usize {
    walks.iter().map(|state| state.values.iter().flatten().next().map_or(0, Rows::count)).sum()
}
