//! When answers of a model are due, and what becomes of those that are not in time.
//!
//! An owner who names a latency target wants it kept: what cannot be in time is refused, so that what can stays in time. One who
//! names none wants answers, however long they take. The scheduler plans by deadlines all the same, so such a model has a target
//! that follows from its profile, by which requests are ordered and batches sized, and late answers counted; nothing is refused for it.

use super::config::ModelConfig;
use ripieno_base::Nanos;
use ripieno_executor::BlockProfile;
use ripieno_model::{DropRule, Profile};

/// The latency target that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// So much, and by whom it is said.
    Said(Nanos, Origin),
    /// So much waiting, and the time of a full batch.
    Wait(Nanos),
    /// None.
    Unsaid,
}

/// Where a latency target comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Of whoever runs the program.
    Given,
    /// `slo_ms`
    Owner,
    /// The published latencies of the model.
    Published,
    /// `queue_timeout_ms`, and the time of a full batch.
    QueueTimeout,
    /// The model's profile.
    Profile,
}

/// The latency target of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    /// From arrival to answer.
    pub span: Nanos,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether a request that misses it is answered all the same.
    pub answer_late: bool,
}

/// How many batches' time a target from the profile is: one batch may have to wait for another that has just begun, and a third
/// stands for what is not as planned.
const BATCHES: i64 = 3;
/// The least target from a profile; below it a scheduler's and a network's own delays decide.
const LEAST: Nanos = Nanos::from_millis(10);
/// The largest.
const MOST: Nanos = Nanos::from_millis(86_400_000);
/// A batch is large enough if it answers this share of the rows a second that any size does.
const GOOD_ENOUGH: f64 = 0.95;
/// A model without a target of its own queues so much work.
const QUEUED: Nanos = Nanos::from_millis(30_000);
/// And as many full batches, and requests, however long they take.
const QUEUED_BATCHES: usize = 4;
const QUEUED_REQUESTS: usize = 64;

impl Origin {
    /// The key that changes it.
    pub fn key(self) -> &'static str {
        match self {
            Origin::Given => "the SLO given on the command line",
            Origin::Owner | Origin::Published => "its slo_ms",
            Origin::QueueTimeout => "its queue_timeout_ms and a full batch",
            Origin::Profile => "derived from its profile",
        }
    }
}

impl Wanted {
    /// The target, given what the blocks cost; none where that matters and is not known.
    pub fn settle(self, config: &ModelConfig, max_batch: usize, profiles: Option<&[BlockProfile]>) -> Option<Slo> {
        let total = || profiles.map(|blocks| Profile::sum(blocks.iter().map(|block| &block.profile)));
        let steps = config.cells.as_ref().map_or(1, |cells| i64::from(cells.max_length.max(1)));
        let (span, origin) = match self {
            Wanted::Said(span, origin) => (span, origin),
            Wanted::Wait(wait) => {
                let total = total()?;
                (wait + total.latency(max_batch.min(total.max_batch())) * steps, Origin::QueueTimeout)
            }
            Wanted::Unsaid => (derived(&total()?, max_batch, steps), Origin::Profile),
        };
        // Who says when requests are to be given up wants that.
        let gives_up = matches!(config.drop, Some(DropRule::Hopeless | DropRule::Expired));
        let answer_late = config.answer_late.unwrap_or(self == Wanted::Unsaid && !gives_up);
        Some(Slo { span: span.min(MOST), origin, answer_late })
    }
}

/// In whole milliseconds, so that it is hardly another one each time that the model is measured.
fn derived(total: &Profile, max_batch: usize, steps: i64) -> Nanos {
    let batch = best_batch(total).min(max_batch);
    let span = Nanos(total.latency(batch).0.saturating_mul(BATCHES).saturating_mul(steps));
    let millis = span.clamp(LEAST, MOST).as_millis_f64().ceil();
    Nanos::from_millis_f64(millis)
}

/// The smallest batch size, of those that are measured, beyond which larger batches hardly yield more rows a second: they
/// would only make requests wait. A loaded machine measures the sizes unevenly; `max_batch` in the [[block]] settles it.
pub(super) fn best_batch(profile: &Profile) -> usize {
    let doubled = std::iter::successors(Some(1_usize), |size| size.checked_mul(2));
    let sizes = || doubled.clone().take_while(|&size| size < profile.max_batch()).chain([profile.max_batch()]);
    let rate = |size: usize| size as f64 / profile.latency(size).as_millis_f64();
    let best = sizes().map(rate).fold(0.0, f64::max);
    sizes().find(|&size| rate(size) >= GOOD_ENOUGH * best).unwrap_or(profile.max_batch())
}

/// The queue bound of a model that names none. Where late requests wait for their answers, whatever is in the queue will run, and
/// a policy that does not look at deadlines lets others wait for it: so it is bounded in time, too.
pub(super) fn queue_bound(config: &ModelConfig, slo: Slo, total: &Profile, most: usize) -> usize {
    if slo.origin != Origin::Profile || !slo.answer_late {
        return most;
    }
    let largest = total.max_batch();
    let steps = config.cells.as_ref().map_or(1, |cells| i64::from(cells.max_length.max(1)));
    let each = (total.latency(largest).0.saturating_mul(steps) / largest as i64).max(1);
    let in_time = usize::try_from(QUEUED.0 / each).unwrap_or(most);
    in_time.max(QUEUED_BATCHES * largest).max(QUEUED_REQUESTS).min(most)
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

    fn settle(wanted: Wanted, text: &str, blocks: &[BlockProfile]) -> (f64, bool) {
        let slo = wanted.settle(&config(text), 32, Some(blocks)).unwrap();
        (slo.span.as_millis_f64(), slo.answer_late)
    }

    #[test]
    fn a_target_that_is_said_is_kept_and_one_that_is_not_is_not() {
        let said = Wanted::Said(Nanos::from_millis(25), Origin::Owner);
        let slow = blocks(170.0, 8.0);
        assert_eq!(settle(said, "", &slow), (25.0, false));
        assert_eq!(settle(said, "late = \"answer\"", &slow), (25.0, true));
        assert_eq!(settle(Wanted::Unsaid, "", &slow), (534.0, true));
        assert_eq!(settle(Wanted::Unsaid, "late = \"refuse\"", &slow), (534.0, false));
        assert_eq!(settle(Wanted::Unsaid, "drop = \"hopeless\"", &slow), (534.0, false));
        assert_eq!(settle(Wanted::Unsaid, "drop = \"never\"", &slow), (534.0, true));
        assert_eq!(Wanted::Unsaid.settle(&config(""), 32, None), None);
        assert!(said.settle(&config(""), 32, None).is_some());
    }

    #[test]
    fn a_derived_target_has_room_for_batches_that_pay() {
        // A batch of 32 takes 9.2 ms and answers 7 times what single rows do.
        let batched = blocks(0.1, 6.0);
        assert_eq!(settle(Wanted::Unsaid, "", &batched), (28.0, true));
        assert_eq!(settle(Wanted::Unsaid, "", &blocks(0.001, 0.01)), (10.0, true));
    }

    #[test]
    fn a_queue_timeout_leaves_time_to_run() {
        let wait = Wanted::Wait(Nanos::from_millis(5));
        assert_eq!(settle(wait, "", &blocks(1.0, 3.0)), (40.0, false));
        assert_eq!(settle(wait, "late = \"answer\"", &blocks(1.0, 3.0)), (40.0, true));
    }

    #[test]
    fn who_is_answered_late_queues_for_a_bounded_time() {
        let bound = |text: &str, alpha_ms: f64, wanted: Wanted| {
            let (config, blocks) = (config(text), blocks(alpha_ms, 0.0));
            let slo = wanted.settle(&config, 32, Some(&blocks)).unwrap();
            queue_bound(&config, slo, &blocks[0].profile, 1000)
        };
        assert_eq!(bound("", 1.0, Wanted::Unsaid), 1000);
        assert_eq!(bound("", 100.0, Wanted::Unsaid), 300);
        assert_eq!(bound("", 10_000.0, Wanted::Unsaid), 128);
        assert_eq!(bound("late = \"refuse\"", 100.0, Wanted::Unsaid), 1000);
        assert_eq!(bound("", 100.0, Wanted::Said(Nanos::from_millis(9), Origin::Owner)), 1000);
    }
}
