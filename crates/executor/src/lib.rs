//! The executor contract and its engines, one folder each: `cpu`, `onnxruntime`, `cuda_cells`,
//! `emulated`.
//!
//! Engines compute synchronously. `lane` turns an engine into an asynchronous device. `worker` does
//! the rest of a task for all engines: it keeps the states of requests, and gathers and scatters
//! rows.
//!
//! ```
//! use ripieno_executor::{BlockSource, CpuEngine, CpuOptions, Executor, ModelSource, time_batch};
//!
//! let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/repository/digits/1/model.onnx");
//! let block = BlockSource { path: Some(file.into()), ..BlockSource::new("digits") };
//! let engine = CpuEngine::new(CpuOptions::default());
//! let model = engine.load(&ModelSource::new("digits", vec![block], 8)).unwrap();
//! assert_eq!(model.inputs().len(), 1);
//! println!("eight rows take {:?}", time_batch(&engine, &model, None, 8).unwrap());
//! ```

mod contract;
mod engines;
mod probe;
mod run;

pub use contract::condition::{AllowedExits, BlockDecision, ComparisonOperator, Condition, OutputRow, TensorRule};
pub use contract::error::{BAD_REQUEST, ExecError, LoadError, RequestError};
pub use contract::kept::{bound_kept_bytes, kept_bytes};
pub use contract::length_rule::LengthRule;
pub use contract::source::{
    AnswerSource, AnswerSteps, BlockSource, Initial, InputLength, InputLink, InputRange, InputSource, Isolation,
    LengthDims, ModelSource, OutputLength, StepLimit,
};
pub use contract::tensor::Tensor;
pub use contract::unfold::Unfold;
pub use contract::walk_shape::WalkShape;
pub use contract::{
    Device, Executor, IdleWork, LoadedModel, Loss, MemberProgress, Outage, Payload, PhaseTimes, RemoteRows,
    RequestEntry, Rerun, Sink, Task, TaskMember, TaskResult, next_walk, request_extent,
};
pub use engines::cpu::{CpuEngine, CpuOptions};
pub use engines::cuda_cells::CudaCellsEngine;
pub use engines::either::EitherEngine;
pub use engines::emulated::{EmulatedEngine, EmulatedOptions};
pub use engines::gpu::GpuEngine;
pub use engines::isolated::{PythonEngine, serve_engine};
pub use engines::onnxruntime::{GpuOptions, OnnxRuntimeEngine, OnnxRuntimeOptions};
pub use probe::curve::MeasurementProgress;
pub use probe::equality::{AnswerComparison, EngineWithModel, compare_answers, compare_walks};
pub use probe::example::{ExampleOrigin, TrialRequest, example_origin, find_example, is_unsupported};
pub use probe::independence::{RowIndependence, RowTrial, check_opened, check_rows, check_step_rows};
pub use probe::output_lengths::find_output_lengths;
pub use probe::profile::{BlockProfile, MeasuredProfile, Measurement, check_padding, measure, run_example, time_batch};
pub use ripieno_cuda::Precision;
pub use run::second_thread::MIN_HOST_TIME;
