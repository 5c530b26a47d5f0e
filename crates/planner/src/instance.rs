//! A problem with every number checked and scaled to integers, in millionths.
//!
//! Sums are integers, so that removing a model from a sub-cluster and adding it again leaves the
//! sums unchanged: a search makes millions of such steps, and with drifting sums its result would
//! depend on its path. Floats appear only in scores, each computed from integers with +, − and ×,
//! which give the same bits on every machine.

use super::error::PlanError;
use super::{LoadCost, PlanningProblem};
use std::collections::BTreeSet;

/// Upper bound on the number of models: indices are kept in 32 bits, and a larger partition takes
/// minutes, not seconds.
const MAX_MODELS: usize = 100_000;
/// Upper bound on the sum of one kind of number, in its own unit; in millionths it fits 63 bits.
const MAX_TOTAL: f64 = 1e12;
/// Penalty for exceeding a bound by its own size, against deviations that are at most about 1. No
/// larger than necessary: a higher wall keeps the search from getting from one valid partition to
/// the next.
pub(super) const VIOLATION_WEIGHT: f64 = 10.0;

/// A checked problem.
#[derive(Debug)]
pub(super) struct Instance<'a> {
    pub(super) problem: &'a PlanningProblem,
    pub(super) rate: Amounts,
    pub(super) memory: Amounts,
    /// Memory that a model needs only while it runs; one model runs at a time on a device.
    pub(super) runtime: Vec<i64>,
    pub(super) sub_clusters: usize,
    pub(super) max_disruption: u64,
    memory_weight_squared: f64,
}

/// One number per model, with its bound per sub-cluster.
#[derive(Debug)]
pub(super) struct Amounts {
    pub(super) each: Vec<i64>,
    total: i64,
    bound: i64,
    /// Number of sub-clusters divided by the total: converts a sub-cluster's sum to a multiple of
    /// the average. 0 if the total is 0.
    scale: f64,
}

impl<'a> Instance<'a> {
    /// Checks a problem, and refuses those that evidently have no solution.
    pub(super) fn new(problem: &'a PlanningProblem) -> Result<Instance<'a>, PlanError> {
        check_counts(problem)?;
        let column = |key, value: fn(&super::PlannedModel) -> f64| millionths_of(problem, key, value);
        let rate = column("rate", |model| model.rate_rps)?;
        let memory = column("memory_mb", |model| model.memory_mb)?;
        let runtime = column("runtime_memory_mb", |model| model.runtime_memory_mb)?;
        if !(problem.memory_weight.is_finite() && problem.memory_weight >= 0.0) {
            return Err(PlanError::BadLimit { key: "memory_weight", value: problem.memory_weight });
        }
        let instance = Instance {
            problem,
            rate: Amounts::new(rate, bound("max_rate", problem.max_rate)?, problem.sub_clusters),
            memory: Amounts::new(memory, bound("memory_mb_per_device", problem.max_memory_mb)?, problem.sub_clusters),
            runtime,
            sub_clusters: problem.sub_clusters,
            max_disruption: problem.max_disruption.unwrap_or(u64::MAX),
            memory_weight_squared: problem.memory_weight * problem.memory_weight,
        };
        instance.check_each()?;
        instance.check_totals()?;
        instance.check_current()?;
        Ok(instance)
    }

    pub(super) fn models(&self) -> usize {
        self.runtime.len()
    }

    /// Returns the current sub-cluster of a model.
    pub(super) fn current(&self, model: usize) -> Option<usize> {
        self.problem.current.as_ref().and_then(|places| places[model])
    }

    /// Returns the cost of having this model there: zero if it is there already, otherwise
    /// unloading it in its current place and loading it in the new one.
    pub(super) fn disruption(&self, model: usize, place: usize) -> u64 {
        let cost = |place| self.problem.models[model].load_cost.at(place);
        match (&self.problem.current, self.current(model)) {
            (None, _) => 0,
            (_, Some(now)) if now == place => 0,
            (_, now) => cost(place).saturating_add(now.map_or(0, cost)),
        }
    }

    /// Returns the badness of a sub-cluster with these sums: squared deviations from the averages,
    /// and a penalty for exceeded bounds. A search lowers the sum over sub-clusters, which has a
    /// slope where the objective, a maximum, is flat.
    pub(super) fn badness(&self, rate: i64, memory: i64, runtime: i64) -> f64 {
        let (rate_off, memory_off) = (self.rate.deviation(rate), self.memory.deviation(memory));
        let broken = self.violation(rate, memory, runtime);
        let penalty = if broken > 0.0 { VIOLATION_WEIGHT * (broken + broken * broken) } else { 0.0 };
        rate_off * rate_off + self.memory_weight_squared * memory_off * memory_off + penalty
    }

    /// Returns the amount by which a sub-cluster exceeds its bounds, in multiples of the bound; 0
    /// if it keeps them.
    pub(super) fn violation(&self, rate: i64, memory: i64, runtime: i64) -> f64 {
        let (memory_excess, rate_excess) = (memory + runtime - self.memory.bound, rate - self.rate.bound);
        if memory_excess <= 0 && rate_excess <= 0 {
            return 0.0;
        }
        let share = |excess: i64, most: i64| if excess > 0 { excess as f64 / most.max(1) as f64 } else { 0.0 };
        share(memory_excess, self.memory.bound) + share(rate_excess, self.rate.bound)
    }

    fn check_each(&self) -> Result<(), PlanError> {
        for (index, model) in self.problem.models.iter().enumerate() {
            let needed = self.memory.each[index] + self.runtime[index];
            if needed > self.memory.bound {
                let key = "memory_mb + runtime_memory_mb";
                let (needed, limit) = (units(needed), units(self.memory.bound));
                return Err(PlanError::ModelTooLarge { model: model.name.clone(), key, needed, limit });
            }
            if self.rate.each[index] > self.rate.bound {
                let (rate, limit) = (model.rate_rps, units(self.rate.bound));
                return Err(PlanError::ModelTooBusy { model: model.name.clone(), rate, limit });
            }
        }
        Ok(())
    }

    fn check_totals(&self) -> Result<(), PlanError> {
        self.rate.check("max_rate", "requests/s", self.sub_clusters)?;
        self.memory.check("memory_mb_per_device", "MB", self.sub_clusters)
    }

    fn check_current(&self) -> Result<(), PlanError> {
        let Some(places) = &self.problem.current else { return Ok(()) };
        let models = &self.problem.models;
        if places.len() != models.len() {
            return Err(PlanError::CurrentLength { given: places.len(), models: models.len() });
        }
        let sub_clusters = self.sub_clusters;
        for (model, place) in models.iter().zip(places) {
            if let &Some(sub_cluster) = place
                && sub_cluster >= sub_clusters
            {
                return Err(PlanError::CurrentPlace { model: model.name.clone(), sub_cluster, sub_clusters });
            }
        }
        let fewest = |model: usize| (0..sub_clusters).map(|place| self.disruption(model, place)).min().unwrap_or(0);
        let needed = (0..models.len()).map(fewest).fold(0, u64::saturating_add);
        let limit = self.max_disruption;
        if needed > limit { Err(PlanError::DisruptionTooSmall { limit, needed }) } else { Ok(()) }
    }
}

impl Amounts {
    fn new(each: Vec<i64>, most: i64, sub_clusters: usize) -> Amounts {
        let total: i64 = each.iter().sum();
        let scale = if total > 0 { sub_clusters as f64 / total as f64 } else { 0.0 };
        Amounts { each, total, bound: most, scale }
    }

    /// Returns the deviation of a sub-cluster's sum from the average, in multiples of it; 0 if all
    /// amounts are 0.
    pub(super) fn deviation(&self, sum: i64) -> f64 {
        if self.scale > 0.0 { sum as f64 * self.scale - 1.0 } else { 0.0 }
    }

    /// Returns a model's amount as a multiple of the average sub-cluster.
    pub(super) fn share(&self, model: usize) -> f64 {
        self.each[model] as f64 * self.scale
    }

    fn check(&self, key: &'static str, unit: &'static str, sub_clusters: usize) -> Result<(), PlanError> {
        let room = i128::from(self.bound) * sub_clusters as i128;
        if i128::from(self.total) <= room {
            return Ok(());
        }
        let at_least = self.total.div_euclid(self.bound.max(1)) + i64::from(self.total % self.bound.max(1) > 0);
        let (room, needed) = (room as f64 / 1e6, units(self.total));
        Err(PlanError::TooSmall { key, unit, sub_clusters, room, needed, at_least: at_least as usize })
    }
}

/// Converts a sum back to its own unit.
pub(super) fn units(millionths: i64) -> f64 {
    millionths as f64 / 1e6
}

fn check_counts(problem: &PlanningProblem) -> Result<(), PlanError> {
    let (models, sub_clusters) = (problem.models.len(), problem.sub_clusters);
    match (models, sub_clusters) {
        (0, _) => return Err(PlanError::NoModels),
        (_, 0) => return Err(PlanError::NoSubClusters),
        _ if models > MAX_MODELS => return Err(PlanError::TooManyModels { given: models, most: MAX_MODELS }),
        _ if sub_clusters > models => return Err(PlanError::TooManySubClusters { sub_clusters, models }),
        _ => {}
    }
    let mut names = BTreeSet::new();
    for model in &problem.models {
        if !names.insert(model.name.as_str()) {
            return Err(PlanError::DuplicateName { name: model.name.clone() });
        }
        if let LoadCost::BySubCluster(costs) = &model.load_cost
            && costs.len() != sub_clusters
        {
            return Err(PlanError::LoadCosts { model: model.name.clone(), given: costs.len(), sub_clusters });
        }
    }
    Ok(())
}

fn millionths_of(
    problem: &PlanningProblem,
    key: &'static str,
    value: fn(&super::PlannedModel) -> f64,
) -> Result<Vec<i64>, PlanError> {
    let bad = |model: &&super::PlannedModel| !(value(model).is_finite() && value(model) >= 0.0);
    if let Some(model) = problem.models.iter().find(bad) {
        return Err(PlanError::BadNumber { model: model.name.clone(), key, value: value(model) });
    }
    let total: f64 = problem.models.iter().map(value).sum();
    if total > MAX_TOTAL {
        return Err(PlanError::TooLarge { key, total, most: MAX_TOTAL });
    }
    Ok(problem.models.iter().map(|model| millionths(value(model))).collect())
}

fn bound(key: &'static str, given: Option<f64>) -> Result<i64, PlanError> {
    match given {
        // Never reached, and small enough that sums do not overflow.
        None => Ok(i64::MAX / 2),
        Some(value) if value.is_finite() && value >= 0.0 => Ok(millionths(value).min(i64::MAX / 2)),
        Some(value) => Err(PlanError::BadLimit { key, value }),
    }
}

fn millionths(value: f64) -> i64 {
    (value * 1e6).round() as i64
}
