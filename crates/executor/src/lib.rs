//! The executor contract and its engines, one folder each: `cpu`, `onnxruntime`, `emulated`.

mod contract;
mod error;
mod tensor;

pub use contract::{BlockSource, Device, Engine, Loaded, Member, ModelSource, Progress, Sink, Task, TaskResult};
pub use error::{ExecError, LoadError};
pub use tensor::Tensor;
