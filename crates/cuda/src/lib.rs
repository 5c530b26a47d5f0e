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
mod program;
mod resident;

pub use error::CudaError;
pub use gpu::CudaGpu;
pub use host::HostDevice;
pub use program::{
    CellModelSpec, ChainSegment, Instr, MAX_DEPTH, MAX_FEEDS, Matrix, Op, Precision, Product, Reduce, Reduction,
    STAGED, StepProgram, StepStage, UNIT,
};

use std::sync::Arc;

/// A device that runs programs of cells.
pub trait StepDevice: Send + Sync {
    /// Copies a model's constants to the device and takes memory for its rows of state.
    fn load(&self, spec: Arc<CellModelSpec>) -> Result<Arc<dyn ModelOnDevice>, CudaError>;
}

/// A model in a device's memory.
pub trait ModelOnDevice: Send + Sync {
    /// Opens a lane: what runs one step of the model at a time, beside other lanes.
    fn lane(self: Arc<Self>) -> Result<Box<dyn CellLane>, CudaError>;

    /// Copies words of state to the host, from a unit on. Waits for the copy only: the caller has
    /// seen the end of the step that wrote them.
    fn read(&self, unit: usize, words: &mut [u32]) -> Result<(), CudaError>;
}

/// Memory that a step reads in place.
#[derive(Debug)]
pub struct StepInputs<'a> {
    /// An entry for each row; see [`CellModelSpec::entry_words`].
    pub entries: &'a mut [u32],
    /// Staged feeds, feed by feed.
    pub staged: &'a mut [u32],
}

/// Runs steps, one after the other.
pub trait CellLane: Send {
    /// Returns the memory for the next step of a cell.
    fn inputs(&mut self, cell: usize) -> Result<StepInputs<'_>, CudaError>;

    /// Runs a step of a cell for a number of rows that is one of the sizes, and waits for its end.
    fn run(&mut self, cell: usize, rows: usize) -> Result<(), CudaError>;

    /// Returns the outputs of the last step for the host.
    fn results(&self, cell: usize) -> &[u32];

    /// Returns a word for each row of the last step, not 0 if an id was outside of its table.
    fn faults(&self) -> &[u32];
}
