//! Programs of cells on NVIDIA GPUs.
//!
//! A cell's step is a [`StepProgram`], which a [`StepDevice`] runs for a batch of members: a GPU
//! through the driver ([`CudaGpu`]), or this machine's CPU ([`HostDevice`]), on which all that is
//! around it is tested. State stays on the device, as rows that a step reads and writes by index,
//! so that members may join and leave between any two steps and nothing is copied. On a GPU the
//! program is recorded once for each batch size as a graph, and a step is one launch. Its last
//! kernel raises a number in host memory, at which the launching thread looks.
//!
//! No CUDA is needed to build: driver and cuBLAS are loaded when the first GPU is opened, and the
//! kernels are text in the binary (`kernels/cells.ptx`, made by `scripts/ptx`), which the driver
//! compiles. This is the only crate with unsafe code. Programs are checked against the memory of
//! their model when it is loaded, and entries before each step, so that no caller can make a kernel
//! leave its memory.

mod api;
mod context;
mod error;
mod gpu;
mod host;
#[cfg(test)]
mod kernel_tests;
mod lane;
mod memory;
mod portable;
mod program;
mod resident;

pub use error::CudaError;
pub use gpu::CudaGpu;
pub use host::HostDevice;
pub use program::{
    CellModelSpec, ChainSegment, Instr, MAX_DEPTH, MAX_FEEDS, Matrix, Op, Precision, Product, Reduce, Reduction,
    STAGED, StepProgram, StepStage, UNIT,
};

use std::any::Any;
use std::sync::Arc;

/// A device that runs programs of cells.
pub trait StepDevice: Send + Sync {
    /// Copies a model's constants to the device and takes memory for its rows of state.
    fn load(&self, spec: Arc<CellModelSpec>) -> Result<Arc<dyn ModelOnDevice>, CudaError>;
}

/// A model in a device's memory.
pub trait ModelOnDevice: Send + Sync {
    /// Opens a lane. Steps of different lanes run side by side.
    fn lane(self: Arc<Self>) -> Result<Box<dyn CellLane>, CudaError>;

    /// Copies words of state to the host, from a unit on. Waits for the copy only: the caller has
    /// seen the end of the step that wrote them.
    fn read(&self, unit: usize, words: &mut [u32]) -> Result<(), CudaError>;

    /// Copies a row of the same model on another device into a row here, without the host's memory.
    /// The caller has seen the end of the step that wrote it, and no step uses `to`. Returns false
    /// if the two devices cannot.
    fn copy_row(&self, _from: &dyn ModelOnDevice, _row: u32, _to: u32) -> Result<bool, CudaError> {
        Ok(false)
    }

    /// Returns the model as what it is, so that another device may know it.
    fn as_any(&self) -> &dyn Any;

    /// Whether the device's memory is gone, with the process that owned it.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Memory that a step reads in place.
#[derive(Debug)]
pub struct StepInputs<'a> {
    /// An entry for each row; see [`CellModelSpec::entry_words`].
    pub entries: &'a mut [u32],
    /// Staged feeds, feed by feed.
    pub staged: &'a mut [u32],
}

/// Memory that a step has written for the host.
#[derive(Debug)]
pub struct StepOutputs<'a> {
    /// Outputs of each row.
    pub results: &'a [u32],
    /// A word for each row, not 0 if an id was outside of its table.
    pub faults: &'a [u32],
}

/// Runs steps in the order of their launches. Each step in flight has memory of its own for inputs
/// and outputs, and may read rows of state that an earlier one in flight writes.
pub trait CellLane: Send {
    /// Returns the largest number of steps in flight.
    fn depth(&self) -> usize;

    /// Returns the memory for the next step of a cell. Fewer than [`depth`](CellLane::depth) steps
    /// must be in flight.
    fn inputs(&mut self, cell: usize) -> Result<StepInputs<'_>, CudaError>;

    /// Launches a step of a cell for a number of rows that is one of the sizes.
    fn launch(&mut self, cell: usize, rows: usize) -> Result<(), CudaError>;

    /// Waits until the oldest step in flight has ended or failed, or `stop` returns true. Returns
    /// whether the step has.
    fn wait(&mut self, stop: &dyn Fn() -> bool) -> bool;

    /// Waits for the end of the oldest step in flight, which then is in flight no longer. Returns
    /// its outputs.
    fn settle(&mut self) -> Result<StepOutputs<'_>, CudaError>;
}
