//! An engine's interface to a lane: runs a block at a time, and reports whether its process is up.

use crate::plan::ModelPlan;
use crate::rows::{BatchTensor, EngineInput};
use crate::{ExecError, Loss};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

/// A synchronous engine's side of a model on one device.
pub(crate) trait Runner: Send {
    /// Runs one block; returns the outputs in the block's order.
    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError>;

    /// Returns the smallest number of rows for which each row is computed bit by bit as in any
    /// larger batch. A smaller batch of a cell is filled up, because later steps may amplify a
    /// rounding difference without bound.
    fn min_rows(&self) -> usize {
        1
    }
}

/// One batch for a [`Runner`].
pub(crate) struct BlockCall<'a> {
    pub(crate) block: usize,
    pub(crate) rows: usize,
    /// The length that its members are padded to; 1 where requests do not differ in length.
    pub(crate) length: u32,
    /// Earliest possible start of the task, had the device been idle.
    pub(crate) ready: Instant,
    /// Inputs, in the block's order.
    pub(crate) inputs: &'a [EngineInput<'a>],
}

/// Set if a runner's last batch failed because no process could run it, with the time after which
/// to retry.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessDown(Arc<Mutex<Option<Loss>>>);

impl ProcessDown {
    pub(crate) fn clear(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn set(&self, loss: Loss) {
        *self.0.lock() = Some(loss);
    }

    pub(crate) fn get(&self) -> Option<Loss> {
        *self.0.lock()
    }
}

/// A model that can run on one device.
pub(crate) struct ReadyModel {
    pub(crate) plan: Arc<ModelPlan>,
    pub(crate) runner: Box<dyn Runner>,
    /// Set by a runner whose process has ended.
    pub(crate) down: ProcessDown,
}

impl ReadyModel {
    /// Creates a model that runs in the server's own process.
    pub(crate) fn new(plan: Arc<ModelPlan>, runner: Box<dyn Runner>) -> ReadyModel {
        ReadyModel { plan, runner, down: ProcessDown::default() }
    }
}
