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
//! A request that a backend leaves out of a batch, since its inputs come too late, counts as a way
//! of the time that they take. The second number needs measurements while it refuses all requests,
//! so one passes each second.

use super::pending::AnswerLimits;
use ripieno_base::{ModelId, Nanos};
use ripieno_runtime::{DelayEstimate, DelayPercentiles, JobOutput, SlowLink};
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
/// Time for which a refusal is shown to operators.
const REFUSAL_SHOWN: Duration = Duration::from_secs(10);

/// The measured ways of a frontend's requests.
#[derive(Default)]
pub(super) struct RequestWays {
    estimate: DelayEstimate,
    models: HashMap<ModelId, ModelWays>,
}

/// The ways of a model's requests.
#[derive(Default)]
struct ModelWays {
    /// The last ways, at most [`RECENT`].
    recent: VecDeque<MeasuredWay>,
    /// The last refusal for which a way was the reason.
    last_refusal: Option<(Instant, ExpectedWay)>,
    /// Arrival of the last request that passed although the shortest way leaves it too little time.
    last_trial: Option<Instant>,
}

/// The way of a request.
#[derive(Clone, Copy, Debug)]
struct MeasuredWay {
    /// Time of the messages.
    messages: Duration,
    /// Time for which the device waited for the inputs.
    inputs: Duration,
}

/// The expected way of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedWay {
    /// The time of the way.
    pub(super) span: Duration,
    /// The link that takes most of it, if each of a model's last requests took as long.
    pub(super) link: Option<SlowLink>,
}

impl MeasuredWay {
    fn total(self) -> Duration {
        self.messages + self.inputs
    }

    fn link(self) -> SlowLink {
        if self.inputs > self.messages { SlowLink::Inputs } else { SlowLink::Messages }
    }
}

impl ModelWays {
    fn add(&mut self, way: MeasuredWay) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(way);
    }
}

impl RequestWays {
    /// Returns the percentiles of the measured ways.
    pub(super) fn percentiles(&self) -> Option<DelayPercentiles> {
        self.estimate.percentiles()
    }

    /// Adds a way of a model's request, and the time that the pull of its inputs took.
    pub(super) fn add(&mut self, model: ModelId, way: Duration, pulled: Duration) {
        self.estimate.extend([way]);
        self.models.entry(model).or_default().add(MeasuredWay { messages: way, inputs: pulled });
    }

    /// Adds a request of a model that a backend left out, since its inputs take this long.
    pub(super) fn add_slow_inputs(&mut self, model: ModelId, inputs: Duration) {
        self.models.entry(model).or_default().add(MeasuredWay { messages: Duration::ZERO, inputs });
    }

    /// Notes that a request of a model was refused at `now`, since its way left it no time.
    pub(super) fn on_refused(&mut self, model: ModelId, now: Instant, way: ExpectedWay) {
        self.models.entry(model).or_default().last_refusal = Some((now, way));
    }

    /// Returns the way for which a model's request was refused in the last seconds.
    pub(super) fn refused(&self, model: ModelId, now: Instant) -> Option<ExpectedWay> {
        let (at, way) = self.models.get(&model)?.last_refusal?;
        (now.saturating_duration_since(at) < REFUSAL_SHOWN).then_some(way)
    }

    /// Returns the way that a model's request will have.
    pub(super) fn expected(&mut self, model: ModelId, came: Instant, limits: AnswerLimits) -> ExpectedWay {
        let estimate = self.estimate.quantile(WAY_PERMILLE).unwrap_or_default();
        let Some(due) = limits.due else { return ExpectedWay { span: estimate, link: None } };
        let most = due.saturating_duration_since(came) / ESTIMATE_PART;
        let estimate = ExpectedWay { span: estimate.min(most), link: None };
        let known = |ways: &&mut ModelWays| ways.recent.len() == RECENT && limits.is_enforced();
        let Some(ways) = self.models.get_mut(&model).filter(known) else { return estimate };
        let Some(shortest) = ways.recent.iter().min_by_key(|way| way.total()) else { return estimate };
        let (span, link) = (shortest.total(), Some(shortest.link()));
        if span <= estimate.span {
            return estimate;
        }
        if span > most && ways.last_trial.is_none_or(|last| came >= last + TRIAL) {
            ways.last_trial = Some(came);
            return estimate;
        }
        ExpectedWay { span, link }
    }
}

/// Returns the time since a request came, at `now`, that it spent neither in the scheduler nor on a
/// device; `None` if the scheduler did not report its times.
pub(super) fn measured(came: Instant, now: Instant, answered: &JobOutput) -> Option<Duration> {
    let inside = Duration::from_nanos((answered.queued + answered.executed).0.unsigned_abs());
    (answered.executed > Nanos::ZERO).then(|| now.saturating_duration_since(came).saturating_sub(inside))
}
