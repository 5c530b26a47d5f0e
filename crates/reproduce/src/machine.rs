//! What items measure on a wall clock instead of simulating it.

use ripieno_model::Model;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// This machine, as the live driver has it.
pub trait Machine: fmt::Debug {
    /// Holds a `ripieno compare` on a model repository, with these words of its command line: a row for each policy and load.
    fn compare(&self, repository: &Path, words: &[String]) -> anyhow::Result<Vec<Compared>>;

    /// What batches of one row, two, … take on the first model of a repository, or on its first block, with these words of a
    /// `ripieno profile`: milliseconds.
    fn costs(&self, repository: &Path, words: &[String]) -> anyhow::Result<Vec<f64>>;

    /// Lets the scheduler's own threads carry a load, with devices that cost nothing.
    fn stress(&self, stress: Stress) -> anyhow::Result<Carried>;
}

/// One policy under one load: medians over the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// As the words name it.
    pub policy: String,
    /// Answers a second.
    pub answered_rps: f64,
    /// Latencies.
    pub mean_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
}

/// A load for the scheduler alone.
#[derive(Clone, Debug)]
pub struct Stress {
    /// Its name in the catalogue; its options are as they come.
    pub policy: &'static str,
    /// All with an equal share of the rate.
    pub models: Vec<Model>,
    /// How many devices.
    pub devices: usize,
    /// Threads that generate and schedule, beside the matchmaker's.
    pub shards: usize,
    /// Requests a second.
    pub rate: f64,
    /// How long to measure, after the warm-up.
    pub duration: Duration,
    /// What does not count yet.
    pub warmup: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// Requests dropped or late, as a share.
    pub bad_rate: f64,
    /// Requests a second that were got round to.
    pub handled_rps: f64,
}
