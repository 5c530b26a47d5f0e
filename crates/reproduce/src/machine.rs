//! The interface for measurements on a wall clock.

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
