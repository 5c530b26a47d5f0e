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

mod answer;
mod api;
mod capacity;
mod clock;
mod core;
mod coverage;
mod device_changes;
mod device_slots;
mod devices;
mod dispatcher;
mod ending;
mod engine;
mod event_loop;
mod failures;
mod flight;
mod hang_detector;
pub mod history;
mod jobs;
mod joiner;
mod mailbox;
mod metrics;
mod model_ids;
mod parking;
mod profiles;
mod recorder;
mod replay;
mod scheduler_loop;
mod scheduler_thread;
mod schedulers;
mod server_delay;
mod shape_costs;
mod shapes;
pub mod shards;
mod shortest_time;
mod split;
mod suitable;
#[cfg(test)]
mod testing;
mod wakeup;

pub use api::{
    EngineProcesses, Failure, Job, JobOutput, JobResult, OnStep, Refused, RemoteJob, ServedModel, StreamedStep,
};
pub use clock::Clock;
pub use devices::{DeviceRefused, DeviceState};
pub use ending::Ending;
pub use engine::{Engine, EngineConfig, ModelRefused, Recording, StartError, Ticket};
pub use flight::{
    Aside, DumpedRecording, FlightConfig, FlightEntry, FlightFollower, FlightRecorder, FlightSize, RefusedWhy,
    RingBounds, RunWorld,
};
pub use hang_detector::HangBound;
pub use metrics::{DeviceSnapshot, HistogramSnapshot, ModelMetrics, ModelSnapshot, SchedulerSnapshot, TallySnapshot};
pub use recorder::Header;
pub use replay::{Difference, RecordedEvents, ReplayError, ReplayReport, replay};
pub use shapes::{OpenDims, OpenSizes};
pub use split::{check_joinable, join, some_rows};
pub use wakeup::{WakeupLateness, measure_wakeups};

/// The guide to embedding, included so that its program is compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/embedding.md")]
pub struct Embedding;
