//! The way of a request: the time that passes neither in the scheduler nor on a device.
//!
//! A request tells the scheduler how much of its time the way takes. Two numbers say so:
//!
//! - The 90th percentile of the measured ways covers what varies. It may be wrong for long after a
//!   disturbance, so it counts at most a quarter of the request's time.
//! - The shortest of the last round trips to the scheduler is what no request is spared. Where late
//!   answers are errors it counts in full, and a request that it leaves no time is refused.
//!
//! The second number needs measurements while it refuses all requests, so one in eight passes.

use super::pending::AnswerLimits;
use ripieno_base::Nanos;
use ripieno_runtime::{DelayEstimate, DelayPercentiles, JobOutput};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Share of the requests whose way is at most the estimate, in thousandths.
const WAY_PERMILLE: u32 = 900;
/// Inverse of the largest part of a request's time that the estimate counts.
const ESTIMATE_PART: u32 = 4;
/// Number of round trips of which the shortest counts.
const RECENT: usize = 16;
/// Number of requests of which one passes although the shortest round trip leaves it too little
/// time.
const TRIAL: u32 = 8;

/// The measured ways of a frontend's requests.
#[derive(Default)]
pub(super) struct RequestWays {
    estimate: DelayEstimate,
    /// The last round trips to the scheduler, at most [`RECENT`].
    round_trips: VecDeque<Duration>,
    /// Number of requests whose shortest round trip counts more than the estimate may.
    far: u32,
}

impl RequestWays {
    /// Returns the percentiles of the measured ways.
    pub(super) fn percentiles(&self) -> Option<DelayPercentiles> {
        self.estimate.percentiles()
    }

    /// Adds a way; `None` if it was not measured.
    pub(super) fn add_way(&mut self, way: Option<Duration>) {
        self.estimate.extend(way);
    }

    /// Adds a round trip to the scheduler; `None` if it was not measured.
    pub(super) fn add_round_trip(&mut self, round_trip: Option<Duration>) {
        let Some(round_trip) = round_trip else { return };
        if self.round_trips.len() == RECENT {
            self.round_trips.pop_front();
        }
        self.round_trips.push_back(round_trip);
    }

    /// Returns the time that the way of a request will take.
    pub(super) fn expected(&mut self, came: Instant, limits: AnswerLimits) -> Duration {
        let estimate = self.estimate.quantile(WAY_PERMILLE).unwrap_or_default();
        let Some(due) = limits.due else { return estimate };
        let most = due.saturating_duration_since(came) / ESTIMATE_PART;
        let estimate = estimate.min(most);
        let shortest = self.round_trips.iter().min().filter(|_| self.round_trips.len() == RECENT);
        match shortest {
            Some(&shortest) if limits.is_enforced() => {
                self.far = self.far.wrapping_add(u32::from(shortest > most));
                let passes = shortest > most && self.far.is_multiple_of(TRIAL);
                if passes { estimate } else { estimate.max(shortest) }
            }
            _ => estimate,
        }
    }
}

/// Returns the time since a request came, at `now`, that it spent neither in the scheduler nor on a
/// device; `None` if the scheduler did not report its times.
pub(super) fn measured(came: Instant, now: Instant, answered: &JobOutput) -> Option<Duration> {
    let inside = Duration::from_nanos((answered.queued + answered.executed).0.unsigned_abs());
    (answered.executed > Nanos::ZERO).then(|| now.saturating_duration_since(came).saturating_sub(inside))
}
