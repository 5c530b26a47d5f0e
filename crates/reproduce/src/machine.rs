//! The interface for measurements on a wall clock.

use ripieno_base::{ModelId, Nanos, Time};
use ripieno_model::Model;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// This machine with the live driver.
pub trait LiveMachine: fmt::Debug {
    /// Runs `ripieno compare` on a model repository with these arguments; returns a row for each
    /// policy and load.
    fn compare(&self, repository: &Path, words: &[String]) -> anyhow::Result<Vec<PolicyResult>>;

    /// Measures the latency, in ms, of batches of one row, two, … on the first model of a
    /// repository or its first block, with these arguments of `ripieno profile`.
    fn costs(&self, repository: &Path, words: &[String]) -> anyhow::Result<Vec<f64>>;

    /// Loads the scheduler's own threads, with devices that cost nothing.
    fn stress(&self, stress: StressLoad) -> anyhow::Result<StressResult>;

    /// Starts a cluster of processes on loopback, whose devices are emulated, and waits until it
    /// serves all models.
    fn cluster(&self, setup: &ClusterSetup) -> anyhow::Result<Box<dyn LiveCluster>>;

    /// Has one backend read objects from several frontends at the same time; returns the latencies
    /// of all reads, in µs.
    fn incast(&self, incast: Incast) -> anyhow::Result<Vec<f64>>;
}

/// A cluster that serves; its processes end when it is dropped.
pub trait LiveCluster {
    /// Sends each request at its time, and waits for all answers.
    fn serve(&mut self, load: &ClusterLoad) -> anyhow::Result<ClusterResult>;

    /// Does the same while backends join and leave as the scheduler advises; returns a figure for
    /// each window of the scaling.
    fn serve_scaled(&mut self, load: &ClusterLoad, scaling: &LiveScaling) -> anyhow::Result<Vec<LiveWindow>>;
}

/// The results of one policy under one load: medians over the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyResult {
    /// Name of the policy, as in the arguments.
    pub policy: String,
    /// Answers per second.
    pub answered_rps: f64,
    /// Mean latency.
    pub mean_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
}

/// A load for the scheduler alone.
#[derive(Clone, Debug)]
pub struct StressLoad {
    /// Name of the policy in the catalogue, with default options.
    pub policy: &'static str,
    /// The models; each has an equal share of the rate.
    pub models: Vec<Model>,
    /// Number of devices.
    pub devices: usize,
    /// Number of threads that generate and schedule, besides the matchmaker's.
    pub shards: usize,
    /// Requests per second.
    pub rate: f64,
    /// Time to measure, after the warm-up.
    pub duration: Duration,
    /// Warm-up, which is not counted.
    pub warmup: Duration,
}

/// The result of a stress run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StressResult {
    /// Fraction of requests dropped or late.
    pub bad_rate: f64,
    /// Requests per second that the scheduler handled.
    pub handled_rps: f64,
}

/// A cluster to start.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    /// The models, with the profiles that devices emulate.
    pub models: Vec<Model>,
    /// Number of devices at the start.
    pub devices: usize,
    /// Largest number of devices.
    pub most_devices: usize,
    /// Number of frontends.
    pub frontends: usize,
    /// Name of the policy in the catalogue.
    pub policy: &'static str,
    /// Options of the policy, as `KEY=VALUE`.
    pub options: Vec<String>,
}

/// Requests with fixed times.
#[derive(Clone, Debug)]
pub struct ClusterLoad {
    /// Time and model of each request, in order of time.
    pub arrivals: Vec<(Time, ModelId)>,
    /// Requests due before this are sent but not counted.
    pub warmup: Nanos,
    /// End of the load.
    pub end: Nanos,
}

/// The outcome of a load, of the requests that count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterResult {
    /// The highest fraction of a model's requests that were late or not answered.
    pub worst_bad_rate: f64,
    /// Time of a batch beyond its profile, from the scheduler's decision until it hears of the end:
    /// the median and the 99th percentile, by request, in µs.
    pub batch_us: [f64; 2],
    /// Time of a request outside of the scheduler's view, on its ways from and to the frontend: the
    /// median and the 99th percentile, in µs.
    pub way_us: [f64; 2],
    /// Delay of the load generator, at the 99th percentile, in µs.
    pub send_lag_us: f64,
    /// Mean number of busy cores of this machine; `None` where it cannot be read.
    pub busy_cores: Option<f64>,
}

/// The way in which the number of backends follows the scheduler's advice.
#[derive(Clone, Copy, Debug)]
pub struct LiveScaling {
    /// Time between two readings of the advice.
    pub every: Nanos,
    /// Smallest and largest number of devices.
    pub range: (usize, usize),
    /// Number of readings that must agree before a backend leaves.
    pub release_after: usize,
}

/// The figures between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiveWindow {
    /// End of the window, from the start of the load.
    pub end_s: f64,
    /// Length of the window.
    pub span_s: f64,
    /// Requests per second that were due.
    pub offered_rps: f64,
    /// Requests per second that were answered in time.
    pub goodput_rps: f64,
    /// Mean number of devices.
    pub devices: f64,
    /// Mean number of busy devices.
    pub busy_devices: f64,
    /// Number of devices advised.
    pub desired_devices: usize,
}

/// Concurrent reads of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incast {
    /// Number of frontends.
    pub frontends: usize,
    /// Number of objects that each frontend holds.
    pub objects: usize,
    /// Size of an object.
    pub bytes: usize,
    /// Number of rounds; each reads all objects once.
    pub rounds: usize,
}
