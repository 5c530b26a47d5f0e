//! State of the page.

use super::samples::Samples;
use super::watch::Watch;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Largest number of open pages that are kept up to date.
pub(super) const MOST_STREAMS: usize = 64;

/// Time for which elections count.
const ELECTIONS_SPAN: Duration = Duration::from_secs(600);
/// Time for which devices that have gone are missed.
const DEVICES_SPAN: Duration = Duration::from_secs(900);

/// A problem of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ServerProblem {
    /// Name for programs, such as `no_device`.
    pub(crate) name: &'static str,
    /// The fault, and the change that removes it.
    pub(crate) says: String,
}

/// Whether the server is well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ServerStatus {
    healthy: bool,
    problems: Vec<ServerProblem>,
}

impl ServerProblem {
    /// Returns true if the flight recorder may name a cause for the problem.
    pub(super) fn has_cause(&self) -> bool {
        matches!(self.name, "late" | "overload")
    }
}

impl ServerStatus {
    pub(super) fn new(problems: Vec<ServerProblem>) -> ServerStatus {
        ServerStatus { healthy: problems.is_empty(), problems }
    }
}

/// A counter's values, each with the time at which it was first seen.
type ValueChanges = VecDeque<(Instant, u64)>;

/// Samples, history and bounds.
pub(crate) struct Ui {
    pub(super) samples: Mutex<Samples>,
    pub(super) watch: Watch,
    pub(super) streams: Arc<Semaphore>,
    /// Permit to render; one view is rendered at a time.
    pub(super) rendering: Arc<Semaphore>,
    /// Problems at the last sample.
    problems: Mutex<Vec<ServerProblem>>,
    elections: Mutex<ValueChanges>,
    devices: Mutex<ValueChanges>,
}

impl Default for Ui {
    fn default() -> Ui {
        let (samples, watch) = (Mutex::default(), Watch::default());
        Ui {
            samples,
            watch,
            streams: Arc::new(Semaphore::new(MOST_STREAMS)),
            rendering: Arc::new(Semaphore::new(1)),
            problems: Mutex::default(),
            elections: Mutex::default(),
            devices: Mutex::default(),
        }
    }
}

impl Ui {
    /// Returns the problems at the last sample.
    pub(super) fn problems(&self) -> Vec<ServerProblem> {
        self.problems.lock().clone()
    }

    pub(super) fn set_problems(&self, problems: Vec<ServerProblem>) {
        *self.problems.lock() = problems;
    }

    /// Notes the number of elections since the start.
    pub(super) fn count_elections(&self, elections: u64) {
        note(&mut self.elections.lock(), elections, ELECTIONS_SPAN);
    }

    /// Returns the number of elections in the last ten minutes.
    pub(super) fn recent_elections(&self) -> u64 {
        let seen = self.elections.lock();
        seen.back().zip(seen.front()).map_or(0, |(last, first)| last.1 - first.1)
    }

    /// Notes the number of serving devices.
    pub(super) fn count_devices(&self, devices: usize) {
        note(&mut self.devices.lock(), devices as u64, DEVICES_SPAN);
    }

    /// Returns the largest number of serving devices in the last 15 minutes.
    pub(super) fn most_devices(&self) -> usize {
        self.devices.lock().iter().map(|(_, devices)| *devices).max().unwrap_or(0) as usize
    }
}

/// Notes a value, and forgets values that were replaced longer ago than the span.
fn note(changes: &mut ValueChanges, value: u64, span: Duration) {
    let now = Instant::now();
    if changes.back().is_none_or(|(_, last)| *last != value) {
        changes.push_back((now, value));
    }
    while changes.get(1).is_some_and(|(replaced, _)| now.duration_since(*replaced) > span) {
        changes.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_count_until_they_were_replaced_long_ago() {
        let mut changes = ValueChanges::new();
        [2, 2, 3, 1].into_iter().for_each(|value| note(&mut changes, value, ELECTIONS_SPAN));
        assert_eq!(changes.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [2, 3, 1]);
        note(&mut changes, 1, Duration::ZERO);
        assert_eq!(changes.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [1]);
    }
}
