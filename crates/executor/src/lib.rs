//! The executor contract and its engines, one folder each: `cpu`, `onnxruntime`, `emulated`.
//!
//! Engines compute synchronously; `lane` makes an asynchronous device of them, and `worker` does for all of them what
//! a task asks beside computing: keeping walks, gathering and scattering rows.

mod abort;
mod account;
mod buffer;
mod cells;
mod clock;
mod conditions;
mod contract;
mod cpu;
mod curve;
mod emulated;
mod error;
mod flow;
mod independence;
mod isolated;
mod lane;
mod leaving;
mod mailbox;
mod model;
mod onnxruntime;
mod padding;
mod parts;
mod plan;
mod profile;
mod rows;
mod runner;
mod source;
mod tensor;
mod turns;
mod unfold;
mod value_checks;
mod values;
mod worker;

pub use contract::{
    Again, Device, Engine, Entry, InputLengths, Loaded, Loss, Member, Origin, Outage, Payload, Progress, Sink, Spent,
    Task, TaskResult, Work, next_walk,
};
pub use cpu::{CpuEngine, CpuOptions};
pub use curve::Step;
pub use emulated::{EmulatedEngine, EmulatedOptions};
pub use error::{ExecError, LoadError, RequestError};
pub use independence::{Rows, check_rows};
pub use isolated::serve_engine;
pub use leaving::{Comparison, Condition, May, Row, Rule, Verdict};
pub use onnxruntime::{OnnxRuntimeEngine, OnnxRuntimeOptions};
pub use profile::{BlockProfile, Measured, Measurement, check_padding, measure, run_example};
pub use source::{
    AnswerSource, BlockSource, Initial, InputLength, InputRange, Isolation, LengthDims, Link, ModelSource,
    OutputLength, Source, StepLimit, Take,
};
pub use tensor::Tensor;
pub use unfold::Unfold;
