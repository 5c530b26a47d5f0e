//! The way of a request: the time that passes neither in the scheduler nor on a device.
//!
//! A request tells the scheduler how much of its time the way takes. Two numbers say so:
//!
//! - The 90th percentile of the measured ways covers what varies. It may be wrong for long after a
//!   disturbance, so it counts at most a quarter of the request's time.
//! - The shortest of a model's last ways, each with the pull of its inputs, is what none of its
//!   requests is spared: how long tensors take depends on the model. Where late answers are errors
//!   it counts in full, and a request that it leaves no time is refused. So a frontend whose data
//!   links are slow does not make the batches of others wait.
//!
//! The second number needs measurements while it refuses all requests, so one passes each second.

use super::pending::AnswerLimits;
use ripieno_base::{ModelId, Nanos};
use ripieno_runtime::{DelayEstimate, DelayPercentiles, JobOutput};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Share of the requests whose way is at most the estimate, in thousandths.
const WAY_PERMILLE: u32 = 900;
/// Inverse of the largest part of a request's time that the estimate counts.
const ESTIMATE_PART: u32 = 4;
/// Number of a model's requests of which the shortest way counts.
const RECENT: usize = 16;
/// Time after which another request of a model passes although the shortest way leaves it too
/// little.
const TRIAL: Duration = Duration::from_secs(1);

/// The measured ways of a frontend's requests.
#[derive(Default)]
pub(super) struct RequestWays {
    estimate: DelayEstimate,
    models: HashMap<ModelId, ModelWays>,
}

/// The ways of a model's requests.
#[derive(Default)]
struct ModelWays {
    /// The last ways, each with the pull of its inputs, at most [`RECENT`].
    recent: VecDeque<Duration>,
    /// Arrival of the last request that passed although the shortest way leaves it too little time.
    last_trial: Option<Instant>,
}

impl RequestWays {
    /// Returns the percentiles of the measured ways.
    pub(super) fn percentiles(&self) -> Option<DelayPercentiles> {
        self.estimate.percentiles()
    }

    /// Adds a way of a model's request, and the time that the pull of its inputs took.
    pub(super) fn add(&mut self, model: ModelId, way: Duration, pulled: Duration) {
        self.estimate.extend([way]);
        let recent = &mut self.models.entry(model).or_default().recent;
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(way + pulled);
    }

    /// Returns the time that the way of a model's request will take.
    pub(super) fn expected(&mut self, model: ModelId, came: Instant, limits: AnswerLimits) -> Duration {
        let estimate = self.estimate.quantile(WAY_PERMILLE).unwrap_or_default();
        let Some(due) = limits.due else { return estimate };
        let most = due.saturating_duration_since(came) / ESTIMATE_PART;
        let estimate = estimate.min(most);
        let known = |ways: &&mut ModelWays| ways.recent.len() == RECENT && limits.is_enforced();
        let Some(ways) = self.models.get_mut(&model).filter(known) else { return estimate };
        let Some(&shortest) = ways.recent.iter().min().filter(|shortest| **shortest > estimate) else {
            return estimate;
        };
        if shortest > most && ways.last_trial.is_none_or(|last| came >= last + TRIAL) {
            ways.last_trial = Some(came);
            return estimate;
        }
        shortest
    }
}

/// Returns the time since a request came, at `now`, that it spent neither in the scheduler nor on a
/// device; `None` if the scheduler did not report its times.
pub(super) fn measured(came: Instant, now: Instant, answered: &JobOutput) -> Option<Duration> {
    let inside = Duration::from_nanos((answered.queued + answered.executed).0.unsigned_abs());
    (answered.executed > Nanos::ZERO).then(|| now.saturating_duration_since(came).saturating_sub(inside))
}
