//! The largest batch of a model whose `model.toml` names none.
//!
//! Up to [`DEFAULT_MAX_BATCH`](super::config::DEFAULT_MAX_BATCH) rows every size is allowed: larger
//! requests are then not split. Beyond it the size doubles as long as a doubled batch answers
//! noticeably more rows a second, runs in the time that the SLO leaves, and fits in memory.

use super::load::Loader;
use super::plan::{LoadPlan, LoadTarget};
use super::slo::SloSetting;
use ripieno_base::Nanos;
use ripieno_executor::{BlockProfile, LoadedModel, TrialRequest, time_batch};
use ripieno_model::{Profile, TensorSpec, Walk};
use std::sync::Arc;

/// Sizes that may be found, the largest first. More rows would mostly wait for each other, and each
/// decision of a policy may look at all sizes.
pub(super) const FOUND_SIZES: [usize; 3] = [256, 128, 64];
/// Gain in rows per second of a doubled batch from which it is worth its latency, in percent.
const GAIN_PERCENT: i64 = 5;
/// Longest batch of a model without an SLO.
const LONGEST_UNASKED: Nanos = Nanos::from_millis(50);
/// Largest size of the inputs and outputs of a batch.
const MAX_BATCH_BYTES: i64 = 256 << 20;

impl Loader {
    /// Returns the largest batch worth its latency, if it is above the plan's, which has been
    /// measured.
    pub(super) fn larger_batch(
        &self,
        target: &LoadTarget,
        plan: &LoadPlan,
        example: Option<&TrialRequest>,
        measured: &[BlockProfile],
    ) -> Option<usize> {
        let profile = Profile::sum(measured.iter().map(|block| &block.profile));
        let smallest = plan.source.max_batch;
        let limit = match plan.slo {
            SloSetting::Target(span, _) => Nanos(span.0 / 2),
            SloSetting::QueueTimeout(wait) => wait,
            SloSetting::Unset => LONGEST_UNASKED,
        };
        let gains = |(small, took): (usize, Nanos), (large, takes): (usize, Nanos)| {
            i128::from(took.0) * large as i128 * 100
                >= i128::from(takes.0) * small as i128 * i128::from(100 + GAIN_PERCENT)
        };
        let half = smallest / 2;
        let mut last = (smallest, profile.latency(smallest));
        if half == 0 || !gains((half, profile.latency(half)), last) || last.1 > limit {
            return None;
        }
        let mut source = plan.source.clone();
        source.max_batch = FOUND_SIZES[0];
        source.batch_sizes = plan.batch_sizes(source.max_batch, target);
        let loaded = target.engine.load(&source).ok()?;
        let inputs = example.map(|example| Arc::clone(&example.inputs));
        let row = row_bytes(&*loaded, example);
        let _one_at_a_time = self.measuring.lock();
        let _nothing_beside = self.without_trials();
        for &size in FOUND_SIZES.iter().rev().filter(|&&size| size > smallest) {
            if row.saturating_mul(size as i64) > MAX_BATCH_BYTES {
                break;
            }
            let Ok(takes) = time_batch(&*target.engine, &loaded, inputs.clone(), size) else { break };
            if takes > limit || !gains(last, (size, takes)) {
                break;
            }
            last = (size, takes);
        }
        (last.0 > smallest).then_some(last.0)
    }
}

/// Returns whether the largest batch of a model is to be found.
pub(super) fn is_open(plan: &LoadPlan, loaded: &dyn LoadedModel) -> bool {
    let source = &plan.source;
    let is_plain = source.blocks.len() == 1 && source.walk == Walk::Whole && source.isolation.is_none();
    is_plain
        && plan.config.max_batch.is_none()
        && loaded.batched()
        && loaded.lengths().is_none()
        && source.max_batch > 1
}

/// Returns the bytes of a row's inputs and outputs; open dimensions of outputs count as one.
fn row_bytes(model: &dyn LoadedModel, example: Option<&TrialRequest>) -> i64 {
    let bytes = |spec: &TensorSpec| {
        let elements = spec.shape.iter().skip(1).fold(1_i64, |all, &size| all.saturating_mul(size.max(1)));
        elements.saturating_mul(spec.datatype.size().unwrap_or(4) as i64)
    };
    let inputs = match example {
        Some(example) => example.inputs.iter().map(|input| input.data.len() as i64).sum(),
        None => model.inputs().iter().map(bytes).fold(0, i64::saturating_add),
    };
    model.outputs().iter().map(bytes).fold(inputs, i64::saturating_add)
}
