//! The executor contract and its engines, one folder each: `cpu`, `onnxruntime`, `emulated`.
//!
//! Engines compute synchronously. `lane` turns an engine into an asynchronous device. `worker` does
//! the rest of a task for all engines: it keeps the states of requests, and gathers and scatters
//! rows.

mod abort;
mod account;
mod buffer;
mod cells;
mod clock;
mod condition;
mod conditions;
mod contract;
mod cpu;
mod curve;
mod either;
mod emulated;
mod equality;
mod error;
mod example;
mod flow;
mod independence;
mod isolated;
mod lane;
mod lane_queue;
mod length_rule;
mod model;
mod onnxruntime;
mod output_lengths;
mod padding;
mod permits;
mod plan;
mod profile;
mod rerun;
mod rows;
mod runner;
mod source;
mod tensor;
mod unfold;
mod value_checks;
mod values;
mod worker;

pub use condition::{AllowedExits, BlockDecision, ComparisonOperator, Condition, OutputRow, TensorRule};
pub use contract::{
    Device, Executor, IdleWork, LoadedModel, Loss, MemberProgress, Outage, Payload, PhaseTimes, RemoteRows,
    RequestEntry, Rerun, Sink, Task, TaskMember, TaskResult, next_walk, request_extent,
};
pub use cpu::{CpuEngine, CpuOptions};
pub use curve::MeasurementProgress;
pub use either::EitherEngine;
pub use emulated::{EmulatedEngine, EmulatedOptions};
pub use equality::{AnswerComparison, EngineWithModel, compare_answers};
pub use error::{ExecError, LoadError, RequestError};
pub use example::{ExampleOrigin, TrialRequest, example_origin, find_example, is_unsupported};
pub use independence::{RowIndependence, check_opened, check_rows};
pub use isolated::serve_engine;
pub use length_rule::LengthRule;
pub use onnxruntime::{GpuOptions, OnnxRuntimeEngine, OnnxRuntimeOptions};
pub use output_lengths::find_output_lengths;
pub use profile::{BlockProfile, MeasuredProfile, Measurement, check_padding, measure, run_example, time_batch};
pub use source::{
    AnswerSource, AnswerSteps, BlockSource, Initial, InputLength, InputLink, InputRange, InputSource, Isolation,
    LengthDims, ModelSource, OutputLength, StepLimit,
};
pub use tensor::Tensor;
pub use unfold::Unfold;
