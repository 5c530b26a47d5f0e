//! Latency target of a model, and the treatment of requests that miss it.
//!
//! A configured target is enforced: requests that cannot meet it are refused, so that the others
//! can. Without one, every request is answered, however late. The scheduler plans by deadlines in
//! any case, so such a model gets a target derived from its profile. It orders requests, sizes
//! batches and counts late answers; no request is refused because of it.

use super::config::ModelConfig;
use ripieno_base::Nanos;
use ripieno_executor::BlockProfile;
use ripieno_model::{DropRule, Profile};

/// Configured latency target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SloSetting {
    /// A latency target and its source.
    Target(Nanos, SloOrigin),
    /// A maximum queueing time; the target adds the time of a full batch.
    QueueTimeout(Nanos),
    /// No configured target.
    Unset,
}

/// Source of a latency target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SloOrigin {
    /// The command line.
    Given,
    /// `slo_ms`
    Owner,
    /// The published latencies of the model.
    Published,
    /// `queue_timeout_ms` and the time of a full batch.
    QueueTimeout,
    /// The model's profile.
    Profile,
}

/// Latency target of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    /// Maximum time from arrival to answer.
    pub span: Nanos,
    /// Source of the target.
    pub origin: SloOrigin,
    /// Whether a request that misses the target is still answered.
    pub answer_late: bool,
}

/// Derived target, in batch durations: a request may wait for a batch that has just begun, runs in
/// its own, and has one more as reserve.
const TARGET_BATCHES: i64 = 3;
/// Lower bound on a derived target; below it, scheduling and network delays dominate.
const MIN_TARGET: Nanos = Nanos::from_millis(10);
/// Upper bound on a latency target.
const MAX_TARGET: Nanos = Nanos::from_millis(86_400_000);
/// Share of the maximum row rate at which a batch size counts as large enough.
const GOOD_RATE_SHARE: f64 = 0.95;
/// Amount of work that may be queued for a model without a configured target.
const MAX_QUEUED_WORK: Nanos = Nanos::from_millis(30_000);
/// Minimum queue bound, in full batches and in requests, however long they take.
const MIN_QUEUED_BATCHES: usize = 4;
const MIN_QUEUED_REQUESTS: usize = 64;

impl SloOrigin {
    /// Returns the setting that determines the target, for messages.
    pub fn key(self) -> &'static str {
        match self {
            SloOrigin::Given => "the SLO given on the command line",
            SloOrigin::Owner | SloOrigin::Published => "its slo_ms",
            SloOrigin::QueueTimeout => "its queue_timeout_ms and a full batch",
            SloOrigin::Profile => "derived from its profile",
        }
    }
}

impl SloSetting {
    /// Returns the target, given the costs of the blocks; `None` if it depends on an unknown
    /// profile.
    pub fn resolve(self, config: &ModelConfig, max_batch: usize, profiles: Option<&[BlockProfile]>) -> Option<Slo> {
        let total = || profiles.map(|blocks| Profile::sum(blocks.iter().map(|block| &block.profile)));
        let steps = config.cells.as_ref().map_or(1, |cells| i64::from(cells.max_length.max(1)));
        let (span, origin) = match self {
            SloSetting::Target(span, origin) => (span, origin),
            SloSetting::QueueTimeout(wait) => {
                let total = total()?;
                (wait + total.latency(max_batch.min(total.max_batch())) * steps, SloOrigin::QueueTimeout)
            }
            SloSetting::Unset => (derived(&total()?, max_batch, steps), SloOrigin::Profile),
        };
        // An explicit drop rule disables late answers.
        let gives_up = matches!(config.drop, Some(DropRule::Hopeless | DropRule::Expired));
        let answer_late = config.answer_late.unwrap_or(self == SloSetting::Unset && !gives_up);
        Some(Slo { span: span.min(MAX_TARGET), origin, answer_late })
    }
}

/// Derives a target from the profile, in whole milliseconds so that it is stable across
/// measurements.
fn derived(total: &Profile, max_batch: usize, steps: i64) -> Nanos {
    let batch = best_batch(total).min(max_batch);
    let span = Nanos(total.latency(batch).0.saturating_mul(TARGET_BATCHES).saturating_mul(steps));
    let millis = span.clamp(MIN_TARGET, MAX_TARGET).as_millis_f64().ceil();
    Nanos::from_millis_f64(millis)
}

/// Returns the smallest measured batch size that reaches 95 % of the maximum row rate; larger
/// batches would mainly add waiting. Measurements on a busy machine vary; `max_batch` in the
/// [[block]] fixes the size.
pub(super) fn best_batch(profile: &Profile) -> usize {
    let doubled = std::iter::successors(Some(1_usize), |size| size.checked_mul(2));
    let sizes = || doubled.clone().take_while(|&size| size < profile.max_batch()).chain([profile.max_batch()]);
    let rate = |size: usize| size as f64 / profile.latency(size).as_millis_f64();
    let best = sizes().map(rate).fold(0.0, f64::max);
    sizes().find(|&size| rate(size) >= GOOD_RATE_SHARE * best).unwrap_or(profile.max_batch())
}

/// Returns the bound on the queued device time of a model, if it has one: neither target nor
/// `max_queue` is configured. Where late requests are answered, everything in the queue will run,
/// and a policy that ignores deadlines makes other models wait for it.
pub(super) fn queued_work_bound(config: &ModelConfig, slo: Slo, total: &Profile) -> Option<Nanos> {
    if slo.origin != SloOrigin::Profile || !slo.answer_late || config.max_queue.is_some() {
        return None;
    }
    let largest = total.max_batch();
    let steps = config.cells.as_ref().map_or(1, |cells| i64::from(cells.max_length.max(1)));
    let each = (total.latency(largest).0.saturating_mul(steps) / largest as i64).max(1);
    let requests = (MIN_QUEUED_BATCHES * largest).max(MIN_QUEUED_REQUESTS);
    Some(MAX_QUEUED_WORK.max(Nanos(each.saturating_mul(requests as i64))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> ModelConfig {
        ModelConfig::parse("m/model.toml", text).unwrap()
    }

    fn blocks(alpha_ms: f64, beta_ms: f64) -> Vec<BlockProfile> {
        vec![BlockProfile { profile: Profile::linear(alpha_ms, beta_ms, 32).unwrap(), lengths: None }]
    }

    fn settle(wanted: SloSetting, text: &str, blocks: &[BlockProfile]) -> (f64, bool) {
        let slo = wanted.resolve(&config(text), 32, Some(blocks)).unwrap();
        (slo.span.as_millis_f64(), slo.answer_late)
    }

    #[test]
    fn a_target_that_is_said_is_kept_and_one_that_is_not_is_not() {
        let said = SloSetting::Target(Nanos::from_millis(25), SloOrigin::Owner);
        let slow = blocks(170.0, 8.0);
        assert_eq!(settle(said, "", &slow), (25.0, false));
        assert_eq!(settle(said, "late = \"answer\"", &slow), (25.0, true));
        assert_eq!(settle(SloSetting::Unset, "", &slow), (534.0, true));
        assert_eq!(settle(SloSetting::Unset, "late = \"refuse\"", &slow), (534.0, false));
        assert_eq!(settle(SloSetting::Unset, "drop = \"hopeless\"", &slow), (534.0, false));
        assert_eq!(settle(SloSetting::Unset, "drop = \"never\"", &slow), (534.0, true));
        assert_eq!(SloSetting::Unset.resolve(&config(""), 32, None), None);
        assert!(said.resolve(&config(""), 32, None).is_some());
    }

    #[test]
    fn a_derived_target_has_room_for_batches_that_pay() {
        // A batch of 32 takes 9.2 ms and answers 7 times as many rows per second as single rows do.
        let batched = blocks(0.1, 6.0);
        assert_eq!(settle(SloSetting::Unset, "", &batched), (28.0, true));
        assert_eq!(settle(SloSetting::Unset, "", &blocks(0.001, 0.01)), (10.0, true));
    }

    #[test]
    fn a_queue_timeout_leaves_time_to_run() {
        let wait = SloSetting::QueueTimeout(Nanos::from_millis(5));
        assert_eq!(settle(wait, "", &blocks(1.0, 3.0)), (40.0, false));
        assert_eq!(settle(wait, "late = \"answer\"", &blocks(1.0, 3.0)), (40.0, true));
    }

    #[test]
    fn late_answers_queue_for_a_bounded_time() {
        let bound = |text: &str, alpha_ms: f64, wanted: SloSetting| {
            let (config, blocks) = (config(text), blocks(alpha_ms, 0.0));
            let slo = wanted.resolve(&config, 32, Some(&blocks)).unwrap();
            queued_work_bound(&config, slo, &blocks[0].profile).map(|work| work.as_millis_f64())
        };
        assert_eq!(bound("", 1.0, SloSetting::Unset), Some(30_000.0));
        assert_eq!(bound("", 10_000.0, SloSetting::Unset), Some(1_280_000.0));
        assert_eq!(bound("max_queue = 50", 1.0, SloSetting::Unset), None);
        assert_eq!(bound("late = \"refuse\"", 100.0, SloSetting::Unset), None);
        assert_eq!(bound("", 100.0, SloSetting::Target(Nanos::from_millis(9), SloOrigin::Owner)), None);
    }
}
