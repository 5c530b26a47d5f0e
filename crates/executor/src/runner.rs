//! What an engine brings to a lane: something that runs a block at a time, and whether its process is still there.

use crate::plan::Plan;
use crate::rows::{Batch, Input};
use crate::{ExecError, Loss};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

/// A synchronous engine's side of a model on one device.
pub(crate) trait Runner: Send {
    /// Runs one block; the outputs in the block's order.
    fn run(&mut self, call: &Call<'_>) -> Result<Vec<Batch>, ExecError>;

    /// The fewest rows of which each is computed as in any larger batch, bit by bit. A smaller batch of a cell is filled up,
    /// because what a step rounds differently the steps after it may amplify without bound.
    fn least_rows(&self) -> usize {
        1
    }
}

/// One batch for a [`Runner`].
pub(crate) struct Call<'a> {
    pub(crate) block: usize,
    pub(crate) rows: usize,
    /// The length that its members are padded to; 1 where requests do not differ in length.
    pub(crate) length: u32,
    /// From when on the task could have run, had the device been idle.
    pub(crate) ready: Instant,
    /// In the block's order.
    pub(crate) inputs: &'a [Input<'a>],
}

/// Whether a runner's last batch failed because there is no process to run it, and when there may be one again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Down(Arc<Mutex<Option<Loss>>>);

impl Down {
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
pub(crate) struct Ready {
    pub(crate) plan: Arc<Plan>,
    pub(crate) runner: Box<dyn Runner>,
    /// Set by a runner whose process has ended.
    pub(crate) down: Down,
}

impl Ready {
    /// In the server's own process.
    pub(crate) fn new(plan: Arc<Plan>, runner: Box<dyn Runner>) -> Ready {
        Ready { plan, runner, down: Down::default() }
    }
}
