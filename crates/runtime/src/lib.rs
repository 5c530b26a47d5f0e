//! The live driver: runs a scheduler of `ripieno-sched` in wall time on real devices.
//!
//! Terms: the *core* is the scheduler. A *walk* is the way of one request through the blocks of its
//! model. A walk *unfolds* if the request runs cell by cell: a sequence becomes steps, and a graph
//! becomes nodes.
//!
//! Threads, which communicate through bounded queues:
//!
//! * Server threads admit requests and put them into the mailbox.
//! * An event loop (`scheduler_loop.rs`) decides. Its own thread and device threads take its turns
//!   (`scheduler_thread.rs`). Alternatively, several loops decide, each for its own models, and a
//!   matchmaker grants devices to them (`shards/`).
//! * Each device has the threads of its executor.
//! * A joiner joins the outputs of requests that were larger than a batch.
//! * A recorder writes recordings.

mod api;
mod clock;
mod devices;
mod engine;
mod event_loop;
mod learn;
mod metrics;
mod record;
mod requests;
pub mod shards;
mod sync;
#[cfg(test)]
mod testing;

/// Largest batch that is served.
pub const MAX_BATCH: usize = ripieno_sched::Limits::SERVED_BATCH;

pub use api::{
    BatchFindings, EngineProcesses, Job, JobOutput, JobResult, OnStep, RemoteJob, ServedModel, StreamedStep,
};
pub use clock::Clock;
pub use devices::hang_detector::HangBound;
pub use devices::{DeviceRefused, DeviceState};
pub use engine::{Engine, EngineConfig, ModelRefused, Recording, StartError, Ticket};
pub use event_loop::wakeup::{WakeupLateness, measure_wakeups};
pub use learn::delays::{DataDelay, DelayEstimate, DelayPercentiles};
pub use learn::shapes::{OpenDims, OpenSizes};
pub use metrics::{DeviceSnapshot, HistogramSnapshot, ModelMetrics, ModelSnapshot, SchedulerSnapshot, TallySnapshot};
pub use record::flight::{
    Aside, DumpedRecording, FlightConfig, FlightEntry, FlightFollower, FlightRecorder, FlightSize, RingBounds, RunWorld,
};
pub use record::history;
pub use record::recorder::Header;
pub use record::replay::{Difference, RecordedEvents, ReplayError, ReplayReport, replay};
pub use requests::ending::{Ending, Failure, FailureNumbers, RefusedWhy, SlowLink};
pub use requests::split::{check_joinable, join, some_rows};
pub use ripieno_sched::NetworkDelay;

/// The guide to embedding, included so that its program is compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/embedding.md")]
pub struct Embedding;
