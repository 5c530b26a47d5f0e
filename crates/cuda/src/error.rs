//! Errors of the driver and of its libraries.

/// The reason for which a GPU cannot be used, or a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// A library is missing.
    #[error("{name} was not found ({cause}); {fix}")]
    NoLibrary {
        /// File name of the library.
        name: &'static str,
        /// Loader's message.
        cause: String,
        /// Fix, for the user.
        fix: &'static str,
    },
    /// A library lacks a function.
    #[error("{library} has no function {symbol}: it is too old; {fix}")]
    NoSymbol {
        /// Library.
        library: &'static str,
        /// Function.
        symbol: &'static str,
        /// Fix, for the user.
        fix: &'static str,
    },
    /// The driver is older than the kernels need.
    #[error("the NVIDIA driver supports CUDA {}.{}, but 12.0 is needed; install driver 525 or newer", .0 / 1000, .0 % 1000 / 10)]
    OldDriver(i32),
    /// The GPU does not exist.
    #[error("there is no cuda:{ordinal}: the driver has {count} GPUs")]
    NoDevice {
        /// Number that was asked for.
        ordinal: u32,
        /// Number of GPUs.
        count: i32,
    },
    /// The GPU is older than the kernels need.
    #[error("cuda:{ordinal} has compute capability {major}.{minor}, but the kernels for cells need 8.0")]
    OldDevice {
        /// Number of the GPU.
        ordinal: u32,
        /// Compute capability, before the point.
        major: i32,
        /// Compute capability, behind the point.
        minor: i32,
    },
    /// No memory.
    #[error("the GPU has no {0} MiB of memory left; lower gpu_memory_limit_mb or max_batch, or unload models")]
    OutOfMemory(usize),
    /// A call of the driver failed.
    #[error("{call}: {text}")]
    Driver {
        /// Function.
        call: &'static str,
        /// Driver's text.
        text: String,
    },
    /// A call of cuBLAS failed.
    #[error("{call}: status {status}")]
    Blas {
        /// Function.
        call: &'static str,
        /// Status.
        status: i32,
    },
    /// A step did not end.
    #[error("a step did not end within {0} s; the GPU hangs")]
    Hang(u64),
    /// An earlier step failed, and the GPU's memory is not to be trusted.
    #[error("an earlier step failed on this GPU")]
    Broken,
    /// The process that owns the device failed.
    #[error("{0}")]
    Process(String),
    /// A program or entry names memory that does not exist.
    #[error("a step names memory outside of its model's")]
    InvalidProgram,
}
