//! The workload of Appendix A.2 of the Symphony paper, and the baseline that it compares with.
//!
//! The paper draws variants of the models of its zoo with exponential rates, and gives neither
//! sizes nor bounds. The following choices are ours. Sizes are those that Keras Applications lists
//! for the published models, each variant up to a tenth smaller or larger. Runtime memory is a
//! quarter of the size. The bounds are 1.2 times the average rate, and 1.1 times the average memory
//! plus the largest runtime memory.

use super::partition::Partition;
use super::search::SearchRng;
use super::{
    ClusterPlan, LoadCost, PlanError, PlanOptions, PlannedModel, PlanningProblem, canonical, describe, violated_bounds,
};
use crate::instance::Instance;

/// Published models and their sizes in MB.
const SIZES: [(&str, f64); 22] = [
    ("Xception", 88.0),
    ("VGG16", 528.0),
    ("VGG19", 549.0),
    ("ResNet50", 98.0),
    ("ResNet101", 171.0),
    ("ResNet152", 232.0),
    ("InceptionV3", 92.0),
    ("InceptionResNetV2", 215.0),
    ("MobileNet", 16.0),
    ("MobileNetV2", 14.0),
    ("DenseNet121", 33.0),
    ("DenseNet169", 57.0),
    ("DenseNet201", 80.0),
    ("NASNetMobile", 23.0),
    ("NASNetLarge", 343.0),
    ("EfficientNetB0", 29.0),
    ("EfficientNetB1", 31.0),
    ("EfficientNetB2", 36.0),
    ("EfficientNetB3", 48.0),
    ("EfficientNetB4", 75.0),
    ("EfficientNetB5", 118.0),
    ("EfficientNetB6", 166.0),
];

/// Returns a problem like the ones of Appendix A.2.
pub fn problem(models: usize, sub_clusters: usize, seed: u64) -> PlanningProblem {
    let mut rng = SearchRng::new(seed);
    let models: Vec<_> = (0..models).map(|variant| model(variant, &mut rng)).collect();
    let average = |value: fn(&PlannedModel) -> f64| models.iter().map(value).sum::<f64>() / sub_clusters.max(1) as f64;
    let runtime = models.iter().map(|model| model.runtime_memory_mb).fold(0.0, f64::max);
    PlanningProblem {
        max_rate: Some(1.2 * average(|model| model.rate_rps)),
        max_memory_mb: Some(1.1 * average(|model| model.memory_mb) + runtime),
        models,
        sub_clusters,
        memory_weight: 1.0,
        current: None,
        max_disruption: None,
    }
}

/// Multiplies every model's rate by a log-normal factor whose logarithm has the standard deviation
/// `sigma`; the rate bound follows the new average.
pub fn drift(problem: &mut PlanningProblem, sigma: f64, seed: u64) {
    let mut rng = SearchRng::new(seed);
    for model in &mut problem.models {
        // Twelve uniform numbers less six are close enough to a normal one, and need no
        // trigonometry.
        let normal = (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
        model.rate_rps *= (sigma * normal).exp();
    }
    let average = problem.models.iter().map(|model| model.rate_rps).sum::<f64>() / problem.sub_clusters.max(1) as f64;
    problem.max_rate = problem.max_rate.map(|_| 1.2 * average);
}

/// The paper's baseline: the best of `draws` random partitions that keeps the bounds, if any does.
pub fn random_plan(problem: &PlanningProblem, draws: usize, seed: u64) -> Result<Option<ClusterPlan>, PlanError> {
    let instance = Instance::new(problem)?;
    let mut rng = SearchRng::new(seed);
    let draw = |_| Partition::place_each(&instance, 0..instance.models(), |_, _| rng.below(instance.sub_clusters));
    let kept = (0..draws).map(draw).filter(|partition| violated_bounds(partition).is_none());
    let best = kept.min_by(|a, b| a.score().objective.total_cmp(&b.score().objective));
    Ok(best.map(|partition| describe(&canonical(&partition))))
}

/// Returns the problem with a plan as its current partition, as after the plan was carried out.
pub fn with_current(problem: &PlanningProblem, plan: &ClusterPlan) -> PlanningProblem {
    PlanningProblem { current: Some(plan.places.iter().copied().map(Some).collect()), ..problem.clone() }
}

/// Returns options for a short search, for tests that plan often.
pub fn quick_options(seed: u64) -> PlanOptions {
    PlanOptions { seed, proposals: 50_000, ..PlanOptions::default() }
}

fn model(variant: usize, rng: &mut SearchRng) -> PlannedModel {
    let (base, size) = SIZES[rng.below(SIZES.len())];
    let memory_mb = size * (0.9 + 0.2 * rng.unit());
    PlannedModel {
        name: format!("{base}-{variant}"),
        rate_rps: -100.0 * (1.0 - rng.unit()).ln(),
        memory_mb,
        runtime_memory_mb: memory_mb / 4.0,
        load_cost: LoadCost::Everywhere(1),
    }
}
