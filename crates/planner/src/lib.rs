//! Partitions models over devices, and computes the number of devices that they need.
//!
//! A cluster is divided into sub-clusters; every device of a sub-cluster has all of its models
//! loaded, so that any of its models may run on any device. More sub-clusters mean fewer models
//! that must fit a device's memory, but also fewer devices for a burst of one model. [`plan`]
//! solves the assignment problem of Appendix A of "Symphony: Optimized DNN Model Serving using
//! Deferred Batch Scheduling": spread rate and memory evenly, keep each sub-cluster's memory and
//! rate within bounds, and change little of the running cluster. [`devices_needed`] computes the
//! number of devices by the analytic bound of the same paper.
//!
//! [`plan`] is a pure function without clock or threads; equal problems and options give equal
//! plans.

mod devices;
mod disruption;
mod error;
mod instance;
mod partition;
mod search;
pub mod synthetic;
#[cfg(test)]
mod tests;

pub use devices::{DeviceCount, DeviceDemand, DevicesNeeded, MAX_DEVICES, ModelDevices, devices_needed};
pub use error::PlanError;

use instance::{Instance, units};
use partition::Partition;
use search::SearchRng;

/// Several searches are cheap with few models, and one alone may end in a poor local optimum; with
/// more models all ends are alike.
const FEW_MODELS: usize = 40;
const SEARCH_ROUNDS: u64 = 10;

/// The input of [`plan`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlanningProblem {
    /// The models, m of them.
    pub models: Vec<PlannedModel>,
    /// Number of sub-clusters, l.
    pub sub_clusters: usize,
    /// The largest request rate of one sub-cluster's dispatcher, in requests per second: R_max.
    pub max_rate: Option<f64>,
    /// The memory of one device, S_max: all models of a sub-cluster and the largest runtime memory
    /// among them must fit.
    pub max_memory_mb: Option<f64>,
    /// Weight of a deviation in memory against one in rate, w. Both are relative to their averages.
    pub memory_weight: f64,
    /// The current sub-cluster of each model, in the order of `models`; `None` for a new model.
    /// `None` if nothing runs yet.
    pub current: Option<Vec<Option<usize>>>,
    /// Upper bound on the cost of all loading and unloading, C_max.
    pub max_disruption: Option<u64>,
}

/// A model to be placed.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedModel {
    /// Name of the model, unique among the models.
    pub name: String,
    /// Requests per second, r.
    pub rate_rps: f64,
    /// Memory while the model is loaded, s.
    pub memory_mb: f64,
    /// Additional memory while the model runs, d.
    pub runtime_memory_mb: f64,
    /// Cost of loading or unloading the model, c.
    pub load_cost: LoadCost,
}

/// Cost of loading or unloading a model, in units of the caller's choice; a move costs both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadCost {
    /// The same in every sub-cluster.
    Everywhere(u64),
    /// Cost in each sub-cluster; one with more devices may cost more.
    BySubCluster(Vec<u64>),
}

/// Options of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanOptions {
    /// Seed of the random part of the search.
    pub seed: u64,
    /// Number of random changes to evaluate: more time, better balance. The default takes about 0.1
    /// s.
    pub proposals: u64,
    /// The imbalance of rate and of memory below which no model of a running cluster moves.
    pub target_imbalance: f64,
}

/// A partition of the models, with its properties.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterPlan {
    /// The sub-clusters. Where nothing runs yet they are ordered by their first models.
    pub sub_clusters: Vec<SubCluster>,
    /// The sub-cluster of each model.
    pub places: Vec<usize>,
    /// (max − min) / average of the sub-clusters' rates.
    pub rate_imbalance: f64,
    /// (max − min) / average of the sub-clusters' memory.
    pub memory_imbalance: f64,
    /// The largest deviation from the average rate plus the weighted largest deviation from the
    /// average memory, both relative.
    pub objective: f64,
    /// The models that change place; empty where nothing runs yet.
    pub moves: Vec<ModelMove>,
    /// Cost of all moves.
    pub disruption: u64,
}

/// One sub-cluster of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct SubCluster {
    /// Models of the sub-cluster, ascending.
    pub models: Vec<usize>,
    /// Their rate, in requests per second.
    pub rate_rps: f64,
    /// Their memory on each device while nothing runs.
    pub memory_mb: f64,
    /// The largest runtime memory among them.
    pub runtime_memory_mb: f64,
}

/// A model that is loaded in one sub-cluster, and unloaded in another if it ran there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelMove {
    /// The model.
    pub model: usize,
    /// The old sub-cluster; `None` for a new model.
    pub from: Option<usize>,
    /// The new sub-cluster.
    pub to: usize,
    /// Cost of the move.
    pub cost: u64,
}

impl LoadCost {
    fn at(&self, place: usize) -> u64 {
        match self {
            LoadCost::Everywhere(cost) => *cost,
            LoadCost::BySubCluster(costs) => costs[place],
        }
    }
}

impl Default for PlanOptions {
    fn default() -> PlanOptions {
        PlanOptions { seed: 1, proposals: 2_000_000, target_imbalance: 0.01 }
    }
}

/// Divides models into sub-clusters.
///
/// Where nothing runs yet, the result is as balanced as the search can make it. For a running
/// cluster few models move: until the imbalance is within [`PlanOptions::target_imbalance`], or
/// cannot be lowered further within [`PlanningProblem::max_disruption`].
pub fn plan(problem: &PlanningProblem, options: &PlanOptions) -> Result<ClusterPlan, PlanError> {
    let target = options.target_imbalance;
    if !(target.is_finite() && target >= 0.0) {
        return Err(PlanError::BadLimit { key: "target_imbalance", value: target });
    }
    let instance = Instance::new(problem)?;
    let mut rng = SearchRng::new(options.seed);
    let partition = match &problem.current {
        Some(current) => disruption::reconfigure(&instance, current, options, &mut rng),
        None => canonical(&initial_partition(&instance, options, &mut rng)),
    };
    match violated_bounds(&partition) {
        Some(broken) => Err(PlanError::NotFound { sub_clusters: instance.sub_clusters, broken }),
        None => Ok(describe(&partition)),
    }
}

/// Returns the best partition found where nothing runs yet.
fn initial_partition<'a>(instance: &'a Instance<'a>, options: &PlanOptions, rng: &mut SearchRng) -> Partition<'a> {
    search::exhaust(instance, |partition| partition.score())
        .unwrap_or_else(|| approximate(instance, options.proposals, rng))
}

/// Returns the best partition found by random changes.
fn approximate<'a>(instance: &'a Instance<'a>, proposals: u64, rng: &mut SearchRng) -> Partition<'a> {
    let rounds = if instance.models() <= FEW_MODELS { SEARCH_ROUNDS } else { 1 };
    let proposals = proposals / rounds;
    let mut best = search::greedy(instance);
    for _ in 0..rounds {
        let mut partition = search::explore(search::greedy(instance), proposals, rng, |_| false);
        search::descend(&mut partition, rng, |_| false);
        let partition = search::refine(partition, proposals, rng, |_| false);
        if partition.score() < best.score() {
            best = partition;
        }
    }
    best
}

/// Returns the same partition with its sub-clusters in the order of their first models, so that
/// equal partitions compare equal. Load costs by sub-cluster do not matter here: where nothing
/// runs, nothing is disrupted.
fn canonical<'a>(partition: &Partition<'a>) -> Partition<'a> {
    let mut names = vec![None; partition.sub_clusters()];
    let mut next = 0;
    let mut rename = |&place: &usize| {
        *names[place].get_or_insert_with(|| {
            next += 1;
            next - 1
        })
    };
    let places: Vec<usize> = partition.places().iter().map(&mut rename).collect();
    Partition::at(partition.instance, &places)
}

/// Returns the bounds that a partition violates, as text.
fn violated_bounds(partition: &Partition<'_>) -> Option<String> {
    let problem = partition.instance.problem;
    let worst = |sum: &dyn Fn(usize) -> i64| units((0..partition.sub_clusters()).map(sum).max().unwrap_or(0));
    let memory = worst(&|place| partition.memory(place) + partition.runtime(place));
    let rate = worst(&|place| partition.rate(place));
    let over = |key: &str, used: f64, most: Option<f64>| {
        most.filter(|&most| used > most + 1e-6).map(|most| format!("{key} = {most} (the closest one needs {used})"))
    };
    let found = [
        over("memory_mb_per_device", memory, problem.max_memory_mb),
        over("max_rate", rate, problem.max_rate),
        (partition.disruption() > partition.instance.max_disruption).then(|| "max_disruption".to_owned()),
    ];
    found.into_iter().flatten().reduce(|all, next| format!("{all} and {next}"))
}

fn describe(partition: &Partition<'_>) -> ClusterPlan {
    let (rate_imbalance, memory_imbalance) = partition.imbalance();
    let moves = moves(partition);
    ClusterPlan {
        sub_clusters: (0..partition.sub_clusters()).map(|place| sub_cluster(partition, place)).collect(),
        places: partition.places().to_vec(),
        rate_imbalance,
        memory_imbalance,
        objective: partition.score().objective,
        disruption: moves.iter().map(|change| change.cost).fold(0, u64::saturating_add),
        moves,
    }
}

fn sub_cluster(partition: &Partition<'_>, place: usize) -> SubCluster {
    let mut models = partition.members(place).to_vec();
    models.sort_unstable();
    SubCluster {
        models,
        rate_rps: units(partition.rate(place)),
        memory_mb: units(partition.memory(place)),
        runtime_memory_mb: units(partition.runtime(place)),
    }
}

fn moves(partition: &Partition<'_>) -> Vec<ModelMove> {
    let instance = partition.instance;
    if instance.problem.current.is_none() {
        return Vec::new();
    }
    let change = |(model, &to): (usize, &usize)| {
        let from = instance.current(model);
        (from != Some(to)).then(|| ModelMove { model, from, to, cost: instance.disruption(model, to) })
    };
    partition.places().iter().enumerate().filter_map(change).collect()
}
