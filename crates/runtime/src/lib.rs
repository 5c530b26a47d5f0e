//! Driver B: wall time. Runs a scheduler of `ripieno-sched` against real devices.
//!
//! Threads: the front end's own threads admit requests and put them into the mailbox; one loop (`scheduler_loop.rs`)
//! decides, in turns that its own thread and those of devices take (`scheduler_thread.rs`), or several do, each for its
//! models, and a matchmaker gives them devices (`shards/`); each device has threads of its executor; a joiner puts
//! together the answers of requests that were larger than a batch; a recorder writes, if asked to. All of them talk in
//! bounded queues.

mod admission;
mod answer;
mod api;
mod clock;
mod core;
mod coverage;
mod device_changes;
mod devices;
mod ending;
mod engine;
mod failures;
mod fleet;
mod hangs;
mod jobs;
mod joiner;
mod mailbox;
mod metrics;
mod parking;
mod profiles;
mod recorder;
mod registry;
mod replay;
mod scheduler_loop;
mod scheduler_thread;
mod schedulers;
mod seats;
mod shapes;
mod sharded;
mod shards;
mod split;
mod suitable;
#[cfg(test)]
mod testing;
mod turns;
mod wakeup;

pub use api::{Answer, Answered, Failure, Job, OnStep, Processes, Refused, RemoteJob, ServedModel, Step};
pub use clock::Clock;
pub use devices::{DeviceRefused, DeviceState};
pub use ending::Ending;
pub use engine::{Engine, EngineConfig, ModelRefused, Recording, StartError, Ticket};
pub use hangs::HangBound;
pub use metrics::{DeviceSnapshot, HistogramSnapshot, ModelMetrics, ModelSnapshot, SchedulerSnapshot, TallySnapshot};
pub use recorder::Header;
pub use replay::{Difference, Events, ReplayError, Replayed, replay};
pub use shapes::{OpenDims, OpenSizes};
pub use sharded::{Stress, StressReport};
pub use split::{check_joinable, join, some_rows};
pub use wakeup::{Wakeups, measure_wakeups};

/// The page on embedding, so that its program is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
pub struct Embedding;
