//! Spans in which a scheduler was silent, or the whole process did not run.

use super::History;
use ripieno_base::{Nanos, Time};

impl History {
    /// Returns the span around an instant in which no scheduler of a sub-cluster received or
    /// decided anything, if it is notable.
    pub(super) fn pause_at(&self, sub_cluster: usize, at: Time) -> Option<(Time, Time)> {
        let pauses = &self.sub_clusters[sub_cluster].pauses;
        let place = pauses.partition_point(|(_, end)| *end <= at);
        pauses.get(place).copied().filter(|(start, _)| *start < at)
    }

    /// Returns the spans in which the process did not run, by time.
    pub fn stalls(&self) -> impl Iterator<Item = (Time, Time)> {
        self.stalls.iter().copied()
    }

    /// Returns the time within a span in which the process did not run.
    pub(super) fn stalled(&self, from: Time, to: Time) -> Nanos {
        let last = self.stalls.partition_point(|(start, _)| *start < to);
        let overlapping = self.stalls.range(..last).rev().take_while(|(_, end)| *end > from);
        overlapping.map(|(start, end)| (*end).min(to) - (*start).max(from)).sum()
    }
}
