//! An engine's interface to a lane. It runs one block at a time and reports whether its process
//! runs.

use crate::run::cells::{DeviceOutputs, DeviceStep};
use crate::run::plan::ModelPlan;
use crate::run::rows::{BatchTensor, EngineInput, RowPart};
use crate::{ExecError, Loss};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

/// An engine's part of a model on one device. It computes synchronously.
pub(crate) trait Runner: Send {
    /// Runs one block. Returns the outputs in the block's order.
    fn run(&mut self, call: &BlockCall<'_>) -> Result<Vec<BatchTensor>, ExecError>;

    /// Runs one block like [`run`](Runner::run), but returns before the outputs have come if the
    /// call allows it and the engine can bring them while it runs the next batch.
    fn compute(&mut self, call: &BlockCall<'_>) -> Result<BlockOutputs, ExecError> {
        self.run(call).map(BlockOutputs::Here)
    }

    /// Returns the smallest batch whose rows are computed bit by bit as in any larger batch. A
    /// smaller batch of a cell is padded to it, because later steps may amplify a rounding
    /// difference without bound.
    fn min_rows(&self) -> usize {
        1
    }

    /// Returns the sender of batches to the engine while another one runs, if there is one.
    fn sender(&self) -> Option<Arc<dyn SendAhead>> {
        None
    }

    /// Gives back the memory that the engine keeps for further batches.
    fn release_memory(&mut self) {}

    /// Returns the runner of cells whose state stays on the engine's device; `None` if cells run in
    /// the host's memory, by [`run`](Runner::run).
    fn on_device(&mut self) -> Option<&mut dyn CellRunner> {
        None
    }
}

/// Outputs of a batch that has run.
pub(crate) enum BlockOutputs {
    Here(Vec<BatchTensor>),
    /// They come while the engine runs other batches.
    Coming(Box<dyn ComingOutputs>),
}

/// Outputs that come while the engine runs other batches.
pub(crate) trait ComingOutputs: Send {
    /// Whether each output has this number of rows.
    fn have_rows(&self, rows: usize) -> bool;

    /// Waits for the outputs. Returns an error if they cannot come, and the loss if the engine's
    /// process has ended.
    fn receive(self: Box<Self>) -> Result<Vec<BatchTensor>, (ExecError, Option<Loss>)>;
}

/// Sends gathered batches of a lane to its engine while the batch before runs there.
pub(crate) trait SendAhead: Send + Sync {
    /// Sends a batch, which is kept here, too: it may be lost, and then runs like any other.
    /// Returns the number for [`BlockCall::sent`]; `None` if the batch was not sent.
    fn send_ahead(&self, call: &BlockCall<'_>) -> Option<u64>;
}

/// An engine's part of a model whose state stays on its device. It runs steps in the order of
/// their launches.
pub(crate) trait CellRunner {
    /// Returns the largest number of steps in flight.
    fn depth(&self) -> usize;

    /// Launches a step: finds the members' rows, takes rows for their outputs, and copies what is
    /// in the host's memory. Fewer than [`depth`](CellRunner::depth) steps must be in flight.
    fn launch(&mut self, call: &CellCall<'_>) -> Result<DeviceStep, ExecError>;

    /// Waits until the oldest step in flight has ended or failed, or `stop` returns true. Returns
    /// whether the step has.
    fn wait(&mut self, stop: &dyn Fn() -> bool) -> bool;

    /// Waits for the end of `step`, the oldest in flight, which then is in flight no longer.
    /// Returns its outputs, of which the host gets those that are wanted.
    fn settle(&mut self, step: DeviceStep, wanted: &[Option<u32>]) -> Result<DeviceOutputs, ExecError>;
}

/// One batch for a [`CellRunner`].
pub(crate) struct CellCall<'a> {
    pub(crate) block: usize,
    /// Members' rows of each input, in the block's order.
    pub(crate) inputs: &'a [Vec<RowPart<'a>>],
    /// Outputs of each member that the host needs, as bits; `None` for padding.
    pub(crate) wanted: &'a [Option<u32>],
}

/// One batch for a [`Runner`].
pub(crate) struct BlockCall<'a> {
    pub(crate) block: usize,
    pub(crate) rows: usize,
    /// Length to which its members are padded; 1 if requests do not differ in length.
    pub(crate) length: u32,
    /// Earliest possible start of the task on an idle device.
    pub(crate) ready: Instant,
    /// Inputs in the block's order, then those that replace defaults.
    pub(crate) inputs: &'a [EngineInput<'a>],
    /// Number of the batch if it was sent ahead.
    pub(crate) sent: Option<u64>,
    /// Whether the outputs may come while the next batch runs.
    pub(crate) outputs_may_follow: bool,
}

/// The loss, if the runner's last batch failed because no process could run it.
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
    /// Set by the runner when its process has ended.
    pub(crate) down: ProcessDown,
}

impl ReadyModel {
    /// Creates a model that runs in the server's own process.
    pub(crate) fn new(plan: Arc<ModelPlan>, runner: Box<dyn Runner>) -> ReadyModel {
        ReadyModel { plan, runner, down: ProcessDown::default() }
    }
}
