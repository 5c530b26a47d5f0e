//! A problem with every number checked and counted in whole millionths.
//!
//! Sums are integers, so that taking a model out of a sub-cluster and putting it back leaves the sums as they were: a
//! search makes millions of such steps, and drifting sums would make its answer hang on its path. Floats appear only in
//! scores, each computed anew from integers with +, − and ×, which give the same bits on every machine.

use super::error::PlanError;
use super::{LoadCost, Problem};
use std::collections::BTreeSet;

/// Models beyond this are refused: their indices are kept in 32 bits, and a partition of more takes minutes, not seconds.
const MOST_MODELS: usize = 100_000;
/// The most that one kind of number may add up to, in its own unit; a millionth of it still counts in 63 bits.
const MOST_TOTAL: f64 = 1e12;
/// What breaking a bound by its own size costs, beside deviations that are at most about 1. No larger than need be: across
/// too high a wall a search does not get from one partition that keeps the bounds to the next.
pub(super) const BROKEN: f64 = 10.0;

/// A checked problem.
#[derive(Debug)]
pub(super) struct Instance<'a> {
    pub(super) problem: &'a Problem,
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
    most: i64,
    /// Sub-clusters over the total: turns a sub-cluster's sum into a multiple of the average. 0 if the total is 0.
    scale: f64,
}

impl<'a> Instance<'a> {
    /// Checks a problem, and refuses what can be seen to have no solution without a search.
    pub(super) fn new(problem: &'a Problem) -> Result<Instance<'a>, PlanError> {
        check_counts(problem)?;
        let column = |key, value: fn(&super::ModelLoad) -> f64| millionths_of(problem, key, value);
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

    /// Where a model is now.
    pub(super) fn current(&self, model: usize) -> Option<usize> {
        self.problem.current.as_ref().and_then(|places| places[model])
    }

    /// What it costs to have this model there: nothing where it is, else to unload it there and load it here.
    pub(super) fn disruption(&self, model: usize, place: usize) -> u64 {
        let cost = |place| self.problem.models[model].load_cost.at(place);
        match (&self.problem.current, self.current(model)) {
            (None, _) => 0,
            (_, Some(now)) if now == place => 0,
            (_, now) => cost(place).saturating_add(now.map_or(0, cost)),
        }
    }

    /// How bad a sub-cluster with these sums is: squared deviations from the averages, and far more where it breaks a
    /// bound. The sum over sub-clusters is what a search lowers; it has a slope where the objective, a maximum, is flat.
    pub(super) fn badness(&self, rate: i64, memory: i64, runtime: i64) -> f64 {
        let (rate_off, memory_off) = (self.rate.deviation(rate), self.memory.deviation(memory));
        let broken = self.broken(rate, memory, runtime);
        let penalty = if broken > 0.0 { BROKEN * (broken + broken * broken) } else { 0.0 };
        rate_off * rate_off + self.memory_weight_squared * memory_off * memory_off + penalty
    }

    /// By how much a sub-cluster breaks its bounds, in multiples of the bound; 0 if it keeps them.
    pub(super) fn broken(&self, rate: i64, memory: i64, runtime: i64) -> f64 {
        let (memory_excess, rate_excess) = (memory + runtime - self.memory.most, rate - self.rate.most);
        if memory_excess <= 0 && rate_excess <= 0 {
            return 0.0;
        }
        let share = |excess: i64, most: i64| if excess > 0 { excess as f64 / most.max(1) as f64 } else { 0.0 };
        share(memory_excess, self.memory.most) + share(rate_excess, self.rate.most)
    }

    fn check_each(&self) -> Result<(), PlanError> {
        for (index, model) in self.problem.models.iter().enumerate() {
            let needed = self.memory.each[index] + self.runtime[index];
            if needed > self.memory.most {
                let key = "memory_mb + runtime_memory_mb";
                let (needed, limit) = (units(needed), units(self.memory.most));
                return Err(PlanError::ModelTooLarge { model: model.name.clone(), key, needed, limit });
            }
            if self.rate.each[index] > self.rate.most {
                let (rate, limit) = (model.rate_rps, units(self.rate.most));
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
        Amounts { each, total, most, scale }
    }

    /// How far a sub-cluster's sum is from the average, in multiples of it; 0 if there is nothing to share out.
    pub(super) fn deviation(&self, sum: i64) -> f64 {
        if self.scale > 0.0 { sum as f64 * self.scale - 1.0 } else { 0.0 }
    }

    /// A model's amount as a multiple of the average sub-cluster.
    pub(super) fn share(&self, model: usize) -> f64 {
        self.each[model] as f64 * self.scale
    }

    fn check(&self, key: &'static str, unit: &'static str, sub_clusters: usize) -> Result<(), PlanError> {
        let room = i128::from(self.most) * sub_clusters as i128;
        if i128::from(self.total) <= room {
            return Ok(());
        }
        let at_least = self.total.div_euclid(self.most.max(1)) + i64::from(self.total % self.most.max(1) > 0);
        let (room, needed) = (room as f64 / 1e6, units(self.total));
        Err(PlanError::TooSmall { key, unit, sub_clusters, room, needed, at_least: at_least as usize })
    }
}

/// A sum in its own unit.
pub(super) fn units(millionths: i64) -> f64 {
    millionths as f64 / 1e6
}

fn check_counts(problem: &Problem) -> Result<(), PlanError> {
    let (models, sub_clusters) = (problem.models.len(), problem.sub_clusters);
    match (models, sub_clusters) {
        (0, _) => return Err(PlanError::NoModels),
        (_, 0) => return Err(PlanError::NoSubClusters),
        _ if models > MOST_MODELS => return Err(PlanError::TooManyModels { given: models, most: MOST_MODELS }),
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
    problem: &Problem,
    key: &'static str,
    value: fn(&super::ModelLoad) -> f64,
) -> Result<Vec<i64>, PlanError> {
    let bad = |model: &&super::ModelLoad| !(value(model).is_finite() && value(model) >= 0.0);
    if let Some(model) = problem.models.iter().find(bad) {
        return Err(PlanError::BadNumber { model: model.name.clone(), key, value: value(model) });
    }
    let total: f64 = problem.models.iter().map(value).sum();
    if total > MOST_TOTAL {
        return Err(PlanError::TooLarge { key, total, most: MOST_TOTAL });
    }
    Ok(problem.models.iter().map(|model| millionths(value(model))).collect())
}

fn bound(key: &'static str, given: Option<f64>) -> Result<i64, PlanError> {
    match given {
        // Never reached, and still far enough from the end that sums beside it do not overflow.
        None => Ok(i64::MAX / 2),
        Some(value) if value.is_finite() && value >= 0.0 => Ok(millionths(value).min(i64::MAX / 2)),
        Some(value) => Err(PlanError::BadLimit { key, value }),
    }
}

fn millionths(value: f64) -> i64 {
    (value * 1e6).round() as i64
}
